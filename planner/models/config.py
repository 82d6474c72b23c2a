"""The canonical description of a transformer, between a configuration file and its graph."""

from typing import Literal

from pydantic import Field, model_validator

from cluster_specs.record import Record

Size = Field(gt=0)


class LayerKind(Record):
    """What one layer is made of; equal kinds share a block."""

    attention: Literal["full", "window", "chunk", "none"] = "full"
    scan: Literal["none", "delta", "ssd"] = "none"
    """A linear recurrence in place of attention, or beside it: gated delta rule, or state-space dual (Mamba-2)."""
    mlp: Literal["dense", "moe", "none"] = "dense"
    rotary: bool = True
    bias_table: bool = False
    """Holds the table of relative position biases that all layers of its stack use (T5)."""
    normed: bool = True
    """Has a norm before its attention where others of its family have one (not the first of ModernBERT)."""


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    q_lora: int | None = Field(default=None, gt=0)
    """Rank of the compressed queries; None: queries are projected directly."""
    kv_lora: int = Size
    nope_dim: int = Size
    rope_dim: int = Size
    value_dim: int = Size


class Scan(Record):
    """A linear recurrence over the sequence: heads of values with a state each, in groups that share keys and queries.

    Of the state-space dual, keys and queries are B and C, values x.
    """

    groups: int = Size
    heads: int = Size
    key_dim: int = Size
    value_dim: int = Size
    taps: int = Size
    """Of the causal convolution over keys, queries and values."""
    chunk: int = Size
    """Tokens that kernels take at once."""
    conv_bias: bool = False
    bias: bool = False
    """Of the projections in."""
    out_bias: bool = False
    norm: Literal["head", "group", "all", "none"] = "head"
    """What the norm of the result goes over; none: it is gated only."""

    @model_validator(mode="after")
    def _consistent(self) -> "Scan":
        if self.heads % self.groups:
            raise ValueError(
                f"{self.heads} heads of a recurrence are not a multiple of its {self.groups} groups"
            )
        return self


class Experts(Record):
    """The mixture that replaces a dense MLP."""

    count: int = Size
    topk: int = Size
    ffn: int = Size
    """Width of one expert."""
    shared_ffn: int = Field(default=0, ge=0)
    """Width of the experts that every token passes, together."""
    shared_gate: bool = False
    """The shared experts' result is weighted by a learned gate of one logit."""
    bias: bool = False
    """Experts and router have biases."""
    norm: bool = False
    """What routed and shared experts make together passes a norm (A.X K1)."""
    groups: int = Field(default=1, gt=0)
    """Groups that the experts are in, one after the other."""
    chosen_groups: int = Field(default=1, gt=0)
    """Groups that a token's experts are in."""

    @model_validator(mode="after")
    def _consistent(self) -> "Experts":
        if self.chosen_groups > self.groups or self.count % self.groups:
            raise ValueError(
                f"{self.chosen_groups} of {self.groups} groups do not divide {self.count} experts"
            )
        if self.topk > self.count:
            raise ValueError(f"{self.topk} experts per token are more than the {self.count} experts")
        return self


class TransformerConfig(Record):
    """A stack of attention and MLP layers between an embedding and a language-model head."""

    name: str
    scheme: str = "llama"
    """Key of ``parameter_paths.toml``."""
    layers: tuple[LayerKind, ...] = Field(min_length=1)
    hidden: int = Size
    heads: int = Size
    kv_heads: int = Size
    head_dim: int = Size
    value_dim: int = Field(default=0, ge=0)
    """Width of a head's values where it is not ``head_dim`` (MiMo V2); 0: it is."""
    window_heads: int = Field(default=0, ge=0)
    """Heads of queries in layers with a window, where these have others (Laguna); 0: as many."""
    window_kv_heads: int = Field(default=0, ge=0)
    """Heads of keys and values in them, where they or their queries have others (MiMo V2); 0: as many."""
    ffn: int = Field(ge=0)
    """Width of a dense MLP; 0 where every layer has experts."""
    vocab: int = Size
    tied: bool = False
    causal: bool = True
    window: int = Field(default=0, ge=0)
    """Keys that a query of a ``window`` layer sees: up to its own, or of both sides where none is ``causal``."""
    chunk: int = Field(default=0, ge=0)
    """Length of the chunks that a ``chunk`` layer attends within."""
    gated: bool = True
    activation: str = "silu"
    norm: Literal["rms", "rms_wide", "layer", "layer_no_bias", "plain"] = "rms"
    norm_placement: Literal["pre", "sandwich", "output", "post"] = "pre"
    """``sandwich``: before and after (Gemma 2); ``output``: after, inside the residual (OLMo 2);
    ``post``: after the residual (BERT)."""
    layer_scale: bool = False
    """What each half adds to the residual is multiplied by a vector that learns (DINOv2)."""
    final_norm: bool = True
    parallel: bool = False
    """Attention and MLP read the same residual and are added together."""
    parallel_norms: Literal[1, 2] = 1
    qk_norm: Literal["none", "head", "full", "plain"] = "none"
    """Over each head, over all heads, or over each head without weights."""
    joined_heads: bool = False
    """Transformers puts rotated and other parts of heads together (Phi, GPT-NeoX)."""
    narrow_softmax: bool = False
    """Transformers' plain attention takes the softmax in the training type, not in fp32."""
    wide_scores: bool = False
    """Its products of queries and keys are taken in fp32, of copies that these keep (GPT-Neo, GPT-J)."""
    narrow_loss: bool = False
    """Its class takes the loss of logits in the training type."""
    score_cap: bool = False
    """Attention's scores pass a tanh before their softmax (Gemma 2)."""
    logit_cap: bool = False
    """So do the logits before their loss."""
    gated_attention: bool = False
    """What attention makes is multiplied by a gate that is projected beside the queries (Qwen3-Next)."""
    norm_gate: int = Field(default=0, ge=0)
    """Rank of the products whose sigmoid multiplies what norms before a half, or the head, make; 0: none (Grug)."""
    head_gates: bool = False
    """What each head makes is multiplied by a gate, of one logit (Grug)."""
    exclusive_heads: bool = False
    """What each head makes loses its part along the value of its own token (Grug)."""
    sinks: Literal["none", "window", "all"] = "none"
    """One learned logit per head takes part in the softmax: in layers with a window, or in all."""
    qkv_clip: bool = False
    """Queries, keys and values are kept within a bound (DBRX, OLMo 1)."""
    sub_norms: bool = False
    """What heads make, and what the activation of a dense MLP makes, is normed before it is projected (BitNet)."""
    qkv_bias: bool = False
    key_bias: bool = True
    """Keys have a bias where queries and values do (not in Whisper)."""
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    positions: int = Field(default=0, ge=0)
    """Rows of a learned position table; 0: none."""
    max_seq: int = Field(default=0, ge=0)
    """Longest sequence that the position table takes; 0: no limit."""
    token_types: int = Field(default=0, ge=0)
    """Rows of a table of segment vectors (BERT); 0: none."""
    embedding_dim: int = Field(default=0, ge=0)
    """Width of the token table where it is not ``hidden`` (OPT-350m); 0: hidden."""
    widened_last: bool = False
    """Vectors of a narrow table become ``hidden`` wide behind positions and norm, not before them (ELECTRA)."""
    embedding_norm: bool = False
    mtp_layers: int = Field(default=0, ge=0)
    """Modules of multi-token prediction behind the layers (DeepSeek-V3, arXiv:2412.19437, section 2.2)."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    scan: Scan | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "TransformerConfig":
        windowed = (self.window_heads or self.heads, self.window_kv_heads or self.kv_heads)
        for heads, kv_heads in ((self.heads, self.kv_heads), windowed):
            if heads % kv_heads:
                raise ValueError(f"{heads} heads are not a multiple of {kv_heads} key-value heads")
        if self.window_heads and not self.window_kv_heads:
            raise ValueError("layers with heads of their own need the number of their key-value heads")
        kinds = set(self.layers)
        if any(k.mlp == "moe" for k in kinds) and self.experts is None:
            raise ValueError("layers have experts, but the experts are not described")
        if any(k.scan != "none" for k in kinds) and self.scan is None:
            raise ValueError("layers have a linear recurrence that is not described")
        if any(k.mlp == k.attention == k.scan == "none" for k in kinds):
            raise ValueError("a layer needs attention, a linear recurrence or an MLP")
        if any(k.mlp == "dense" for k in kinds) and not self.ffn:
            raise ValueError("dense layers need the width of their MLP")
        if any(k.attention == "window" for k in kinds) and not self.window:
            raise ValueError("layers with a sliding window need its length")
        if any(k.attention == "chunk" for k in kinds) and not self.chunk:
            raise ValueError("layers with chunked attention need the chunk's length")
        return self
