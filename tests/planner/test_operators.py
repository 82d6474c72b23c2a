"""Rules of operators: what may be split, what is partial, what survives until the backward pass."""

import pytest

from planner.errors import Unsupported
from planner.graph import Block, Graph, Op, Tensor
from planner.models.catalog import build_graph, list_models, load_model, sequence_length, transformer_from_run
from planner.operators import (
    OPERATORS,
    RECOMPUTE_POLICIES,
    AttentionKernel,
    op_flops,
    operator_rule,
    recomputed_ops,
    recomputed_shares,
    saved_tensors,
)

BYTES = {"compute": 2, "fp32": 4, "int32": 4, "bool": 1}


def shipped_graph(name: str, seq_len: int = 256) -> Graph:
    model = load_model(name)
    return build_graph(model, sequence_length(model) or seq_len)


def layer_of(name: str, seq_len: int = 256) -> tuple[Graph, Block]:
    graph = shipped_graph(name, seq_len)
    return graph, graph.block[graph.sequence[-1]]


def op_named(block: Block, name: str) -> Op:
    return next(op for op in block.ops if op.name == name)


def saved_bytes(graph: Graph, block: Block, policy: str, kernel: AttentionKernel) -> float:
    """Bytes kept for one sequence in bf16, moments of norms and log-sum-exps left out."""
    names = saved_tensors(block, policy, kernel)
    tensors = [block.tensor[n] for n in names if not n.endswith(("_statistics", "log_sum_exp"))]
    return sum(BYTES[t.dtype] * graph.elements(t) for t in tensors)


@pytest.fixture
def gpt() -> tuple[Graph, Block]:
    """One layer of a GPT with h = 1024, a = 16, s = 512."""
    model = transformer_from_run(
        {"layers": 1, "hidden": 1024, "heads": 16, "ffn_hidden": 4096, "vocab": 1000, "gated_mlp": False}
    )
    graph = build_graph(model, 512)
    return graph, graph.block["layer"]


def test_activations_of_a_gpt_layer_match_the_published_formula(gpt: tuple[Graph, Block]) -> None:
    """sbh (34 + 5 a s / h) bytes, less dropout.

    Dropout's share is 2 sbh of masks after attention and MLP, and 3 a s^2 b of mask and result inside
    attention. Source: Korthikanti et al., arXiv:2205.05198, section 4.1.
    """
    graph, block = gpt
    s, h, a = 512, 1024, 16
    assert saved_bytes(graph, block, "none", "plain") == 32 * s * h + 2 * a * s * s
    assert saved_bytes(graph, block, "none", "flash") == 32 * s * h
    assert saved_bytes(graph, block, "attention", "plain") == 32 * s * h
    assert saved_bytes(graph, block, "full", "plain") == 2 * s * h


def test_flash_attention_keeps_one_float_per_row(gpt: tuple[Graph, Block]) -> None:
    graph, block = gpt
    assert "log_sum_exp" in saved_tensors(block, "none", "flash")
    assert graph.elements(block.tensor["log_sum_exp"]) == 512 * 16
    assert block.tensor["log_sum_exp"].dtype == "fp32"
    assert "log_sum_exp" not in saved_tensors(block, "none", "plain")
    assert "probabilities" not in saved_tensors(block, "none", "flash")


@pytest.mark.parametrize("policy", ["selective", "mlp", "alternate"])
def test_scores_are_on_no_list_of_results(gpt: tuple[Graph, Block], policy: str) -> None:
    """MaxText's policies keep arrays by name, torchtitan's results of aten.mm: neither has scores."""
    _, block = gpt
    assert "probabilities" not in saved_tensors(block, policy, "plain")
    assert [op.kind for op in block.ops if op.name in recomputed_ops(block, policy, "plain")].count(
        "attention"
    ) == 1
    assert not [op for op in block.ops if op.kind == "attention" and op.name in recomputed_ops(block, policy)]


def test_llama_layer_keeps_each_tensor_once() -> None:
    _, block = layer_of("llama-3-8b")
    kept = saved_tensors(block, "none")
    assert [name for name in kept if not name.endswith("_statistics")] == [
        "x",
        "attn_normed",
        "v",
        "q_rotary",
        "k_rotary",
        "context",
        "log_sum_exp",
        "attn_residual",
        "mlp_normed",
        "up",
        "gate",
        "activated",
    ]
    assert recomputed_ops(block, "none") == ()


def test_separate_kernels_keep_the_activated_gate() -> None:
    _, block = layer_of("llama-3-8b")
    fused = set(saved_tensors(block, "none"))
    separate = set(saved_tensors(block, "none", fused_activation=False))
    assert separate - fused == {"activated_gate"}
    assert set(saved_tensors(block, "full", fused_activation=False)) == {"x"}


def test_full_recomputation_repeats_all_but_the_end_of_a_block() -> None:
    """Torch's checkpoint stops once the last saved tensor is back: the last product is not repeated."""
    _, block = layer_of("llama-3-8b")
    assert saved_tensors(block, "full") == ("x",)
    names = [op.name for op in block.ops]
    assert recomputed_ops(block, "full") == tuple(names[: names.index("down")])


def test_a_norm_behind_the_last_product_makes_it_repeat() -> None:
    _, block = layer_of("gemma-2-9b")
    assert "down" in recomputed_ops(block, "full")


def test_selective_recomputation_repeats_no_product() -> None:
    _, block = layer_of("llama-3-8b")
    repeated = recomputed_ops(block, "selective")
    assert repeated == ("attn_norm", "rotary", "attn_residual", "mlp_norm", "activation")
    assert {operator_rule(op_named(block, name)).arithmetic for name in repeated} == {"memory"}
    assert {"q", "k", "v", "context", "gate", "up"} <= set(saved_tensors(block, "selective"))


def test_the_policy_of_products_repeats_attention_too() -> None:
    """jax.checkpoint_policies.dots_with_no_batch_dims_saveable."""
    _, block = layer_of("llama-3-8b")
    kept = set(saved_tensors(block, "products"))
    assert "attention" in recomputed_ops(block, "products")
    assert kept == {"x", "q", "k", "v", "attn_projected", "gate", "up"}


def test_kept_projections_and_heads_leave_attention_to_run_again() -> None:
    """Names that MaxText saves: query_proj, key_proj and value_proj, which rotate first, and out_proj."""
    _, block = layer_of("llama-3-8b")
    rest = ("attn_norm", "attention", "attn_residual", "mlp_norm", "gate_up", "activation")
    assert recomputed_ops(block, "projections") == rest
    assert recomputed_ops(block, "heads") == (*rest[:2], "attn_out", *rest[2:])
    assert set(saved_tensors(block, "heads")) == {"x", "q_rotary", "k_rotary", "v"}
    assert set(saved_tensors(block, "projections")) == {"x", "q_rotary", "k_rotary", "v", "attn_projected"}


def test_norms_of_heads_need_what_was_projected_once_more() -> None:
    """MaxText names queries and keys after their norms, whose gradients read them as they were before."""
    _, block = layer_of("qwen3-8b")
    assert {"qkv", "q_norm", "k_norm"} < set(recomputed_ops(block, "projections"))
    assert not {"q", "k"} & set(saved_tensors(block, "projections"))


def test_the_mlp_policy_repeats_all_of_a_layer_of_experts_but_its_last_product() -> None:
    """Megatron's ``--recompute-modules moe``: the layer of experts is one checkpoint, its router and exchange in it."""
    _, block = layer_of("mixtral-8x7b")
    again = {"router", "dispatch", "expert_gate_up", "expert_activation"}
    assert again < set(recomputed_ops(block, "mlp"))
    assert not {"qkv", "attention", "attn_out"} & set(recomputed_ops(block, "mlp"))
    assert set(saved_tensors(block, "mlp")) == {
        "x",
        "q",
        "k",
        "v",
        "context",
        "log_sum_exp",
        "attn_projected",
    }


def test_the_alternate_policy_keeps_every_second_product() -> None:
    """torchtitan counts products: q is kept, k not, v, then not the projection, gate, not up, down."""
    graph, block = layer_of("llama-3-8b")
    kept = set(saved_tensors(block, "alternate", stores_listed=True))
    assert kept == {"x", "q", "v", "context", "log_sum_exp", "gate", "mlp_out"}
    shares = recomputed_shares(graph, block, "alternate")
    assert {name: shares[name] for name in ("qkv", "attn_out", "gate_up")} == pytest.approx(
        {"qkv": 1 / 6, "attn_out": 1.0, "gate_up": 0.5}
    )


def test_grouped_products_of_experts_are_on_no_list() -> None:
    """pytorch/torchtitan@f3748d8: deepseek_v3 and llama4 list what is exchanged, qwen3 not even that."""
    _, block = layer_of("qwen3-30b-a3b")
    kept, local = (set(saved_tensors(block, policy)) for policy in ("alternate", "alternate_local"))
    assert kept - local == {"routed", "routing"}
    assert not {name for name in local if "experts" in block.tensor[name].dims}


def test_lists_find_results_of_attention_alone_inside_compiled_parts() -> None:
    """What PyTorch 2.13 shows a policy of a submodule that inductor compiled: ``aten.mm.out``, which is not listed."""
    _, block = layer_of("qwen3-30b-a3b")
    kept, full = (set(saved_tensors(block, policy)) for policy in ("all_but_attention", "full"))
    assert kept - full == {"context", "log_sum_exp"}


def test_heads_are_made_again_from_latents() -> None:
    """Megatron's mla_up_proj; without latents there is nothing to make again."""
    _, block = layer_of("deepseek-v2-lite-16b")
    everything, kept = (set(saved_tensors(block, policy)) for policy in ("none", "latent"))
    of_heads = {name for name in everything if "heads" in block.tensor[name].dims}
    assert everything - kept == of_heads - {"context", "log_sum_exp"}
    _, dense = layer_of("llama-3-8b")
    assert saved_tensors(dense, "latent") == saved_tensors(dense, "none")


def test_what_is_listed_is_stored_read_or_not() -> None:
    """torch 2.13 FSDPMemTracker: the result of the last product, which no backward reads, is kept as well."""
    _, block = layer_of("llama-3-8b")
    read, stored = (set(saved_tensors(block, "selective", stores_listed=s)) for s in (False, True))
    assert stored - read == {"mlp_out"}
    assert saved_tensors(block, "full", stores_listed=True) == saved_tensors(block, "full")


def test_attention_policy_repeats_only_attention() -> None:
    _, block = layer_of("llama-3-8b")
    assert recomputed_ops(block, "attention", "plain") == ("attention",)
    assert "probabilities" not in saved_tensors(block, "attention", "plain")


def test_selective_recomputation_exchanges_no_tokens_again() -> None:
    _, block = layer_of("mixtral-8x7b")
    repeated = recomputed_ops(block, "selective")
    assert "expert_activation" in repeated
    assert not {"dispatch", "combine"} & set(repeated)
    assert "routed" in saved_tensors(block, "selective")


def test_unfolded_loss_keeps_fp32_probabilities() -> None:
    graph = shipped_graph("llama-3-8b")
    head = graph.block["head"]
    assert "log_probabilities" in saved_tensors(head, "none")
    assert head.tensor["log_probabilities"].dtype == "fp32"
    assert "logits" not in saved_tensors(head, "none")


def test_encoder_result_is_kept_once_not_by_every_layer() -> None:
    _, block = layer_of("t5-small")
    assert "memory" in block.outputs
    assert "memory" not in saved_tensors(block, "none")


@pytest.mark.parametrize("policy", RECOMPUTE_POLICIES)
@pytest.mark.parametrize("name", list_models())
def test_policies_keep_enough_and_no_weights(name: str, policy: str) -> None:
    """Kept tensors and repeated operators together give back all that the backward pass reads."""
    graph = shipped_graph(name)
    for block in graph.blocks:
        kept = set(saved_tensors(block, policy))
        again = [op for op in block.ops if op.name in recomputed_ops(block, policy)]
        assert all(block.tensor[t].role != "weight" for t in kept)
        have = kept | set(block.outputs) & set(block.inputs)
        for op in again:
            missing = set(op.inputs) - have
            assert not missing, (block.name, op.name, missing)
            have |= {*op.outputs, *operator_rule(op).saved(op, block, "flash")}
        reads = {t for op in block.ops for t in operator_rule(op).saved(op, block, "flash")}
        assert reads <= have


@pytest.mark.parametrize("name", list_models())
def test_policies_are_ordered_by_memory(name: str) -> None:
    graph, block = layer_of(name)
    everything = saved_bytes(graph, block, "none", "flash")
    assert saved_bytes(graph, block, "full", "flash") <= saved_bytes(graph, block, "attention", "flash")
    assert saved_bytes(graph, block, "attention", "flash") <= everything


@pytest.mark.parametrize("name", list_models())
def test_every_operator_has_a_rule_and_splits_dims_it_has(name: str) -> None:
    graph = shipped_graph(name)
    for block in graph.blocks:
        for op in block.ops:
            rule = operator_rule(op)
            used = {d for n in (*op.inputs, *op.weights, *op.outputs) for d in block.tensor[n].dims}
            produced = {d for n in op.outputs for d in block.tensor[n].dims}
            assert set(rule.splittable(op, block, graph)) <= {graph.follows.get(d, d) for d in used}
            assert not set(rule.contracted(op, block)) & produced
            assert set(rule.saved(op, block, "plain")) <= set(block.tensor)
            flops = op_flops(op, block, graph)
            assert (flops.forward > 0) == (rule.arithmetic != "memory")


SPLITS = [
    ("llama-3-8b", "qkv", {"batch", "seq", "hidden", "heads"}, {"hidden"}),
    ("llama-3-8b", "attn_out", {"batch", "seq", "hidden", "heads"}, {"heads", "head_dim"}),
    ("llama-3-8b", "attention", {"batch", "seq", "heads"}, set()),
    ("llama-3-8b", "rotary", {"batch", "seq", "heads"}, set()),
    ("llama-3-8b", "attn_norm", {"batch", "seq"}, set()),
    ("llama-3-8b", "attn_residual", {"batch", "seq", "hidden"}, set()),
    ("llama-3-8b", "gate_up", {"batch", "seq", "hidden", "ffn"}, {"hidden"}),
    ("llama-3-8b", "down", {"batch", "seq", "hidden", "ffn"}, {"ffn"}),
    ("qwen3-8b", "q_norm", {"batch", "seq", "heads"}, set()),
    ("qwen3-8b", "k_norm", {"batch", "seq", "heads"}, set()),
    ("mixtral-8x7b", "router", {"batch", "seq", "hidden", "experts"}, {"hidden"}),
    ("mixtral-8x7b", "dispatch", {"batch", "seq", "experts", "hidden"}, set()),
    ("mixtral-8x7b", "expert_down", {"batch", "seq", "experts", "hidden", "expert_ffn"}, {"expert_ffn"}),
    ("mixtral-8x7b", "combine", {"batch", "seq", "experts", "hidden"}, {"experts"}),
    ("deepseek-v3", "kv_up", {"batch", "seq", "heads", "kv_lora"}, {"kv_lora"}),
    ("deepseek-v3", "kv_norm", {"batch", "seq"}, set()),
    ("deepseek-v3", "attn_out", {"batch", "seq", "heads", "hidden"}, {"heads", "v_dim"}),
]


@pytest.mark.parametrize(("model", "name", "splittable", "contracted"), SPLITS)
def test_splittable_and_contracted_dims(
    model: str, name: str, splittable: set[str], contracted: set[str]
) -> None:
    graph, block = layer_of(model)
    op = op_named(block, name)
    assert set(operator_rule(op).splittable(op, block, graph)) == splittable
    assert set(operator_rule(op).contracted(op, block)) == contracted


def test_vocabulary_splits_embedding_and_loss() -> None:
    graph = shipped_graph("llama-3-8b")
    for block_name, op_name in (("embedding", "embedding"), ("head", "loss")):
        block = graph.block[block_name]
        op = op_named(block, op_name)
        assert "vocab" in operator_rule(op).splittable(op, block, graph)
        assert operator_rule(op).contracted(op, block) == ("vocab",)


def test_unknown_operator_is_an_error() -> None:
    block = Block(
        name="b",
        tensors=(Tensor(name="x", dims=("batch",)), Tensor(name="y", dims=("batch",))),
        ops=(Op(name="twist", kind="fft", inputs=("x",), outputs=("y",)),),
        inputs=("x",),
        outputs=("y",),
    )
    with pytest.raises(Unsupported, match="operator 'twist' has kind 'fft', which has no rule"):
        saved_tensors(block, "none")


def test_unknown_policy_is_an_error() -> None:
    _, block = layer_of("llama-3-8b")
    with pytest.raises(Unsupported, match="recompute policy 'some' is unknown; use one of none, full"):
        recomputed_ops(block, "some")


def test_every_kind_occurs_in_a_shipped_model() -> None:
    kinds = {op.kind for name in list_models() for block in shipped_graph(name).blocks for op in block.ops}
    assert kinds == set(OPERATORS) - {"product", "recurrence", "view"}  # of traced models only


def test_a_changed_copy_of_a_block_keeps_what_its_own_operators_read() -> None:
    """Answers are kept with the block that was asked; a copy of other operators is another block."""
    block = build_graph(load_model("llama-3.2-1b"), 128).block["layer"]
    whole = set(saved_tensors(block, "none"))
    front = block.model_copy(update={"ops": block.ops[:3]})
    assert set(saved_tensors(front, "none")) < whole
    assert set(front.producer) < set(block.producer)
    assert set(saved_tensors(block, "none")) == whole
