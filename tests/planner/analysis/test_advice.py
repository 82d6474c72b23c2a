"""Advice: what the framework could do instead, really priced and really expressible."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.analysis.advice import advise, pins_within
from planner.errors import Infeasible
from planner.evaluation import evaluate
from planner.evaluation.evaluator import Evaluator
from planner.exporters.limits import refusals
from planner.exporters.registry import LIMITS, export
from planner.importers.registry import Imported, import_text
from planner.importers.settings import Given
from planner.models.catalog import load_model
from planner.plans import Job
from planner.search.space import candidates

MODEL, CLUSTER = load_model("llama-3.1-8b"), load_cluster("dgx-h100:1")

WASTEFUL = "--tensor-model-parallel-size 8 --sequence-parallel --bf16 --recompute-granularity full --micro-batch-size 1"

GIVEN = Given(global_batch=64, seq_len=4096)


def read(name: str, text: str, model: str = "llama-3.1-8b") -> Imported:
    return import_text(text, name, load_model(model), CLUSTER, GIVEN)


def test_advice_is_faster_fits_and_can_be_written() -> None:
    advice = advise(read("args.sh", WASTEFUL))
    assert advice.gain > 0.05
    assert advice.current.estimate == evaluate(advice.current)
    assert advice.best.estimate == evaluate(advice.best)
    assert advice.best.estimate.fits
    assert advice.best.job == advice.current.job
    assert refusals(advice.best, LIMITS["megatron-lm"]) == ()
    assert export(advice.best, "megatron-lm")
    assert advice.gain == pytest.approx(
        advice.best.estimate.tokens_per_s / advice.current.estimate.tokens_per_s - 1
    )
    assert f"{advice.gain:+.1%} tokens/s" in advice.verdict
    assert "tensor 8 -> " in advice.verdict


def test_what_was_advised_is_kept() -> None:
    """The better configuration, read again, needs no change."""
    advice = advise(read("args.sh", WASTEFUL))
    (text,) = export(advice.best, "megatron-lm").values()
    again = advise(read("args.sh", text))
    assert again.best is again.current
    assert again.gain == 0
    assert again.verdict.startswith("Keep it")


def test_no_framework_is_advised_to_do_what_it_cannot() -> None:
    text = (
        "distributed_type: FSDP\nmixed_precision: bf16\n"
        "fsdp_config: {fsdp_version: 2, fsdp_activation_checkpointing: true}\n"
    )
    best = advise(read("a.yaml", text)).best.plan
    assert (best.tensor, best.pipeline) == (1, 1)
    assert best.recompute in ("none", "full")
    assert best.zero_stage in (2, 3)


def test_what_does_not_fit_is_replaced_by_what_does() -> None:
    text = (
        '{"zero_optimization": {"stage": 0}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}'
    )
    advice = advise(read("ds.json", text))
    assert advice.current.estimate is not None
    assert not advice.current.estimate.fits
    assert advice.best.estimate is not None
    assert advice.best.estimate.fits
    assert "and it fits, which the configuration does not" in advice.verdict


def test_nothing_fits() -> None:
    text = (
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}, "train_micro_batch_size_per_gpu": 1}'
    )
    with pytest.raises(Infeasible):
        advise(read("ds.json", text, "llama-3.1-405b"))


STACKS = {"accelerate": "hf-fsdp", "deepspeed": "deepspeed", "megatron-lm": "megatron", "maxtext": "jax-xla",
          "nanotron": "nanotron", "hf-trainer": "hf-fsdp", "torchtitan-0.2": "torch-fsdp2"}  # fmt: skip


@pytest.mark.parametrize("target", STACKS)
def test_pins_keep_the_search_inside_the_limits(target: str) -> None:
    limits = LIMITS[target]
    job = Job(global_batch=64, seq_len=4096, stack=STACKS[target])
    evaluator = Evaluator(MODEL, load_cluster("dgx-h100:2"), job)
    searched = [c for pins in pins_within(evaluator, limits) for c in candidates(evaluator, pins, "time")]
    assert searched
    for c in searched:
        assert all(
            getattr(c, axis) == 1
            for axis in ("tensor", "pipeline", "context", "expert")
            if axis not in limits.axes
        )
        assert c.recompute in limits.recompute
        assert c.zero_stage in limits.zero_stages or c.data * c.context == 1
        assert c.pipeline == 1 or c.schedule in limits.schedules
        assert c.sharding != "HYBRID_SHARD" or c.zero_stage in limits.hybrid
