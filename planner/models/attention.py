"""The attention half of a transformer layer: projections, positions, the attention itself."""

from collections.abc import Mapping
from types import MappingProxyType

from planner.graph import BATCH
from planner.models.building import Attribute, BlockBuilder
from planner.models.config import LayerKind, TransformerConfig
from planner.models.gates import gated_heads

QKV = tuple[str, str, str]


def self_attention(b: BlockBuilder, config: TransformerConfig, kind: LayerKind, x: str) -> str:
    """Append self-attention on the normalised ``x``; returns the projected result."""
    qkv = _latent_qkv(b, config, x) if config.latent else _plain_qkv(b, config, kind, x)
    context = core_attention(
        b,
        qkv,
        causal=config.causal,
        window=config.window if kind.attention == "window" else 0,
        chunk=config.chunk if kind.attention == "chunk" else 0,
        weights=_score_weights(b, config, kind),
        capped=config.score_cap,
        habits=_habits(config),
    )
    context = gated_heads(b, config, x, _gated(b, config, context), qkv[2])
    if config.sub_norms:
        over = " ".join(b.dims(context)[2:])
        context = b.norm(
            "context_norm", context, "context_normed", style=config.norm, role="context_norm", over=over
        )
    return output_projection(b, config, context)


def _gated(b: BlockBuilder, config: TransformerConfig, context: str) -> str:
    """What attention made, times the sigmoid of the gate that was projected with the queries."""
    if not config.gated_attention:
        return context
    out = b.tensor("gated_context", *b.dims(context))
    return b.op("attention_gate", "elementwise", (context, "query_gate"), (out,), function="sigmoid")


def _habits(config: TransformerConfig) -> dict[str, Attribute]:
    """What transformers' modules of the family do otherwise than others, where they do."""
    habits: dict[str, Attribute] = {
        "narrow": config.narrow_softmax,
        "joined": config.joined_heads,
        "wide_scores": config.wide_scores,
    }
    return {name: value for name, value in habits.items() if value}


def _score_weights(b: BlockBuilder, config: TransformerConfig, kind: LayerKind) -> tuple[str, ...]:
    """Parameters that take part in the softmax: attention sinks, relative position biases."""
    sunk = config.sinks == "all" or config.sinks == kind.attention
    weights = [b.weight("sinks", _head_dims(config, kind)[0], role="sinks")] if sunk else []
    if kind.bias_table:
        weights.append(b.weight("bias_table", "buckets", "heads", role="bias_table", suffix=".weight"))
    return tuple(weights)


def _head_dims(config: TransformerConfig, kind: LayerKind) -> tuple[str, str]:
    """Dims of heads of queries, and of keys and values."""
    windowed = kind.attention == "window"
    return (
        "window_heads" if config.window_heads and windowed else "heads",
        "window_kv_heads" if config.window_kv_heads and windowed else "kv_heads",
    )


def cross_attention(b: BlockBuilder, config: TransformerConfig, x: str, memory: str) -> str:
    """Append attention from the decoder's normalised ``x`` to the encoder's ``memory``."""
    bias = config.qkv_bias
    seq, keys = b.dims(x)[1], b.dims(memory)[1]
    q = b.tensor("cross_q", BATCH, seq, "heads", "head_dim")
    wq = b.linear_weights("cross_wq", "heads", "head_dim", "hidden", role="cross_q", columns=2, bias=bias)
    b.op("cross_q", "matmul", (x,), (q,), wq)
    k = b.tensor("cross_k", BATCH, keys, "kv_heads", "head_dim")
    v = b.tensor("cross_v", BATCH, keys, "kv_heads", "head_dim")
    weights = _key_value_weights(b, config, k, v, "cross_")
    b.op("cross_kv", "matmul", (memory,), (k, v), weights)
    context = core_attention(b, (q, k, v), causal=False, prefix="cross_", habits=_habits(config))
    return output_projection(b, config, context, prefix="cross_")


def _key_value_weights(
    b: BlockBuilder, config: TransformerConfig, k: str, v: str, prefix: str = ""
) -> tuple[str, ...]:
    """Weights of the products that make keys ``k`` and values ``v``."""
    k_dims, v_dims = (*b.dims(k)[2:], "hidden"), (*b.dims(v)[2:], "hidden")
    key_bias = config.qkv_bias and config.key_bias
    return (
        *b.linear_weights(f"{prefix}wk", *k_dims, role=f"{prefix}k", columns=2, bias=key_bias),
        *b.linear_weights(f"{prefix}wv", *v_dims, role=f"{prefix}v", columns=2, bias=config.qkv_bias),
    )


def _plain_qkv(b: BlockBuilder, config: TransformerConfig, kind: LayerKind, x: str) -> QKV:
    """Queries, keys and values by three projections; key and value heads may be fewer."""
    seq = b.dims(x)[1]
    heads, kv_heads = _head_dims(config, kind)
    q = b.tensor("q", BATCH, seq, heads, "head_dim")
    k = b.tensor("k", BATCH, seq, kv_heads, "head_dim")
    v = b.tensor("v", BATCH, seq, kv_heads, "v_dim" if config.value_dim else "head_dim")
    dims = (heads, "head_dim", "hidden")
    wq = b.linear_weights("wq", *dims, role="q", columns=2, bias=config.qkv_bias)
    made, weights = [q, k, v], [*wq, *_key_value_weights(b, config, k, v)]
    if config.gated_attention:
        made.append(b.tensor("query_gate", *b.dims(q)))
        weights += b.linear_weights("w_query_gate", *dims, role="query_gate", columns=2, bias=config.qkv_bias)
    b.op("qkv", "matmul", (x,), tuple(made), tuple(weights))
    if config.qkv_clip:
        within = tuple(
            b.tensor(f"{name}_clipped", *b.dims(made)) for name, made in zip("qkv", (q, k, v), strict=True)
        )
        b.op("qkv_clip", "elementwise", (q, k, v), within)
        q, k, v = within
    if config.qk_norm != "none":
        q, k = _normalise_heads(b, config, q, k)
    if kind.rotary:
        rotated = (b.tensor("q_rotary", *b.dims(q)), b.tensor("k_rotary", *b.dims(k)))
        b.op("rotary", "elementwise", (q, k), rotated, linear=True)
        q, k = rotated
    return q, k, v


def _normalise_heads(b: BlockBuilder, config: TransformerConfig, q: str, k: str) -> tuple[str, str]:
    style = "plain" if config.qk_norm == "plain" else config.norm
    over = 2 if config.qk_norm == "full" else 3
    axes = [" ".join(b.dims(name)[over:]) for name in (q, k)]
    q = b.norm("q_norm", q, "q_normed", style=style, role="q_norm", over=axes[0])
    k = b.norm("k_norm", k, "k_normed", style=style, role="k_norm", over=axes[1])
    return q, k


ASSEMBLY_FORWARD, ASSEMBLY_BACKWARD = 7.7, 4.3
"""Passes over queries, keys and values of multi-head latent attention where they are put together kernel by kernel:
parts are cut out, rotated as complex numbers in fp32, and joined.

Source: pytorch/torchtitan pull request 4134 (August 2026): 19.160 ms forward and 15.579 backward of GB300 for 65,536
tokens of 128 heads, of which a pass takes 2.49 ms, and 3.65. Taken to be alike on other devices, in other programs too.
"""


def _latent_qkv(b: BlockBuilder, config: TransformerConfig, x: str) -> QKV:
    """Queries, keys and values of multi-head latent attention; keys share one rotary part over all heads."""
    assert config.latent is not None
    q = b.tensor("q", BATCH, "seq", "heads", "qk_dim")
    if config.latent.q_lora is None:
        weights = b.linear_weights("wq", "heads", "qk_dim", "hidden", role="q", columns=2, bias=False)
        b.op("q_up", "matmul", (x,), (q,), weights)
    else:
        q_latent = b.tensor("q_latent", BATCH, "seq", "q_lora")
        weights = b.linear_weights(
            "w_q_down", "q_lora", "hidden", role="q_down", columns=1, bias=config.qkv_bias
        )
        b.op("q_down", "matmul", (x,), (q_latent,), weights)
        normed = b.norm("q_norm", q_latent, "q_latent_normed", style="rms", role="q_norm", over="q_lora")
        weights = b.linear_weights("w_q_up", "heads", "qk_dim", "q_lora", role="q_up", columns=2, bias=False)
        b.op("q_up", "matmul", (normed,), (q,), weights)
    down = b.tensor("kv_down", BATCH, "seq", "kv_down")
    weights = b.linear_weights(
        "w_kv_down", "kv_down", "hidden", role="kv_down", columns=1, bias=config.qkv_bias
    )
    b.op("kv_down", "matmul", (x,), (down,), weights)
    latent = b.tensor("kv_latent", BATCH, "seq", "kv_lora")
    rope = b.tensor("k_rope", BATCH, "seq", "rope_dim")
    b.op("kv_split", "elementwise", (down,), (latent, rope), linear=True)
    normed = b.norm("kv_norm", latent, "kv_latent_normed", style="rms", role="kv_norm", over="kv_lora")
    up = b.tensor("kv_up", BATCH, "seq", "heads", "kv_up")
    weights = b.linear_weights("w_kv_up", "heads", "kv_up", "kv_lora", role="kv_up", columns=2, bias=False)
    b.op("kv_up", "matmul", (normed,), (up,), weights)
    outputs = (
        b.tensor("q_rotary", BATCH, "seq", "heads", "qk_dim"),
        b.tensor("k", BATCH, "seq", "heads", "qk_dim"),
        b.tensor("v", BATCH, "seq", "heads", "v_dim"),
    )
    passes: dict[str, Attribute] = {
        "eager_passes": ASSEMBLY_FORWARD,
        "eager_backward_passes": ASSEMBLY_BACKWARD,
    }
    b.op("rotary", "elementwise", (q, rope, up), outputs, (), linear=True, **passes)
    return outputs


def core_attention(
    b: BlockBuilder,
    qkv: QKV,
    *,
    causal: bool,
    window: int = 0,
    chunk: int = 0,
    weights: tuple[str, ...] = (),
    prefix: str = "",
    capped: bool = False,
    habits: Mapping[str, Attribute] = MappingProxyType({}),
) -> str:
    """Append softmax(QK')V. ``window`` and ``chunk`` limit the keys that a query sees; 0 is no limit.

    The rows' log-sum-exp and the probabilities are auxiliary: a flash kernel keeps the first, a plain one
    the second. So are the tangents of scores that are ``capped``, which a plain one keeps as well. Of modules of
    transformers ``habits`` say whether the softmax is in the training type (``narrow``), and queries ``joined``.
    """
    q, k, v = qkv
    seq, keys = b.dims(q)[1], b.dims(k)[1]
    context = b.tensor(f"{prefix}context", *b.dims(q)[:-1], b.dims(v)[-1])
    scores = (BATCH, b.dims(q)[-2], seq, f"kv_{seq}" if seq == keys else keys)
    caps = {"score_cap": b.tensor(f"{prefix}score_tangents", *scores)} if capped else {}
    b.op(
        f"{prefix}attention",
        "attention",
        (q, k, v),
        (context,),
        weights,
        causal=causal,
        window=window,
        chunk=chunk,
        kv_dim=keys,
        log_sum_exp=b.tensor(f"{prefix}log_sum_exp", *b.dims(q)[:-1], dtype="fp32"),
        probabilities=b.tensor(f"{prefix}probabilities", *scores),
        **caps,
        **habits,
    )
    return context


def output_projection(b: BlockBuilder, config: TransformerConfig, context: str, prefix: str = "") -> str:
    """Append the product that brings the heads back to ``hidden``."""
    out = b.tensor(f"{prefix}attn_projected", *b.dims(context)[:2], "hidden")
    weights = b.linear_weights(
        f"{prefix}wo", "hidden", *b.dims(context)[2:], role=f"{prefix}o", columns=1, bias=config.out_bias
    )
    return b.op(f"{prefix}attn_out", "matmul", (context,), (out,), weights)
