"""Precisions in which only products are computed: what they save in time and memory, and where."""

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.software import load_software
from planner import evaluate, plan
from planner.evaluation.evaluator import Evaluator
from planner.models.catalog import load_model
from planner.plans import Estimate, Job, Parallelism, Precision
from planner.runs import plan_from_run
from planner.search.bounds import held_per_weight


def estimate(precision: Precision, stack: str) -> Estimate:
    answer = plan(
        "llama-3-8b", "gb200-nvl72:1", global_batch=144, seq_len=8192, recompute="none", stack=stack
    )
    return evaluate(answer.model_copy(update={"job": answer.job.model_copy(update={"precision": precision})}))


def test_products_of_fewer_bits_are_faster_but_not_by_the_ratio_of_the_rates() -> None:
    seconds = [estimate(precision, "megatron").time["compute"] for precision in ("bf16", "fp8", "fp4")]
    assert seconds[0] > seconds[1] > seconds[2]
    assert seconds[2] > seconds[0] / 4  # attention, the head, norms and casts stay


def kept(model: str, stack: str, job: dict[str, object], policy: str = "none") -> float:
    """Bytes of activations for each token of a micro-batch."""
    given = {"global_batch": 8, "seq_len": 512, "stack": stack, **job}
    evaluator = Evaluator(load_model(model), load_cluster("dgx-b200:1"), Job.model_validate(given))
    experts = 8 if model != LLAMA else 1
    layout = Parallelism(data=8, expert=experts, zero_stage=1, shard_degree=8, recompute=policy)
    return evaluator.estimate(layout).memory["activations"] / 512


LLAMA = "llama-3.1-8b"
NORMED, ACTIVATED, ATTENDED = 32 * 2 * 4096, 32 * 14336, 32 * 4096
"""Elements for each token in its layers: what feeds a norm's product, a gate's and attention's."""


@pytest.mark.parametrize(("scaling", "own"), [("delayed", 1), ("tensorwise", 0), ("mxfp8", 0), (None, 0)])
def test_products_keep_casts_beside_what_attention_keeps_under_delayed_scaling(
    scaling: str | None, own: int
) -> None:
    """NVIDIA/Megatron-LM@core_v0.16.1 ``core/transformer/attention.py``: ``set_save_original_input``."""
    job = {"precision": "fp8", "fp8_scaling": scaling}
    bf16, fp8 = (kept(LLAMA, "megatron", given) for given in ({}, job))
    assert bf16 - fp8 == NORMED + ACTIVATED - own * ATTENDED
    beside = kept(LLAMA, "nemo-automodel", {}) - kept(LLAMA, "nemo-automodel", job)
    assert beside == NORMED + ACTIVATED - ATTENDED


def test_what_products_read_in_4_bits_is_kept_so_where_the_stack_does_it() -> None:
    bf16, fp4 = (kept(LLAMA, "megatron", {"precision": precision}) for precision in ("bf16", "fp4"))
    assert bf16 - fp4 == (NORMED + ACTIVATED) * (2 - 9 / 16)
    of_torch = [
        estimate(precision, "torch-fsdp2").memory["activations"] for precision in ("bf16", "fp8", "fp4")
    ]
    assert of_torch[0] == of_torch[1] > of_torch[2]


def test_routers_keep_what_they_read_in_16_bits() -> None:
    """Of Qwen3-30B-A3B's layers, attention reads 2,048 elements, and 8 experts as many each, with 768 between."""
    bf16, fp8 = (kept("qwen3-30b-a3b", "megatron", {"precision": precision}) for precision in ("bf16", "fp8"))
    assert bf16 - fp8 == 48 * (2048 + 8 * (2048 + 768))


def test_what_runs_again_reads_its_inputs_in_16_bits() -> None:
    """Attention that is computed again keeps no result, of which its projection has a cast."""
    bf16, fp8 = (
        kept(LLAMA, "megatron", {"precision": precision}, "attention") for precision in ("bf16", "fp8")
    )
    assert bf16 - fp8 == NORMED + ACTIVATED + ATTENDED


READ = 32 * (4096 + 2 * 1024)
"""Of queries, keys and values."""


@pytest.mark.parametrize(
    ("products", "attention", "less"),
    [
        ("delayed", "delayed", READ + ATTENDED),
        ("tensorwise", "tensorwise", READ),
        ("mxfp8", "mxfp8", -READ / 16),
        ("mxfp8", "delayed", READ - ATTENDED),
    ],
)
def test_attention_in_8_bits_keeps_what_its_kernels_read_again(
    products: str, attention: str, less: float
) -> None:
    """NVIDIA/TransformerEngine ``FusedAttnFunc``: its result is in 16 bits but under delayed scaling.

    MXFP8 has two layouts, each with a byte of scale for 32. Where attention keeps a cast of its result alone, the
    projection of another recipe keeps it in 16 bits.
    """
    job = {"precision": "fp8", "fp8_scaling": products}
    wide, narrow = (kept(LLAMA, "megatron", job | more) for more in ({}, {"narrow_attention": attention}))
    assert wide - narrow == less


def test_attention_that_runs_again_or_is_in_16_bits_keeps_what_it_did() -> None:
    narrow, fp8 = {"narrow_attention": "delayed"}, {"precision": "fp8"}
    assert kept(LLAMA, "megatron", narrow) == kept(LLAMA, "megatron", {})
    again = [kept(LLAMA, "megatron", fp8 | more, "attention") for more in ({}, narrow)]
    assert again[0] == again[1]


def test_transformer_engine_keeps_casts_of_weights_in_both_layouts() -> None:
    """Of Llama-3.1-8B's layers: embedding, norms and head are not cast."""
    casts = {p: estimate(p, "megatron").memory.get("kept_casts", 0.0) for p in ("bf16", "fp8", "fp4")}
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    assert casts["bf16"] == 0
    assert casts["fp8"] == 2 * layers
    assert casts["fp4"] == casts["fp8"] * 9 / 16
    assert "kept_casts" not in estimate("fp8", "torch-fsdp2").memory


SCALINGS = ("mxfp8", "delayed")
"""By blocks, and by tensors."""


def with_scales(cluster: str, stack: str, scaling: str, precision: Precision = "fp8") -> Estimate:
    job = {"global_batch": 8, "seq_len": 512, "precision": precision, "stack": stack, "fp8_scaling": scaling}
    evaluator = Evaluator(load_model("llama-3.1-8b"), load_cluster(cluster), Job.model_validate(job))
    return evaluator.estimate(Parallelism(data=8, zero_stage=1, sharding="NO_SHARD", shard_degree=8))


def test_one_layout_is_kept_where_a_device_multiplies_either_and_scales_are_of_tensors() -> None:
    """NVIDIA/TransformerEngine ``pytorch/csrc/quantizer.cpp``: ``with_transpose`` needs both not to hold."""
    layers = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    recipes = ("dgx-b200:1", "dgx-h100:1")
    alone = {name: [with_scales(name, "nemo", t).memory["weights"] for t in SCALINGS] for name in recipes}
    beside = {
        name: [with_scales(name, "megatron", t).memory["kept_casts"] for t in SCALINGS] for name in recipes
    }
    assert alone["dgx-b200:1"][0] - alone["dgx-b200:1"][1] == pytest.approx(layers)
    assert alone["dgx-h100:1"][0] == alone["dgx-h100:1"][1] == alone["dgx-b200:1"][0]
    assert beside == {"dgx-b200:1": [2 * layers, layers], "dgx-h100:1": [2 * layers, 2 * layers]}
    by_blocks, by_tensor = (with_scales("dgx-b200:1", "nemo", t, "fp4").memory for t in SCALINGS)
    assert by_blocks == by_tensor


def test_no_bound_counts_a_layout_that_may_not_be_there() -> None:
    plan, software = Parallelism(data=8, zero_stage=1, shard_degree=8), load_software("nemo")
    job = {"global_batch": 8, "seq_len": 512, "precision": "fp8", "stack": "nemo"}
    usual, least = (
        held_per_weight(plan, Job.model_validate(job | {"fp8_scaling": t}), software) for t in SCALINGS
    )
    assert usual.usual - least.usual == usual.of_embedding - least.of_embedding == 1


@pytest.mark.parametrize(
    ("words", "scaling"),
    [("fp8-ds", "delayed"), ("FP8-CS", "tensorwise"), ("fp8-mx", "mxfp8"), ("fp8", None), (None, None)],
)
def test_recipes_of_runs_say_what_a_scale_holds_for(words: str | None, scaling: str | None) -> None:
    row = {
        "model": {"name": "llama-3.1-8b", "seq": 8192},
        "hardware": {"gpu": "B200-SXM-180GB", "n_gpus": 8, "gpus_per_node": 8},
        "parallel": {"dp": 8, "micro_batch": 1, "global_batch": 8, "precision": words, "stack": "nemo"},
    }
    assert plan_from_run(row)[0].job.fp8_scaling == scaling


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
