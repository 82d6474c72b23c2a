"""Models as the run format describes them (sizes in one flat table) -> `Model`."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

from planner.graph import count_parameters
from planner.models.config import Experts, LatentAttention, LayerKind, TransformerConfig
from planner.models.decoders import MOST_LAYERS
from planner.models.model import Model
from planner.models.reading import ConfigReader, expert_groups
from planner.models.transformer import transformer_graph

W = TypeVar("W", bound=str)

RUN_FIELDS = frozenset(
    {
        "name",
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn_hidden",
        "d_ff",
        "gated_mlp",
        "activation",
        "norm",
        "bias",
        "positions",
        "qk_norm",
        "norm_gate_rank",
        "head_gates",
        "exclusive_heads",
        "vocab",
        "seq",
        "tied",
        "experts",
        "topk",
        "expert_groups",
        "chosen_groups",
        "expert_bias",
        "moe_ffn_hidden",
        "moe_layers",
        "shared_expert_ffn",
        "shared_experts",
        "first_dense_layers",
        "mla",
        "q_lora_rank",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "mtp_layers",
        "sliding_window",
        "sliding_window_layers",
    }
)
"""Keys that shape the model; others (``params_b``, notes) inform the reader only."""

QK_NORMS: tuple[Literal["none"], Literal["head"], Literal["full"]] = ("none", "head", "full")
"""What queries and keys are normalised over: each head by itself, or all of them together."""

NORMS: tuple[Literal["rms"], Literal["layer"], Literal["layer_no_bias"]] = ("rms", "layer", "layer_no_bias")

POSITIONS: tuple[Literal["rotary"], Literal["learned"], Literal["none"]] = ("rotary", "learned", "none")
"""Queries and keys are rotated, or a table is added to the embedding; ``none`` is ALiBi, too, inside attention."""

ACTIVATIONS: tuple[
    Literal["silu"], Literal["gelu"], Literal["gelu_new"], Literal["relu"], Literal["relu2"]
] = (
    "silu",
    "gelu",
    "gelu_new",
    "relu",
    "relu2",
)

FAMILY = "transformer"
"""Family of models given by sizes alone: with gates as Llama, without as GPT, unless fields say otherwise."""


def transformer_from_run(fields: Mapping[str, Any]) -> Model:
    """The model of a run's ``model`` table. Its config keeps the fields of `RUN_FIELDS` that have a value.

    Where ``tied`` is absent, the printed number of parameters (``params_b``, 1e9) tells if there is one.

    Raises:
        InputError: a size is missing, not a positive whole number, or does not fit the others.
    """
    name = str(fields.get("name") or FAMILY)
    config = {key: value for key, value in fields.items() if key in RUN_FIELDS and value is not None}
    canonical = read_run_model(ConfigReader(config, str(fields.get("name") or "model")), name)
    printed = fields.get("params_b")
    if "tied" not in config and isinstance(printed, (int, float)):
        config["tied"] = _nearest_tying(canonical, printed * 1e9)
        canonical = canonical.model_copy(update={"tied": config["tied"]})
    return Model(
        name=name,
        family=FAMILY,
        config=config,
        parameters=_parameters(canonical),
        architecture="decoder",
        source="run file",
    )


@cache
def _parameters(config: TransformerConfig) -> int:
    """Of many runs of one model, counted once."""
    return count_parameters(transformer_graph(config, 1))


def _nearest_tying(config: TransformerConfig, printed: float) -> bool:
    """Whether tied embeddings come nearer to the printed parameters (without prediction modules)."""
    main = config.model_copy(update={"mtp_layers": 0, "tied": True})
    tied = _parameters(main)
    return abs(tied - printed) < abs(tied + config.vocab * config.hidden - printed)


def read_run_model(read: ConfigReader, name: str) -> TransformerConfig:
    """Sizes of the run format -> `TransformerConfig`.

    ``gated_mlp`` is taken as true where absent. Models without gates are GPT-like where nothing else is said, as
    Megatron-LM has them by default: tied embeddings (``--untie-embeddings-and-output-weights`` is off), learned
    positions as long as ``seq`` (``--position-embedding-type``), biases (``--disable-bias-linear`` is off),
    layer norms (``--normalization``) and GELU.
    """
    hidden, heads = read.integer("hidden"), read.integer("heads")
    if not read.has("head_dim") and hidden % heads:
        raise read.fail("hidden", f"{hidden} is not a multiple of {heads} heads, and head_dim is absent")
    kv_heads = read.integer("kv_heads", default=heads)
    if heads % kv_heads:
        raise read.fail("kv_heads", f"must divide the {heads} heads, found {kv_heads}")
    gated = read.flag("gated_mlp", default=True)
    latent = _latent(read)
    bias = read.flag("bias", default=not gated)
    positions = _word(read, "positions", POSITIONS, "rotary" if gated else "learned")
    layers = _layers(read, rotary=positions == "rotary")
    return TransformerConfig(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads if latent else kv_heads,
        head_dim=read.integer("head_dim", default=hidden // heads),
        ffn=read.integer("ffn_hidden", "d_ff") if any(k.mlp == "dense" for k in layers) else 0,
        vocab=read.integer("vocab"),
        tied=read.flag("tied", default=not gated),
        gated=gated,
        activation=_word(read, "activation", ACTIVATIONS, "silu" if gated else "gelu"),
        norm=_word(read, "norm", NORMS, "rms" if gated else "layer"),
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        positions=read.integer("seq", default=0, least=0) if positions == "learned" else 0,
        window=read.integer("sliding_window", default=0, least=0),
        experts=_experts(read),
        latent=latent,
        norm_gate=read.integer("norm_gate_rank", default=0, least=0),
        head_gates=read.flag("head_gates", default=False),
        exclusive_heads=read.flag("exclusive_heads", default=False),
        qk_norm=_word(read, "qk_norm", QK_NORMS, "none"),
        scheme="deepseek" if latent else "llama",
        mtp_layers=read.integer("mtp_layers", default=0, least=0, most=len(layers)),
    )


def _word(read: ConfigReader, key: str, known: tuple[W, ...], default: W) -> W:
    word = read.text(key, default=default)
    for choice in known:
        if word == choice:
            return choice
    raise read.fail(key, f"must be {', '.join(known[:-1])} or {known[-1]}, found {word!r}")


def _layers(read: ConfigReader, *, rotary: bool) -> tuple[LayerKind, ...]:
    count = read.integer("layers", most=MOST_LAYERS)
    windowed = 0
    if read.integer("sliding_window", default=0, least=0):
        windowed = read.integer("sliding_window_layers", default=count, least=0)
    moe = _expert_layers(read, count)
    return tuple(
        LayerKind(
            attention="window" if (i + 1) * windowed // count > i * windowed // count else "full",
            mlp="moe" if i in moe else "dense",
            rotary=rotary,
        )
        for i in range(count)
    )


def _expert_layers(read: ConfigReader, count: int) -> range:
    """Which layers have experts.

    Behind ``first_dense_layers`` dense ones; or ``moe_layers`` of them: interleaved where their number
    divides the layers (Llama 4), behind the dense ones where it does not (DeepSeek).
    """
    if not read.integer("experts", default=0, least=0):
        return range(0)
    if read.has("first_dense_layers"):
        return range(read.integer("first_dense_layers", least=0), count)
    moe = read.integer("moe_layers", default=count, least=0)
    if moe > count:
        raise read.fail("moe_layers", f"must be at most the {count} layers, found {moe}")
    if moe == 0:
        return range(0)
    if count % moe == 0:
        step = count // moe
        return range(step - 1, count, step)
    return range(count - moe, count)


def _experts(read: ConfigReader) -> Experts | None:
    count = read.integer("experts", default=0, least=0)
    if not count:
        return None
    topk = read.integer("topk")
    if topk > count:
        raise read.fail("topk", f"must be at most the {count} experts, found {topk}")
    width = read.integer("moe_ffn_hidden", "ffn_hidden")
    groups, chosen = expert_groups(read, "experts", "expert_groups", "chosen_groups")
    shared = read.integer("shared_experts", default=0, least=0) * width
    return Experts(
        count=count,
        topk=topk,
        ffn=width,
        shared_ffn=read.integer("shared_expert_ffn", default=shared, least=0),
        groups=groups,
        chosen_groups=chosen,
        bias=read.flag("expert_bias", default=False),
    )


def _latent(read: ConfigReader) -> LatentAttention | None:
    table = read.get("mla")
    if table is not None and not isinstance(table, Mapping):
        raise read.fail("mla", f"must be a table, found {table!r}")
    if table is None and not read.has("kv_lora_rank"):
        return None
    part = read if table is None else ConfigReader(table, f"{read.source}: mla")
    return LatentAttention(
        q_lora=part.integer("q_lora", "q_lora_rank", default=0, least=0) or None,
        kv_lora=part.integer("kv_lora", "kv_lora_rank"),
        nope_dim=part.integer("qk_nope", "qk_nope_head_dim"),
        rope_dim=part.integer("qk_rope", "qk_rope_head_dim"),
        value_dim=part.integer("v_dim", "v_head_dim"),
    )
