"""What autocast makes of a graph: types as PyTorch documents them, and casts that products read."""

from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from cluster_specs.errors import InputError
from planner.api import evaluate, plan
from planner.errors import Unsupported
from planner.evaluation import Evaluator
from planner.graph import Block, Graph
from planner.models.autocast import autocast
from planner.models.catalog import build_graph, load_model
from planner.models.dropout import with_dropout
from planner.plans import Job


def cast(name: str, fused: bool = False) -> Graph:
    return autocast(build_graph(load_model(name), 1024), fused)


def layer(graph: Graph) -> Block:
    return graph.block[graph.layers[0].block]


def test_a_llama_hands_on_fp32_and_multiplies_16_bits() -> None:
    """As torch.autocast ran transformers' modules: embedding, norms, sums and rotary positions are fp32."""
    block = layer(cast("llama-3.2-1b"))
    types = {t.name: t.dtype for t in block.tensors if t.role == "activation"}
    for op in block.ops:
        made = {types[name] for name in op.outputs}
        if op.kind in ("matmul", "attention"):
            assert {types[name] for name in (*op.inputs, *op.outputs)} == {"compute"}
        elif op.kind in ("norm", "add") or op.name == "rotary":
            assert made == {"fp32"}
    assert {types[name] for name in (*block.inputs, *block.outputs)} == {"fp32"}


def test_every_module_casts_its_input_and_its_weight() -> None:
    """Queries and keys of attention; gate and up; queries, keys and values."""
    graph = cast("llama-3.2-1b")
    block = layer(graph)
    casts = [op.attributes["casts"] for op in block.ops if "casts" in op.attributes]
    assert sorted(casts) == [1, 1, 2, 3]
    copies = [t for t in block.tensors if t.name.startswith("w") and "_cast" in t.name]
    hidden, wide, ffn = 2048, 512, 8192
    assert sum(map(graph.elements, copies)) == 2 * hidden**2 + 2 * hidden * wide + 3 * hidden * ffn


def test_a_fused_product_casts_its_input_once() -> None:
    block = layer(cast("pythia-12b"))
    assert all(op.attributes["casts"] == 1 for op in block.ops if "casts" in op.attributes)


def made_in_fp32(graph: Graph, kind: str) -> set[str]:
    """Operators of a kind that make fp32 of what are activations."""
    return {
        op.name
        for block in graph.blocks
        for op in block.ops
        if op.kind == kind and any(block.tensor[name].dtype == "fp32" for name in op.outputs)
    }


@pytest.mark.parametrize("kind", ["conv", "norm", "add"])
def test_what_begins_with_a_product_stays_in_16_bits(kind: str) -> None:
    """ResNet: convolutions come first, batch norms return the type that they were given."""
    assert made_in_fp32(autocast(build_graph(load_model("resnet-50"), 1), fused=False), kind) == set()


@pytest.mark.parametrize(
    ("name", "wide"),
    [("gemma-3-12b", {"attn_norm", "mlp_norm"}), ("qwen3-8b", {"attn_norm", "mlp_norm", "q_norm", "k_norm"})],
)
def test_norms_that_return_the_type_given_widen_nothing(name: str, wide: set[str]) -> None:
    """Gemma's ``type_as``: only what reads the fp32 that layers hand on is fp32, not norms of products."""
    norms = {op.name for op in layer(cast(name)).ops if op.kind == "norm"}
    assert made_in_fp32(cast(name), "norm") & norms == wide


@pytest.mark.parametrize("name", ["nemotron-h-8b", "mixtral-8x7b"])
def test_kernels_that_autocast_does_not_know_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="not priced under autocast"):
        cast(name)


@pytest.mark.parametrize(
    ("job", "words"),
    [
        ({"stack": "megatron"}, "stack megatron casts weights itself"),
        ({"precision": "fp8"}, "found precision fp8"),
        ({"master_weights": False}, "with no fp32 weights"),
    ],
)
def test_autocast_is_pytorchs_and_of_fp32_weights(job: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Evaluator(
            load_model("llama-3.2-1b"),
            load_cluster("dgx-h100:1"),
            Job(global_batch=8, seq_len=1024, autocast=True, **job),
        )


def test_casts_take_time_and_memory() -> None:
    found = plan("llama-3.2-1b", "dgx-h100:1", global_batch=8, seq_len=1024, data=8, stack="hf-fsdp")
    under = found.model_copy(update={"job": found.job.model_copy(update={"autocast": True})})
    after = evaluate(under)
    assert after.tensor_bytes > 1.2 * found.estimate.tensor_bytes
    assert after.step_time_s > 1.02 * found.estimate.step_time_s


@pytest.mark.parametrize(("name", "kernels"), [("gpt2", 1), ("llama-3.2-1b", 3.5)])
def test_a_layer_norm_is_one_kernel_in_any_type(name: str, kernels: float) -> None:
    """torch.nn.functional.layer_norm; transformers writes the norms of Llama operator by operator."""
    norms = [op for op in layer(cast(name)).ops if op.kind == "norm"]
    assert {op.attributes.get("eager_passes", 1) for op in norms} == {kernels}


def test_compilers_write_what_products_read_in_its_type() -> None:
    """Inductor of torch 2.13: one kernel of a sum, its norm and the cast; the sum is written in fp32, or not at all."""
    block = layer(cast("gpt2", fused=True))
    assert not [op.name for op in block.ops if "casts" in op.attributes]
    types = {t.name: t.dtype for t in block.tensors}
    assert {types[name] for name in ("attn_normed", "mlp_normed")} == {"compute"}
    assert {types[name] for name in ("attn_residual", *block.outputs)} == {"fp32"}


def test_a_compiled_layer_keeps_what_its_partition_keeps() -> None:
    """AOT autograd's partition of torch 2.13 of whole GPT-2s of two and three layers of 768, two sequences of 1024.

    A layer more keeps 74,039,296 bytes. 3,145,728 of these are the copy of what attention made that CPUs need, whose
    kernel lays heads out in another order, and 14,155,776 are casts of weights, as large for any batch.
    """
    found = plan("gpt2", "dgx-h100:1", global_batch=8, seq_len=1024, data=8, stack="torch-compiled-loss")
    job = found.job.model_copy(update={"autocast": True})
    evaluator = Evaluator(with_dropout(load_model("gpt2"), 0), load_cluster("dgx-h100:1"), job)
    kept = evaluator.block(found.plan, "layer", "none", {}).saved_bytes
    casts = 14_155_776
    assert found.plan.micro_batch == 1
    assert kept - casts == pytest.approx((74_039_296 - 3_145_728 - casts) / 2, rel=1e-3)
