"""Dropout of Megatron's layers and of one's own: masks beside the published formula, Megatron Core and PyTorch."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cost_models.memory import transformer_layer_activation_bytes
from planner.evaluation import evaluate
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.models.dropout import with_dropout
from planner.models.model import Model
from planner.plans import Job, Parallelism
from planner.runs import plan_from_run

PUBLISHED_RUNS = Path(__file__).parents[2] / "published"

SEQ, HIDDEN, HEADS = 2048, 12288, 96
"""GPT-3 with 175 billion parameters."""


def kept(
    stack: str, tensor: int = 1, block: str = "layer", policy: str = "none", share: float = 0.1, **more: Any
) -> float:
    """Bytes of a micro-batch of one sequence that a block keeps."""
    kernel, split = more.get("kernel", "plain"), more.get("sequence_parallel", False)
    job = Job(global_batch=64, seq_len=SEQ, stack=stack, attention=kernel)
    evaluator = Evaluator(with_dropout(load_model("gpt-3-175b"), share), load_cluster("dgx-a100-80g:8"), job)
    plan = Parallelism(data=64 // tensor, tensor=tensor, micro_batch=1, sequence_parallel=split)
    return evaluator.block(plan, block, policy, {}).saved_bytes


@pytest.mark.parametrize("stack", ["megatron", "megatron-2022", "nemo"])
@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize(("policy", "published"), [("none", "none"), ("attention", "selective")])
def test_a_layer_of_megatron_keeps_what_is_published(
    stack: str, sequence_parallel: bool, policy: str, published: Any
) -> None:
    """``sbh (10 + 24/t + 5 a s / (h t))``, with all of it over t where ranks share sequences (arXiv:2205.05198)."""
    found = kept(stack, 8, policy=policy, sequence_parallel=sequence_parallel)
    formula = transformer_layer_activation_bytes(SEQ, 1, HIDDEN, HEADS, 8, sequence_parallel, published)
    assert found == pytest.approx(formula, rel=2e-4)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_masks_are_split_where_the_sequence_is(sequence_parallel: bool) -> None:
    """A byte an element, twice a layer and once at the embedding; a fused kernel of attention keeps none."""
    of_ranks = 8 if sequence_parallel else 1
    for block, times in (("layer", 2), ("embedding", 1)):
        with_it, without = (
            kept("megatron", 8, block, share=share, kernel="flash", sequence_parallel=sequence_parallel)
            for share in (0.1, 0.0)
        )
        assert with_it - without == pytest.approx(times * SEQ * HIDDEN / of_ranks)


def test_a_sum_that_drops_takes_no_time_of_its_own() -> None:
    """Megatron's passes are counted, or fitted, with it."""
    job = Job(global_batch=64, seq_len=SEQ, stack="megatron", attention="flash")
    cluster, plan = load_cluster("dgx-a100-80g:8"), Parallelism(data=8, tensor=8, micro_batch=1)
    times = {
        Evaluator(with_dropout(load_model("gpt-3-175b"), share), cluster, job)
        .block(plan, "layer", "none", {})
        .forward
        for share in (0.0, 0.1)
    }
    assert len(times) == 1


SMALL: dict[str, Any] = {
    "layers": 1, "hidden": 32, "heads": 4, "ffn_hidden": 128, "gated_mlp": False, "vocab": 64, "seq": 64,
}  # fmt: skip
"""As the layers of check_dropped_bytes.py, of which there are two sequences of 64."""


def own_masks(stack: str) -> float:
    model = Model(name="own", family="transformer", config={**SMALL, "dropout": 0.0})
    job = Job(global_batch=2, seq_len=64, stack=stack, attention="plain")
    with_it, without = (
        Evaluator(with_dropout(model, share), load_cluster("dgx-a100-80g:1", ), job)
        .block(Parallelism(data=1, micro_batch=2), "layer", "none", {})
        .saved_bytes
        for share in (0.1, 0.0)
    )  # fmt: skip
    return with_it - without


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("kind", "stack", "of_scores"),
    [
        ("own", "torch-eager", 1),
        ("own", "hf-fsdp", 1),
        ("megatron", "megatron", 3),
        ("megatron-unfused", "megatron-2022", 3),
    ],
)
def test_layers_keep_as_much_more_as_programs_do(kind: str, stack: str, of_scores: int) -> None:
    """A byte for each element of both halves, and of scores; in 16 bits what is left of these is another array, too."""
    if kind.startswith("megatron"):
        pytest.importorskip("megatron.core")
    assert own_masks(stack) == measured(kind) == 2 * 2 * 64 * 32 + of_scores * 2 * 4 * 64 * 64


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_compiled_layer_keeps_a_byte_of_what_is_dropped() -> None:
    assert measured("compiled") == 2 * 64 * 32


def measured(kind: str) -> float:
    check = Path(__file__).with_name("check_dropped_bytes.py")
    done = subprocess.run(
        [sys.executable, check, kind], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return float(json.loads(done.stdout.splitlines()[-1]))


def row_of(stack: str, **model: Any) -> dict[str, Any]:
    return {
        "model": {**SMALL, "name": "GPT", **model},
        "hardware": {"gpu": "H100-SXM-80GB", "n_gpus": 8, "gpus_per_node": 8},
        "parallel": {"dp": 8, "micro_batch": 1, "global_batch": 8, "stack": stack},
    }


def shares(row: dict[str, Any]) -> tuple[float, float]:
    config = plan_from_run(row)[0].model.config
    return config.get("dropout", 0.0), config.get("attention_dropout", 0.0)


def test_megatron_drops_a_tenth_of_a_model_of_sizes_without_gates() -> None:
    row = row_of("megatron")
    assert shares(row) == (0.1, 0.1)
    assert "dropout=0.1 (the stack's default)" in plan_from_run(row)[1]
    assert shares(row_of("megatron", gated_mlp=True)) == (0.0, 0.0)
    assert shares(row_of("torch-eager")) == (0.0, 0.0)


def test_a_run_says_what_it_drops() -> None:
    assert shares(row_of("megatron", dropout=0)) == (0.0, 0.0)
    assert shares(row_of("megatron", dropout=0.2)) == (0.2, 0.2)
    assert shares(row_of("megatron", attention_dropout=0.0)) == (0.1, 0.0)
    assert shares(row_of("torch-eager", attention_dropout=0.3)) == (0.0, 0.3)


def test_megatron_drops_of_any_model_what_it_is_told() -> None:
    """Llama's own modules drop nothing of their sums, whatever its configuration says."""
    job = {"global_batch": 64, "seq_len": 2048, "attention": "flash"}
    masks = {}
    for stack in ("megatron", "hf-fsdp"):
        with_it, without = (
            Evaluator(
                with_dropout(load_model("llama-3.1-8b"), share),
                load_cluster("dgx-a100-80g:8"),
                Job.model_validate({**job, "stack": stack}),
            )
            .block(Parallelism(data=64, micro_batch=1), "layer", "none", {})
            .saved_bytes
            for share in (0.1, 0.0)
        )
        masks[stack] = with_it - without
    assert masks == {"megatron": 2 * 2048 * 4096, "hf-fsdp": 0}


def test_nvidias_bert_keeps_five_bytes_of_a_score() -> None:
    """Softmax in 16 bits, a mask, what is left: Lambda's batches are as large as its boards take, and they do."""
    rows = map(json.loads, (PUBLISHED_RUNS / "runs_gpu.jsonl").read_text().splitlines())
    found = {row["id"]: plan_from_run(row)[0] for row in rows if row["series"] == "Lambda's BERT on SQuAD"}
    assert {plan.job.stack for plan in found.values()} == {"nvidia-bert"}
    largest = evaluate(found["lambda-bert/gh200-1"])
    assert largest.fits
    plain = found["lambda-bert/gh200-1"].job.model_copy(update={"stack": "torch-eager"})
    eager = evaluate(found["lambda-bert/gh200-1"].model_copy(update={"job": plain}))
    scores = 24 * 152 * 16 * 384**2
    assert eager.memory["activations"] - largest.memory["activations"] == pytest.approx(2 * scores, rel=1e-6)
    assert not eager.fits
