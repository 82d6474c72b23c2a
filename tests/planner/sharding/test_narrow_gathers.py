"""What tensor ranks gather in fp8 jobs: 8 bits for products in 8 bits, 16 for all others."""

import pytest

from cluster_specs.catalog import load_cluster
from planner.evaluation import Evaluator
from planner.models.catalog import load_model
from planner.plans import Job, Parallelism
from planner.runs.mapping import plan_from_run

NODE = Parallelism(tensor=8, sequence_parallel=True)
TOKENS, HIDDEN, LAYERS = 4096, 4096, 32
ARRAY = 7 / 8 * 2 * TOKENS * HIDDEN
"""Of Llama-3.1-8B in 16 bits, as each of eight ranks sends it."""


def gathered(precision: str, stack: str = "torch-fsdp2", narrow: bool | None = None) -> float:
    """Bytes that a rank sends in all-gathers of a step without sharded states."""
    job = Job(global_batch=1, seq_len=TOKENS, precision=precision, stack=stack, narrow_gathers=narrow)
    found = Evaluator(load_model("llama-3.1-8b"), load_cluster("dgx-h100:1"), job).estimate(NODE)
    return found.communication["all_gather"]


def test_gathers_of_layers_are_of_8_bits() -> None:
    """Two each way: inputs of attention and of the MLP, and gradients of what they make."""
    assert gathered("bf16") - gathered("fp8") == pytest.approx(LAYERS * 4 * ARRAY / 2)


def test_gathers_are_of_16_bits_where_rows_have_scales() -> None:
    assert gathered("fp8", narrow=False) == gathered("bf16")


@pytest.mark.parametrize("stack", ["nemo", "jax-xla"])
def test_other_stacks_gather_in_16_bits(stack: str) -> None:
    assert gathered("fp8", stack) == gathered("bf16", stack)


@pytest.mark.parametrize(("recipe", "narrow"), [("fp8-rowwise", False), ("fp8-tensorwise", None)])
def test_a_recipe_by_rows_gathers_in_16_bits(recipe: str, narrow: bool | None) -> None:
    row = {
        "id": "x",
        "series": "torchtitan",
        "model": {"name": "llama-3.1-8b", "seq": TOKENS},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": 8},
        "parallel": {"dp": 1, "tp": 8, "micro_batch": 1, "precision": "fp8", "fp8_recipe": recipe},
    }
    assert plan_from_run(row)[0].job.narrow_gathers is narrow
