"""A file says what it starts where that is not what its plan was priced for."""

import pytest

from cluster_specs.software import load_software
from planner.api import judged
from planner.api import plan as find_plan
from planner.evaluation import evaluate
from planner.exporters.limits import refusals
from planner.exporters.registry import EXPORTERS, LIMITS, export, notes
from planner.exporters.stacks import RUNS_AS, priced_apart
from planner.plans import Plan


@pytest.fixture(scope="module")
def found() -> Plan:
    """A priced plan of the stack that nobody named."""
    return find_plan("llama-3.2-1b", "dgx-h100:1", global_batch=64, seq_len=4096, tensor=1, zero_stage=3)


def test_every_target_starts_software_that_is_known() -> None:
    assert set(RUNS_AS) == set(EXPORTERS)
    for name in {name for stacks in RUNS_AS.values() for name in stacks}:
        assert load_software(name).name == name


@pytest.mark.parametrize(("target", "stack"), [("hf-trainer", "hf-fsdp"), ("fsdp2", "transformers-fsdp2")])
def test_what_is_not_compiled_is_told_apart_from_what_was_priced(
    found: Plan, target: str, stack: str
) -> None:
    job = found.job.model_copy(update={"stack": stack})
    own = evaluate(found.model_copy(update={"job": job}))
    (said,) = (note for note in notes(found, target) if "plan with" in note)
    assert f"this starts {stack}, " in said
    assert f" {own.step_time_s:.4g} s a step" in said
    assert found.estimate is not None
    assert own.step_time_s > found.estimate.step_time_s
    assert any(said in text for text in export(found, target).values())


@pytest.mark.parametrize("target", ["torchtitan", "torchtitan-0.2"])
def test_torchtitans_files_start_what_was_priced(found: Plan, target: str) -> None:
    assert list(priced_apart(found, target)) == []


def test_deepspeeds_configuration_starts_transformers_models_too(found: Plan) -> None:
    job = found.job.model_copy(update={"stack": "deepspeed-transformers"})
    assert list(priced_apart(found.model_copy(update={"job": job}), "deepspeed")) == []


@pytest.mark.parametrize(
    ("target", "enabled"), [("torchtitan", "CompileConfig(enable={})"), ("torchtitan-0.2", "enable = {}")]
)
@pytest.mark.parametrize("stack", ["torch-fsdp2", "torch-eager"])
def test_torchtitan_compiles_only_what_was_priced_compiled(
    found: Plan, stack: str, target: str, enabled: str
) -> None:
    own = judged(found.model_copy(update={"job": found.job.model_copy(update={"stack": stack})}))
    text = "".join(export(own, target).values()).lower()
    assert enabled.format(stack != "torch-eager").lower() in text
    assert list(priced_apart(own, target)) == []


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("torchtitan", "CompileConfig(enable=True, components=['loss'])"),
        ("torchtitan-0.2", 'enable = true\ncomponents = ["loss"]'),
    ],
)
def test_torchtitan_compiles_the_loss_alone_where_that_was_priced(
    found: Plan, target: str, named: str
) -> None:
    job = found.job.model_copy(update={"stack": "torch-loss-alone"})
    own = judged(found.model_copy(update={"job": job}))
    assert named in "".join(export(own, target).values())
    assert list(priced_apart(own, target)) == []


@pytest.mark.parametrize("target", ["hf-trainer", "accelerate", "deepspeed", "levanter", "maxtext"])
def test_what_a_file_says_to_plan_with_gives_degrees_that_its_target_has(found: Plan, target: str) -> None:
    """Left to itself, the search splits this one otherwise under most of these stacks."""
    (said,) = (note for note in notes(found, target) if "plan with" in note)
    _, stack, *without = said.split("plan with ")[1].removesuffix(" for its best").split()
    degrees = {word.removeprefix("--no-"): 1 for word in without}
    again = find_plan("llama-3.1-8b", "dgx-h100:1", global_batch=16, seq_len=16384, stack=stack, **degrees)
    assert not [refusal for refusal in refusals(again, LIMITS[target]) if refusal.aspect == "axes"]


def test_a_plan_for_jax_is_said_to_have_no_pipeline(found: Plan) -> None:
    assert notes(found, "jax")[-1].endswith("plan with --stack jax-xla --no-pipeline for its best")


def test_levanters_tiles_are_told_apart_where_it_has_no_kernel() -> None:
    """Splash attention takes heads of 128, not of 64: stanford-crfm/levanter@9263f81 layers/attention.py."""
    small, whole = (
        judged(
            find_plan(
                name, "tpu-v5p:2x2x1", global_batch=16, seq_len=4096, recompute="full", tensor=1, pipeline=1
            )
        )
        for name in ("llama-3.2-1b", "llama-3.2-3b")
    )
    (said,) = priced_apart(small, "levanter")
    assert "while this starts levanter, predicted to take" in said
    assert list(priced_apart(whole, "levanter")) == []


def test_a_plan_for_what_is_started_says_nothing(found: Plan) -> None:
    own = found.model_copy(update={"job": found.job.model_copy(update={"stack": "hf-fsdp"})})
    assert list(priced_apart(own, "hf-trainer")) == []


def test_what_would_not_fit_is_said() -> None:
    """Blocks that are compiled keep less: 8B fits into 80 GB with nothing recomputed, as Trainer runs it does not."""
    large = find_plan(
        "llama-3.1-8b", "dgx-h100:1", global_batch=64, seq_len=4096, tensor=1, pipeline=1, micro_batch=4
    )
    job = large.job.model_copy(update={"stack": "hf-fsdp"})
    (said,) = priced_apart(large, "hf-trainer")
    assert not evaluate(large.model_copy(update={"job": job})).fits
    assert "GiB that there are" in said
