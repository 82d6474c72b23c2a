"""`TransformerConfig` -> `Graph`: embedding, layers (equal ones folded), head."""

from collections.abc import Callable, Mapping

from planner.errors import InputError
from planner.graph import BATCH, Block, Graph, Run
from planner.models.attention import self_attention
from planner.models.building import BlockBuilder, parameter_paths
from planner.models.config import LayerKind, TransformerConfig
from planner.models.ends import embedding_block, language_model_head, language_model_loss, token_embedding
from planner.models.gates import gated_norm
from planner.models.mlp import dense_mlp, mixture_of_experts
from planner.models.scans import SCANS, scan_dims

FOLLOWS = {"kv_heads": "heads"}

HeadBuilder = Callable[[TransformerConfig], Block]
"""Makes the last block, ``head``, whose input is ``x``."""


def transformer_graph(
    config: TransformerConfig,
    seq_len: int,
    head: HeadBuilder | None = None,
    head_dims: Mapping[str, int] | None = None,
) -> Graph:
    """Graph of a stack of layers between an embedding and a head (a language model's, unless given).

    Raises:
        InputError: the sequence is longer than the table of learned positions.
    """
    check_length(config, seq_len)
    names = block_names(config.layers)
    return Graph(
        name=config.name,
        dims=transformer_dims(config, seq_len) | dict(head_dims or {}),
        follows=_follows(config),
        blocks=(
            embedding_block(config),
            *(layer_block(config, kind, name) for kind, name in names.items()),
            (head or head_block)(config),
        ),
        layers=fold([names[kind] for kind in config.layers]),
        first="embedding",
        last="head",
        tied=_tied(config),
    )


def _follows(config: TransformerConfig) -> dict[str, str]:
    """Key heads are split as heads of queries are, of all layers and of those with a window."""
    if not config.window_kv_heads:
        return FOLLOWS
    return FOLLOWS | {"window_kv_heads": "window_heads" if config.window_heads else "heads"}


def _tied(config: TransformerConfig) -> tuple[tuple[str, str], ...]:
    """Pairs of weights that are one; prediction modules share embedding and head with the main model."""
    tied = [("embedding.weight", "head.weight")] if config.tied else []
    head = "embedding" if config.tied else "head"
    for module in _mtp_prefixes(config):
        tied += [
            ("embedding.weight", f"head.{module}weight"),
            (f"{head}.weight", f"head.{module}head_weight"),
        ]
    return tuple(tied)


def check_length(config: TransformerConfig, seq_len: int) -> None:
    """Refuse a sequence that the position table cannot take."""
    if seq_len <= 0:
        raise InputError(f"{config.name}: the sequence length must be positive, found {seq_len}")
    if config.max_seq and seq_len > config.max_seq:
        raise InputError(
            f"{config.name}: a sequence of {seq_len} tokens is longer than its table of {config.max_seq} "
            f"{'learned ' if config.positions else ''}positions"
        )


def block_names(layers: tuple[LayerKind, ...]) -> dict[LayerKind, str]:
    """A name for each kind of layer, from what tells the kinds apart (``layer`` when there is one)."""
    kinds = list(dict.fromkeys(layers))
    fields = [f for f in LayerKind.model_fields if len({getattr(k, f) for k in kinds}) > 1]
    words = {
        "rotary": ("unrotated", "rotary"),
        "bias_table": ("later", "first"),
        "normed": ("unnormed", "normed"),
    }
    labels = {k: [words[f][getattr(k, f)] if f in words else getattr(k, f) for f in fields] for k in kinds}
    return {k: "_".join([*(word for word in labels[k] if word != "none"), "layer"]) for k in kinds}


def fold(sequence: list[str]) -> tuple[Run, ...]:
    """Consecutive equal blocks as runs."""
    runs: list[Run] = []
    for name in sequence:
        count = 1
        if runs and runs[-1].block == name:
            count += runs.pop().count
        runs.append(Run(block=name, count=count))
    return tuple(runs)


def transformer_dims(config: TransformerConfig, seq_len: int) -> dict[str, int]:
    """Size of every dim that the config's blocks name."""
    dims = {
        "seq": seq_len,
        "kv_seq": seq_len,
        "hidden": config.hidden,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "window_heads": config.window_heads,
        "window_kv_heads": config.window_kv_heads,
        "head_dim": config.head_dim,
        "v_dim": config.value_dim,
        "ffn": config.ffn,
        "vocab": config.vocab,
        "positions": config.positions,
        "token_types": config.token_types,
        "embedding_dim": config.embedding_dim,
        "norm_gate": config.norm_gate,
        "merged": config.hidden if config.mtp_layers else 0,
    }
    if config.latent is not None:
        latent = config.latent
        dims |= {
            "q_lora": latent.q_lora or 0,
            "kv_lora": latent.kv_lora,
            "rope_dim": latent.rope_dim,
            "qk_dim": latent.nope_dim + latent.rope_dim,
            "v_dim": latent.value_dim,
            "kv_down": latent.kv_lora + latent.rope_dim,
            "kv_up": latent.nope_dim + latent.value_dim,
        }
    if config.experts is not None:
        experts = config.experts
        dims |= {
            "experts": experts.count,
            "expert_ffn": experts.ffn,
            "shared_ffn": experts.shared_ffn,
            "shared_gate": int(experts.shared_gate),
        }
    if config.scan is not None:
        dims |= scan_dims(config.scan)
    if config.experts is not None and config.experts.chosen_groups < config.experts.groups:
        dims |= {"expert_groups": config.experts.groups, "chosen_groups": config.experts.chosen_groups}
    return {name: size for name, size in dims.items() if size}


def layer_block(config: TransformerConfig, kind: LayerKind, name: str) -> Block:
    """One layer: ``x`` in, ``y`` out."""
    b = BlockBuilder(name, parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    return b.build(
        _parallel_layer(b, config, kind, x) if config.parallel else serial_layer(b, config, kind, x)
    )


def head_block(config: TransformerConfig) -> Block:
    """Final norm, vocabulary, loss; and the modules that predict later tokens, each with a layer of its own.

    Source: DeepSeek-V3, arXiv:2412.19437, section 2.2 (embedding and head are shared with the main model).
    """
    b = BlockBuilder("head", parameter_paths(config.scheme))
    x = b.receive("x", BATCH, "seq", "hidden")
    loss = language_model_head(b, config, x)
    for i, b.prefix in enumerate(_mtp_prefixes(config)):
        b.layer = str(len(config.layers) + i)
        x = _prediction_module(b, config, x)
    return b.build(loss)


def _mtp_prefixes(config: TransformerConfig) -> tuple[str, ...]:
    return tuple(f"mtp{i}_" for i in range(config.mtp_layers))


def _prediction_module(b: BlockBuilder, config: TransformerConfig, x: str) -> str:
    """Append one module of multi-token prediction; returns the state that the next one continues."""
    token = b.norm(
        "token_norm", token_embedding(b, config), "token_normed", style="rms", role="mtp_token_norm"
    )
    state = b.norm("state_norm", x, "state_normed", style="rms", role="mtp_state_norm")
    parts = []
    for name, part in (("token", token), ("state", state)):
        projected = b.tensor(f"{name}_projected", BATCH, "seq", "merged")
        weights = b.linear_weights(f"w_{name}", "merged", "hidden", role="mtp_merge", columns=1, bias=False)
        parts.append(b.op(f"{name}_projection", "matmul", (part,), (projected,), weights))
    merged = b.tensor("merged", BATCH, "seq", "hidden")
    b.op("merge", "add", (parts[0], parts[1]), (merged,))
    y = serial_layer(b, config, config.layers[-1], merged)
    normed = b.norm("final_norm", y, "final_normed", style=config.norm, role="mtp_final_norm")
    language_model_loss(b, normed, name="head_weight")
    return y


def serial_layer(b: BlockBuilder, config: TransformerConfig, kind: LayerKind, x: str) -> str:
    """Append attention or what is in its place, then the MLP, each with its residual; returns ``y``."""
    if mixes_tokens(kind):
        normed = norm_before(b, config, "attn", x) if kind.normed else x
        mixed = _mixed_tokens(b, config, kind, normed)
        x = add_residual(b, config, "attn", x, mixed, output="y" if kind.mlp == "none" else "attn_residual")
    if kind.mlp == "none":
        return x
    mixed = _mlp(b, config, kind, norm_before(b, config, "mlp", x))
    return add_residual(b, config, "mlp", x, mixed, output="y")


def mixes_tokens(kind: LayerKind) -> bool:
    """Whether a layer has more than an MLP."""
    return not kind.attention == kind.scan == "none"


def _mixed_tokens(b: BlockBuilder, config: TransformerConfig, kind: LayerKind, x: str) -> str:
    """Attention, a linear recurrence, or the sum of both."""
    if kind.scan == "none":
        return self_attention(b, config, kind, x)
    assert config.scan is not None
    scanned = SCANS[kind.scan](b, config.scan, config.activation, x)
    if kind.attention == "none":
        return scanned
    return b.add("mixers", self_attention(b, config, kind, x), scanned, "mixed")


def _parallel_layer(b: BlockBuilder, config: TransformerConfig, kind: LayerKind, x: str) -> str:
    normed = norm_before(b, config, "attn", x)
    attended = self_attention(b, config, kind, normed)
    mixed = _mlp(b, config, kind, normed if config.parallel_norms == 1 else norm_before(b, config, "mlp", x))
    h = b.add("attn_residual", x, attended, "attn_residual")
    return b.add("mlp_residual", h, mixed, "y")


def _mlp(b: BlockBuilder, config: TransformerConfig, kind: LayerKind, x: str) -> str:
    return mixture_of_experts(b, config, x) if kind.mlp == "moe" else dense_mlp(b, config, x)


def norm_before(b: BlockBuilder, config: TransformerConfig, half: str, x: str) -> str:
    """The norm at the start of the layer's ``attn`` or ``mlp`` half, where it has one."""
    if config.norm_placement in ("output", "post"):
        return x
    normed = b.norm(f"{half}_norm", x, f"{half}_normed", style=config.norm, role=f"{half}_norm")
    return gated_norm(b, config, half, normed)


def add_residual(
    b: BlockBuilder, config: TransformerConfig, half: str, x: str, result: str, *, output: str
) -> str:
    """The residual sum at the end of a half, with the norms before or after it, and the scale before."""
    if config.norm_placement in ("sandwich", "output"):
        name = f"{half}_post_norm"
        result = b.norm(name, result, f"{half}_post_normed", style=config.norm, role=name)
    if config.layer_scale:
        scale = b.weight(f"{half}_scale", "hidden", role=f"{half}_scale")
        scaled = b.tensor(f"{half}_scaled", *b.dims(result))
        result = b.op(f"{half}_scale", "elementwise", (result,), (scaled,), (scale,), function="scale")
    if config.norm_placement != "post":
        return b.add(f"{half}_residual", x, result, output)
    summed = b.add(f"{half}_residual", x, result, f"{half}_sum")
    return b.norm(f"{half}_norm", summed, output, style=config.norm, role=f"{half}_norm")
