"""Precisions in which only products are computed: what they save in time and memory, and where."""

import pytest

from cluster_specs.catalog import load_cluster
from planner import evaluate, plan
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism, Precision


def estimate(precision: Precision, stack: str) -> Estimate:
    answer = plan(
        "llama-3-8b", "gb200-nvl72:1", global_batch=144, seq_len=8192, recompute="none", stack=stack
    )
    return evaluate(answer.model_copy(update={"job": answer.job.model_copy(update={"precision": precision})}))


def test_products_of_fewer_bits_are_faster_but_not_by_the_ratio_of_the_rates() -> None:
    seconds = [estimate(precision, "megatron").time["compute"] for precision in ("bf16", "fp8", "fp4")]
    assert seconds[0] > seconds[1] > seconds[2]
    assert seconds[2] > seconds[0] / 4  # attention, the head, norms and casts stay


def test_what_only_products_read_is_kept_as_it_was_multiplied_where_the_stack_does_so() -> None:
    kept = [estimate(precision, "megatron").memory["activations"] for precision in ("bf16", "fp8", "fp4")]
    assert kept[0] > kept[1] > kept[2]
    # From 16 to 8 bits 8/16 of what products read goes, from 16 to 4 and a share of a scale 23/32 of it.
    assert (kept[0] - kept[2]) / (kept[0] - kept[1]) == 23 / 16
    of_torch = [
        estimate(precision, "torch-fsdp2").memory["activations"] for precision in ("bf16", "fp8", "fp4")
    ]
    assert of_torch[0] == of_torch[1] > of_torch[2]


def test_transformer_engine_keeps_casts_of_weights_in_both_layouts() -> None:
    """Of Llama-3.1-8B's layers: embedding, norms and head are not cast."""
    casts = {p: estimate(p, "megatron").memory.get("kept_casts", 0.0) for p in ("bf16", "fp8", "fp4")}
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert casts["bf16"] == 0
    assert casts["fp8"] == 2 * layers
    assert casts["fp4"] == casts["fp8"] * 9 / 16
    assert "kept_casts" not in estimate("fp8", "torch-fsdp2").memory


def test_recipes_that_gather_weights_in_8_bits_have_none_of_16_beside_their_casts() -> None:
    """NVIDIA-NeMo/Megatron-Bridge ``training/mixed_precision.py``: ``fp8_param_gather``, which fp4 has not.

    Two layouts of a byte take what weights of 16 bits would.
    """
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    memory = {p: estimate(p, "nemo").memory for p in ("bf16", "fp8", "fp4")}
    assert "kept_casts" not in memory["fp8"]
    assert memory["fp8"]["weights"] == memory["bf16"]["weights"]
    assert memory["fp4"]["kept_casts"] == 2 * layers * 9 / 16
    assert estimate("fp8", "nemo-automodel").memory["kept_casts"] == 2 * layers


def test_what_gates_read_is_kept_in_8_bits_where_the_job_says_so() -> None:
    """A byte in the place of two of each element of gate and up projection, over tensor ranks; two casts more."""
    job = {"global_batch": 4, "seq_len": 8192, "precision": "fp8", "stack": "nemo"}
    layout = Parallelism(
        tensor=4, data=2, zero_stage=1, sharding="NO_SHARD", shard_degree=2, num_microbatches=2
    )
    evaluators = (
        Evaluator(
            load_model("llama-3.1-8b"),
            load_cluster("dgx-h100:1"),
            Job.model_validate(job | {"narrow_gate_inputs": narrow}),
        )
        for narrow in (False, True)
    )
    whole, narrow = (evaluator.estimate(layout) for evaluator in evaluators)
    assert whole.memory["activations"] - narrow.memory["activations"] == 32 * 8192 * 2 * 14336 / 4
    assert 0 < narrow.step_time_s / whole.step_time_s - 1 < 0.03


@pytest.mark.torch
def test_megatron_core_keeps_what_gates_read_so() -> None:
    """What autograd is handed of the fused kernel's input: a byte of each element, of bf16 two."""
    torch = pytest.importorskip("torch")
    fusions = pytest.importorskip("megatron.core.fusions.fused_bias_swiglu")

    def kept(narrow: bool) -> int:
        sizes = []
        read = torch.zeros(4, 64, dtype=torch.bfloat16, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.nbytes), lambda _: read):
            fusions.SwiGLUFunction.apply(read, narrow, False)
        return sum(sizes)

    assert (kept(narrow=False), kept(narrow=True)) == (4 * 64 * 2, 4 * 64)
