"""What ranks gather in fp8 jobs: 8 bits for products in 8 bits, 16 for all others."""

from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner.evaluation import Evaluator
from planner.evaluation.memory import held_in_backward, states_of
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism
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


SHARDED = Parallelism(data=8, zero_stage=3, sharding="FULL_SHARD", shard_degree=8)
LINEAR = LAYERS * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * 1024 + 3 * HIDDEN * 14336)
"""Weights of Llama-3.1-8B's linear layers: of attention, with eight heads of keys, and of the MLP."""


def weights_gathered(narrow: bool, model: str = "llama-3.1-8b", **job: Any) -> float:
    """Bytes that a rank sends in all-gathers of a step over eight ranks that share the states."""
    given = Job.model_validate(
        {"global_batch": 8, "seq_len": 512, "precision": "fp8", "narrow_weight_gathers": narrow} | job
    )
    found = Evaluator(load_model(model), load_cluster("dgx-h100:1"), given).estimate(SHARDED)
    return found.communication["all_gather"]


def test_weights_of_layers_are_gathered_in_8_bits_twice() -> None:
    """Before the forward and before the backward; embedding, norms and head stay in 16."""
    saved = weights_gathered(False) - weights_gathered(True)
    assert saved == pytest.approx(2 * 7 / 8 * LINEAR)


def test_weights_that_stay_gathered_are_in_8_bits() -> None:
    """lightning-thunder pull request 1528: 6.5 GiB of Llama-3-8B for every copy in 8 bits."""
    kept = Parallelism(data=8, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=8)

    def there(narrow: bool) -> float:
        job = Job(global_batch=8, seq_len=8192, precision="fp8", narrow_weight_gathers=narrow)
        return (
            Evaluator(load_model("llama-3.1-8b"), load_cluster("dgx-h100:1"), job).estimate(kept).tensor_bytes
        )

    assert there(False) - there(True) == pytest.approx(LINEAR)
    assert pytest.approx(LINEAR / 2**30, rel=0.01) == 6.5


@pytest.mark.parametrize("stack", ["torch-fsdp2", "torch-eager"])
def test_what_surely_is_held_is_no_more_than_there_is(stack: str) -> None:
    """Else the search would leave out plans that fit."""
    plan = Parallelism(data=8, zero_stage=2, sharding="SHARD_GRAD_OP", shard_degree=8)
    job = Job(global_batch=8, seq_len=16, precision="fp8", narrow_weight_gathers=True, stack=stack)
    found = Evaluator(load_model("llama-3.1-8b"), load_cluster("dgx-h100:1"), job).estimate(plan)
    software, elements = load_software(stack), 8.03e9
    states = states_of(elements, 8, job, plan, software)
    assert held_in_backward(states, elements, job, plan, software) <= found.tensor_bytes


def test_experts_are_gathered_in_16_bits() -> None:
    """Of Mixtral only attention has products in 8 bits of linear layers: its router is in 32."""
    saved = weights_gathered(False, "mixtral-8x7b") - weights_gathered(True, "mixtral-8x7b")
    assert saved == pytest.approx(2 * 7 / 8 * 32 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * 1024))


OPTIMIZER = Parallelism(data=8, zero_stage=1, shard_degree=8)


def of_core(stack: str, model: str = "llama-3.1-8b", **job: Any) -> Estimate:
    """Megatron Core's distributed optimizer over eight ranks."""
    given = Job.model_validate({"global_batch": 8, "seq_len": 512, "precision": "fp8", "stack": stack} | job)
    return Evaluator(load_model(model), load_cluster("dgx-h100:1"), given).estimate(OPTIMIZER)


@pytest.mark.parametrize(
    ("scaling", "narrow"), [("delayed", 1), ("tensorwise", 1), ("mxfp8", 0), ("blockwise", 0), (None, 0)]
)
def test_recipes_gather_casts_that_are_all_there_is(scaling: str | None, narrow: int) -> None:
    """MXFP8 is gathered in 16 bits, into the buffer of gradients; blocks have no such recipe."""
    gathered = [
        of_core("nemo", fp8_scaling=scaling, precision=precision).communication["all_gather"]
        for precision in ("bf16", "fp8")
    ]
    assert gathered[0] - gathered[1] == pytest.approx(narrow * 7 / 8 * LINEAR)


def test_arguments_may_ask_for_it() -> None:
    """``--fp8-param-gather``: no weights in 16 bits beside casts in two layouts; experts are gathered so, too."""
    asked = {"fp8_scaling": "delayed", "narrow_weight_gathers": True}
    usual, found = of_core("megatron", fp8_scaling="delayed"), of_core("megatron", **asked)
    sent = (each.communication["all_gather"] for each in (usual, found))
    assert next(sent) - next(sent) == pytest.approx(7 / 8 * LINEAR)
    held = [each.memory["weights"] + each.memory.get("kept_casts", 0.0) for each in (usual, found)]
    assert held[0] - held[1] == pytest.approx(2 * LINEAR)
    blocks = of_core("megatron", **asked | {"fp8_scaling": "blockwise"})
    assert blocks.communication["all_gather"] == found.communication["all_gather"]
    experts = [
        of_core("megatron", "mixtral-8x7b", **given).communication["all_gather"]
        for given in ({"fp8_scaling": "delayed"}, asked)
    ]
    linear = 32 * (2 * HIDDEN * HIDDEN + 2 * HIDDEN * 1024 + 8 * 3 * HIDDEN * 14336)
    assert experts[0] - experts[1] == pytest.approx(7 / 8 * linear)


def test_nothing_is_narrower_in_16_bits() -> None:
    assert weights_gathered(True, precision="bf16") == weights_gathered(False, precision="bf16")


def test_a_run_says_that_weights_are_cast_first() -> None:
    row = {
        "id": "x",
        "series": "torchtitan",
        "model": {"name": "llama-3.1-8b", "seq": TOKENS},
        "hardware": {"gpu": "H100-SXM-80GB", "gpus_per_node": 8, "n_gpus": 8},
        "parallel": {"dp": 8, "micro_batch": 1, "precision": "fp8", "narrow_weight_gathers": True},
    }
    assert plan_from_run(row)[0].job.narrow_weight_gathers
