"""Adapters in a model's graph: what is trained and computed, against peft's and torch's own counts."""

import json
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cluster_specs.software import load_software
from planner.errors import InputError
from planner.flops import Counting
from planner.graph import Graph, count_parameters
from planner.models.adapter_steps import RANK
from planner.models.adapters import Adapter, adapted
from planner.models.catalog import build_graph, load_model
from planner.operators import backward_flops, forward_flops, model_flops, saved_tensors
from planner.sharding.kernels import passes

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "adapters_truth.jsonl").read_text().splitlines()
]
"""Of benchmarks/counting_adapters.py."""

by_case = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['r']}")
FULL = Counting(causal=False, attention_kernel="plain")


def graph_of(row: dict[str, Any]) -> Graph:
    adapter = Adapter(r=row["r"], target_modules=tuple(row["target_modules"]))
    return adapted(build_graph(load_model(row["model"]), row["seq"]), adapter)


def llama(**fields: Any) -> Graph:
    return adapted(build_graph(load_model("llama-3.1-8b"), 512), Adapter(**{"r": 16, **fields}))


@by_case
def test_as_many_parameters_are_trained_as_peft_says(row: dict[str, Any]) -> None:
    trained = count_parameters(graph_of(row))
    assert trained == row["trainable"]
    assert load_model(row["model"]).parameters + trained == row["all"]


@by_case
def test_flops_equal_torchs_counter(row: dict[str, Any]) -> None:
    graph = graph_of(row)
    assert forward_flops(graph, 1, FULL) == row["fwd_flops"]
    assert backward_flops(graph, 1, FULL) == row["bwd_flops"]


@by_case
def test_without_a_gradient_of_the_embedding_the_first_layer_has_less_to_do(row: dict[str, Any]) -> None:
    """Which is left out: at most a layer's attention, half of one of 32."""
    assert row["bwd_flops_without_input"] <= backward_flops(graph_of(row), 1, FULL)
    assert backward_flops(graph_of(row), 1, FULL) < 1.025 * row["bwd_flops_without_input"]


def test_model_flops_count_frozen_weights_twice_and_adapters_three_times() -> None:
    """Of Llama 3.1 8B: 2 x 2 x 7.505e9 x tokens of matrices, 6 x 6.8e6 of adapters, and causal attention thrice."""
    tokens, layers, width = 512, 32, 4096
    matrices = 8_030_261_248 - 128256 * 4096 - 65 * 4096
    attention = 3 * 2 * layers * tokens * width * tokens
    expected = tokens * (4 * matrices + 6 * 6_815_744) + attention
    assert model_flops(llama(), 1) == pytest.approx(expected, rel=1e-12)


def test_a_frozen_product_keeps_its_input_only_for_an_adapter() -> None:
    graph = llama()
    kept = saved_tensors(graph.block[graph.sequence[0]], "none")
    everything = saved_tensors(build_graph(load_model("llama-3.1-8b"), 512).block["layer"], "none")
    assert {"mlp_normed", "activated"} <= set(everything)
    assert not {"mlp_normed", "activated"} & set(kept)
    assert {"attn_normed", "wq_lora_down", "wv_lora_down", "up", "gate"} <= set(kept)


@pytest.mark.parametrize(
    ("base", "version", "more"),
    [
        ("nf4", "0.42.0", {"mlp_normed", "activated"}),
        ("nf4", "0.43.1", {"mlp_normed", "activated"}),
        ("nf4", "0.43.2", set()),
        ("nf4", "0.44", set()),
        ("nf4", None, set()),
        ("bf16", "0.42.0", set()),
    ],
)
def test_products_in_4_bits_once_kept_their_inputs(base: str, version: str | None, more: set[str]) -> None:
    """Beside those that adapters and attention keep (bitsandbytes@9e753741); outside layers nothing is."""
    of_today, found = (llama(base=base, bitsandbytes=named) for named in (None, version))
    kept = {
        name: [set(saved_tensors(graph.block[name], "none")) for graph in (found, of_today)]
        for name in ("layer", "head")
    }
    assert kept["layer"][0] - kept["layer"][1] == more
    assert kept["head"][0] == kept["head"][1]
    assert kept["layer"][0] >= kept["layer"][1]


@pytest.mark.torch
@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("keeps", [True, False])
def test_what_a_function_holds_of_a_frozen_product_is_one_input(keeps: bool) -> None:
    """A function of PyTorch's as bitsandbytes had it and has it, between layers that need a gradient."""
    import torch

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.held = (x if keeps else None, weight)
            return x @ weight

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient @ ctx.held[1].t(), None

    trained, frozen = torch.ones(4, 4, requires_grad=True), torch.ones(4, 4)
    made = (torch.ones(2, 4) @ trained).exp() * 2
    alive = weakref.ref(made.untyped_storage())
    result = Product.apply(made, frozen)
    del made
    assert (alive() is not None) is keeps
    result.sum().backward()
    assert trained.grad is not None


def test_a_version_is_a_number_of_several() -> None:
    with pytest.raises(ValidationError, match="bitsandbytes"):
        Adapter(r=8, base="nf4", bitsandbytes="main")
    assert "bitsandbytes" not in Adapter(r=8, base="nf4").model_dump()


def test_dropout_keeps_a_mask_and_what_is_left_for_each_adapter() -> None:
    kept = set(saved_tensors(llama(lora_dropout=0.1).block["layer"], "none"))
    assert {"wq_lora_mask", "wq_lora_input", "wv_lora_mask", "wv_lora_input"} <= kept
    assert "attn_normed" not in kept


def test_dropout_behind_an_adapter_keeps_its_input_and_a_mask_of_what_it_adds() -> None:
    """As autograd does for NeMo AutoModel's ``LinearLoRA``, whose frozen product keeps nothing."""
    torch = pytest.importorskip("torch")
    rows, width, rank, made = 3, 16, 2, 40
    x = torch.randn(rows, width, requires_grad=True)
    frozen, down, up = torch.randn(made, width), torch.randn(rank, width), torch.randn(made, rank)
    weights = {t.data_ptr() for t in (frozen, down.requires_grad_(), up.requires_grad_())}
    saved: dict[int, int] = {}

    def note(tensor: Any) -> Any:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    linear = torch.nn.functional.linear
    with torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        added = linear(linear(x, down), up) * 2.0
        linear(x, frozen) + torch.nn.functional.dropout(added, 0.1, training=True)
    assert sorted(saved.values()) == sorted((rows * width, rows * rank, rows * made))

    layer = llama(lora_dropout=0.1, dropout_position="post").block["layer"]
    kept = set(saved_tensors(layer, "none"))
    assert {"attn_normed", "wq_lora_down", "q_lora_mask", "v_lora_mask"} <= kept
    assert kept.isdisjoint({"wq_lora_input", "q_lora", "q_lora_left"})
    assert layer.tensor["v_lora_mask"].dims == layer.tensor["v"].dims


def test_where_dropout_is_is_written_where_it_is_not_where_peft_has_it() -> None:
    assert "dropout_position" not in Adapter(r=8, lora_dropout=0.1).model_dump(mode="json")
    behind = Adapter(r=8, lora_dropout=0.1, dropout_position="post")
    assert Adapter.model_validate(behind.model_dump(mode="json")) == behind
    assert str(behind) == "LoRA r=8 on q_proj, v_proj, dropout 0.1 of what is added"


def test_a_fused_module_has_one_adapter() -> None:
    """Phi-3's query, key and value share a parameter: rank x (3072 + 9216)."""
    fused = adapted(build_graph(load_model("phi-3-mini-4k"), 512), Adapter(r=4, target_modules=("qkv_proj",)))
    assert count_parameters(fused) == 32 * 4 * (3072 + 9216)


def test_targets_that_are_no_modules_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="'c_attn'; adapters go on down_proj, gate_proj"):
        llama(target_modules=("c_attn",))


def test_a_rank_is_at_most_the_narrower_side() -> None:
    """Llama-3.1-8B's values have 8 heads of 128; Phi-3's fused module makes 3 x 3072 numbers."""
    graph = build_graph(load_model("llama-3.1-8b"), 512)
    assert adapted(graph, Adapter(r=1024)).dims[RANK] == 1024
    with pytest.raises(
        InputError, match=r"v_proj, which makes 1024 numbers of 4096: give a rank of at most 1024"
    ):
        adapted(graph, Adapter(r=1025))
    phi = build_graph(load_model("phi-3-mini-4k"), 512)
    with pytest.raises(InputError, match="makes 9216 numbers of 3072"):
        adapted(phi, Adapter(r=3073, target_modules=("qkv_proj",)))


def test_experts_are_not_adapted_by_a_word_whose_meaning_changes() -> None:
    mixtral = build_graph(load_model("mixtral-8x7b"), 512)
    with pytest.raises(InputError, match="stacked experts"):
        adapted(mixtral, Adapter(r=8, target_modules=("all-linear",)))


def test_targets_may_be_one_text() -> None:
    assert Adapter(r=8, target_modules="q_proj, v_proj").target_modules == ("q_proj", "v_proj")  # type: ignore[arg-type]


def test_fields_of_peft_that_change_no_shape_are_read_over() -> None:
    given = {"r": 8, "lora_alpha": 32, "use_rslora": True, "task_type": "CAUSAL_LM", "bias": "none"}
    assert Adapter.model_validate(given) == Adapter(r=8)


@pytest.mark.parametrize(
    ("field", "value"),
    [("bias", "all"), ("bias", "lora_only"), ("modules_to_save", ["lm_head"]), ("use_dora", True)],
)
def test_fields_of_peft_that_train_more_are_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"{field} is .*, with which more is trained"):
        Adapter.model_validate({"r": 8, field: value})


@pytest.mark.parametrize(
    ("base", "summed", "position", "dropped"),
    [(None, 10, "pre", 11), ("nf4", 14, "pre", 11), (None, 10, "post", 5)],
)
def test_steps_of_an_adapter_move_as_many_bytes_as_torch_dispatches(
    base: str | None, summed: int, position: str, dropped: int
) -> None:
    """An element of what each step makes, as PyTorch 2.13's dispatcher shows ``y + B(A(dropout(x))) * 2`` in 16 bits.

    Forward ``native_dropout`` 2 + 2 + 1, ``mul`` 2 + 2 and ``add`` 4 + 2, beside 4 bits ``clone`` 2 + 2; backward
    ``mul`` 2 + 2, ``native_dropout_backward`` 2 + 1 + 2 and ``add`` 4 + 2 of both gradients of ``x``, which dropout of
    what is added has no part in.
    """
    adapter = {"lora_dropout": 0.1, "dropout_position": position, "base": base, "target_modules": ("o_proj",)}
    layer = llama(**adapter).block["layer"]
    eager, compiled = load_software("hf-fsdp"), load_software("torch-fsdp2")
    for step, inputs, moved in (("_lora_dropout", 1, (5, dropped)), ("_lora_add", 2, (summed, 4))):
        (op,) = (op for op in layer.ops if op.name.endswith(step))
        once = 2 * inputs + 2, 2 * 2 * inputs + 2
        found = tuple(n * each for n, each in zip(once, passes(eager, op), strict=True))
        assert found == pytest.approx(moved)
        assert passes(compiled, op) == (compiled.elementwise_passes,) * 2
