"""What numbers rest on that nobody measured is said wherever they are shown, once."""

import pytest
from typer.testing import CliRunner

from planner import compare, fit, plan
from planner.cli.app import app
from planner.plans import Plan
from planner.search import doubts

JOB = {"global_batch": 64, "seq_len": 4096, "zero_stage": 3, "micro_batch": 1, "recompute": "full"}
SAID = "kernels of linear recurrences were not measured"
WORDS = ["--zero", "3", "--micro-batch", "1", "--recompute", "full"]


@pytest.fixture(scope="module")
def hybrid() -> Plan:
    return plan("nemotron-3-nano-4b", "dgx-h100:1", **JOB)


@pytest.fixture(scope="module")
def dense() -> Plan:
    return plan("llama-3.1-8b", "dgx-h100:1", **JOB)


def test_doubts_are_among_what_a_plan_warns_of(hybrid: Plan, dense: Plan) -> None:
    assert SAID in doubts(hybrid)[0]
    assert set(doubts(hybrid)) <= set(hybrid.warnings)
    assert doubts(dense) == ()


def test_a_fit_has_them(hybrid: Plan) -> None:
    assert fit("nemotron-3-nano-4b", "dgx-h100:1", **JOB).plan.warnings == doubts(hybrid)


def test_a_comparison_names_whose_they_are(hybrid: Plan, dense: Plan) -> None:
    assert compare(dense, hybrid).warnings == tuple(f"B: {said}" for said in doubts(hybrid))
    assert compare(hybrid, hybrid).warnings == doubts(hybrid)


@pytest.mark.parametrize(
    "command",
    [
        ["what-if", "nemotron-3-nano-4b", "dgx-h100", "--devices", "8,16", "--batch", "64",
         "--seq-len", "4096", *WORDS],
        ["size", "dgx-h100", "--model", "nemotron-3-nano-4b", "--batch-tokens", "262144", "--seq-len", "4096",
         "--tokens", "1e9", "--deadline", "90d", "--most-devices", "16"],
    ],
    ids=["what-if", "size"],
)  # fmt: skip
def test_sweeps_say_it_once(command: list[str]) -> None:
    shown = CliRunner().invoke(app, [*command, "-q"])
    assert " ".join(shown.stdout.split()).count(SAID) == 1


def test_targets_that_split_no_recurrences_are_named_with_the_plan() -> None:
    split = plan("qwen3-next-80b-a3b", "tpu-v5p:4x4x4", global_batch=256, seq_len=4096, tensor=4)
    assert "for maxtext and all that shard the modules of a script plan with --tensor 1" in split.warnings[-1]
    whole = plan("nemotron-3-nano-4b", "dgx-h100:1", **JOB, tensor=1)
    assert not any("--tensor 1" in said for said in whole.warnings)


@pytest.mark.parametrize(
    ("stack", "cluster", "doubted"),
    [
        ("jax-xla", "dgx-h100:2", True),
        ("levanter", "dgx-h100:2", False),
        ("torch-fsdp2", "dgx-h100:2", False),
        ("jax-xla", "tpu-v5p:2x2x4", False),
    ],
)
def test_xla_on_gpus_has_no_kernel_of_grouped_products_by_itself(
    stack: str, cluster: str, doubted: bool
) -> None:
    found = plan("mixtral-8x7b", cluster, **JOB, tensor=1, pipeline=1, stack=stack)
    assert any("multiplies with all experts of a rank" in said for said in doubts(found)) is doubted
