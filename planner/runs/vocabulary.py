"""What the words of published runs mean in ours: tables of patterns, tried in order.

Sources differ in spelling and in how much they say. A `Meaning` that is not exact is reported as an
assumption; a word that has no meaning here is refused: a guess would be scored as if it had been measured.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cluster_specs.errors import InputError
from planner.pipeline import generators


class Meaning(NamedTuple):
    """What a text stands for."""

    value: str
    exact: bool = True
    """False where the text leaves something open, or our nearest notion is not quite it."""


class ShardingMeaning(NamedTuple):
    """What a sharding text says about the data-parallel ranks."""

    zero_stage: int | None
    """None where ``zero_stage`` must say it."""
    hybrid: bool = False
    """States are sharded inside a group and replicated across groups."""
    exact: bool = True


Table = Sequence[tuple[str, Meaning | None]]

PRECISIONS: Table = (
    (r"bf16|fp16|fp8|fp4|fp32", Meaning("")),
    (r"bf16 \(assumed\)|fp16/bf16", Meaning("bf16", exact=False)),
    (r"fp8-(cs|mx|ds|tensorwise|rowwise)|mxfp8", Meaning("fp8", exact=False)),
    (r"tf32", Meaning("fp32", exact=False)),
    (r"nvfp4", Meaning("fp4", exact=False)),
    (r".*(mxfp4|fp8-or-|int8|int4).*", None),
    (r".*fp4.*", Meaning("fp4", exact=False)),
    (r".*fp8.*", Meaning("fp8", exact=False)),
    (r".*(bf16|bfloat16).*", Meaning("bf16", exact=False)),
    (r".*(fp16|float16).*|half|16(-mixed|-true)?", Meaning("fp16", exact=False)),
    (r"float32|32(-true)?", Meaning("fp32")),
)
"""``precision``; an empty value stands for the text itself, None for what has no equivalent."""

RECOMPUTES: Table = (
    (r"none|full|attention", Meaning("")),
    (r"none \(.*\)|unspecified|off|no|false|disabled|everything_saveable", Meaning("none", exact=False)),
    (
        r"full (ac|remat|activation checkpointing)|full \(uniform.*\)|granular full|uniform|block|yes|on|true|enabled|"
        r"ac|(activation|gradient)[- _]checkpointing|nothing_saveable",
        Meaning("full", exact=False),
    ),
    (r"dots_nobatch|dots_with_no_batch_dims_saveable", Meaning("products")),
    (r"dots_saveable|checkpoint_dots", Meaning("products", exact=False)),
    (r"core[- _]attn|selective (attention|\((core )?attention\))", Meaning("attention")),
    (r"(per-)?op([- ]sac)?|sac|selective ac", Meaning("alternate", exact=False)),
    (r"selective[- ]layer ?\(every \d+(st|nd|rd|th)\)", Meaning("full")),
    (
        r"((full|selective)[ ,(]+)?every (\d+(st|nd|rd|th)|other|n-?th) layer(, ac)?\)?",
        Meaning("full", exact=False),
    ),
    (r"selective[-_]op", Meaning("alternate")),
    (r"selective[-_]op without exchange", Meaning("alternate_local")),
    (r"selective[-_]op (of compiled parts|without products of fp4)", Meaning("all_but_attention")),
    (r"selective([-_]op_all)?", Meaning("selective")),
    (r"selective:mla_up_proj", Meaning("latent")),
    (r"selective:moe_act", Meaning("none", exact=False)),
    (r"selective:(mlp|layernorm\+moe|moe)", Meaning("mlp", exact=False)),
    (r"selective:core_attn", Meaning("attention")),
    (r"selective:[\w+-]*(mlp|moe)(?!_act|-act)[\w+-]*", Meaning("mlp", exact=False)),
    (r"selective:[\w+-]*core_attn[\w+-]*", Meaning("attention", exact=False)),
    (r"selective:[\w+-]*(norm|act)[\w+-]*( \(.*\))?", Meaning("selective", exact=False)),
    (r"save_dot_with_context_except_mlp", Meaning("mlp")),
    (r"save_dot_except_mlp(wi)?", Meaning("projections")),
    (r"save_qkv_proj|qkv_proj_offloaded", Meaning("heads")),
    (r"save_(dot|qkv|out).*", Meaning("full", exact=False)),
    (r"custom: .*(q/k/v/out_proj|attention projections) offload", Meaning("projections")),
    (r"custom: .*q/k/v_proj offload", Meaning("heads")),
    (r"minimal", Meaning("products")),
    (r"minimal_(flash|with_context)", Meaning("selective")),
    (r"minimal.*", Meaning("selective", exact=False)),
    (r"custom.*|.*offload.*", Meaning("full", exact=False)),
)
"""``recompute``; to keep a few tensors of a block counts as ``full``, to drop a few as ``none``."""

UNSAID = (None, "unspecified", "custom remat policy")
"""``recompute`` where the source does not say, or no more than that it is its own."""

DENSE_MLP = r"selective:(mla_up_proj\+)?mlp"
"""Recomputes feed-forward layers without experts, of which mixtures have few or none, and at most a few tensors more.

Source: NVIDIA/Megatron-LM ``--recompute-modules``: ``mlp`` is the dense MLP, ``moe`` the layer of experts.
"""

SCHEDULES: Table = (
    (r"1f1b( \(non-interleaved\))?", Meaning("1f1b")),
    (r"gpipe|afab|all[ -]forward[ -]all[ -]backward", Meaning("gpipe")),
    (r"1f1b/interleaved.*", Meaning("interleaved", exact=False)),
    (r"interleaved[ -]?1f1b|1f1b[- ]i(nterleaved)?(-vpp\d+)?|interleaved|vpp", Meaning("interleaved")),
    (r"interleaved \(.*\)|virtual pipeline", Meaning("interleaved", exact=False)),
    (r"non-interleaved", Meaning("1f1b", exact=False)),
    (r"1f1b vocab-method=(baseline|redis)", Meaning("1f1b", exact=False)),
    (r"1f1b vocab-method=.*", None),
    (r"zb-?1p|zb-?h1|zero[- ]?bubble", Meaning("zb-h1", exact=False)),
    (r"zb-?2p|zb-?h2", Meaning("zb-h2", exact=False)),
    (r"zb-?v(-formatted)?", Meaning("zb-v", exact=False)),
    (r"interleaved[ -]?(zb|zero-?bubble)", Meaning("interleaved-zb")),
    (r"interleavedzerobubble", Meaning("interleaved-zb")),
    (r"zbvzerobubble", Meaning("zb-v")),
    (r"dualpipe-?v", Meaning("dualpipev")),
    (r"(looped[ -]?)?(bfs|breadth[ -]first)", Meaning("breadth-first")),
    (r"(looped[ -]?)?(dfs|depth[ -]first)", Meaning("interleaved")),
    (r"dapple|pipedream[ -]flush", Meaning("1f1b")),
    (r"eager[ -]1f1b", Meaning("eager-1f1b")),
    ("|".join(map(re.escape, generators.SCHEDULES)), Meaning("")),
)
"""``schedule``, in lower case; ours by their own names."""

OPTIMIZERS: Table = (
    (r"adamw?(_?(foreach|fused))?", Meaning("adamw")),
    (r"sgd", Meaning("plain-sgd")),
    (r"sgd[-_ ]momentum", Meaning("sgd")),
    (r"plain-sgd|adafactor|muon|adamw8bit", Meaning("")),
    (r"adamw?_?8bit|8-?bit[-_ ]adamw?", Meaning("adamw8bit")),
    (r"adamw_bnb_8bit", Meaning("adamw_bnb_8bit")),
    (r"(paged[-_ ])?adamw?[-_ ](bnb[-_ ])?8-?bit", Meaning("adamw_bnb_8bit", exact=False)),
    (r"lion|lars", Meaning("sgd", exact=False)),
    (r"lamb|sophia|(?!.*8-?bit).*adamw?(?![a-z]).*", Meaning("adamw", exact=False)),
)
"""``optim``; SGD without a word more has no momentum (PyTorch ``torch.optim.SGD``, optax ``sgd``). What keeps as many
states of a weight as another, and differs in a few element-wise operations, counts as that."""

DTYPES: Table = (
    (r"fp32|float32", Meaning("fp32")),
    (r"bf16|bfloat16", Meaning("bf16")),
    (r"fp16|float16", Meaning("bf16", exact=False)),
)
"""Types of gradients and master weights; fp16 has the size of bf16."""

ATTENTIONS: Table = (
    (r"native|(fa|flash[-_ ]?(attn|attention)?)[-_ ]?[34]|cudnn.*|splash.*", Meaning("native")),
    (r"(fa|flash[-_ ]?(attn|attention)?)[-_ ]?1", Meaning("flash-1")),
    (r"(fa|flash[-_ ]?(attn|attention)?)[-_ ]?2", Meaning("flash-2")),
    (r"flash.*|fused|sdpa", Meaning("flash")),
    (r"dot(_product)?|plain|eager|unfused|math|naive|vanilla|core", Meaning("plain")),
    (
        r"flex([-_ ]?attention)?|xformers|te|memory[-_ ]efficient|autoselected",
        Meaning("flash", exact=False),
    ),
    (r"(?!.*(no |not |non-|without |un)).*(flash|fused|cudnn).*", Meaning("flash", exact=False)),
)
"""``attention`` or ``attn``; kernels of one generation of devices are ``native`` there, and the first
two versions of FlashAttention have rates of their own."""

AUTOMATIC = r"Alpa .*|heuristic .*|GSPMD|auto|AutoDist.*"
"""``sharding`` where an optimiser or rules chose it."""

SHARDINGS: Sequence[tuple[str, ShardingMeaning]] = (
    (r"FULL_SHARD|FSDP2? \(reshard after fwd\)|DeepSpeed ZeRO-3.*|Megatron-FSDP", ShardingMeaning(3)),
    (r"((torch|pytorch) )?FSDP[12]?|fully_shard", ShardingMeaning(3, exact=False)),
    (r"FSDP2? \(no reshard.*\)|SHARD_GRAD_OP", ShardingMeaning(2)),
    (r"HYBRID_SHARD|HSDP", ShardingMeaning(3, hybrid=True)),
    (r"_?HYBRID_SHARD_ZERO2", ShardingMeaning(2, hybrid=True)),
    (r"NO_SHARD|DDP|none|ZeRO-?0", ShardingMeaning(0)),
    (r"(MaxText )?FSDP=\d+ x DP=\d+|FSDP across .*", ShardingMeaning(3, hybrid=True)),
    (r"ZeRO-1 within groups of \d+.*", ShardingMeaning(1, hybrid=True)),
    (r"distributed[- _]optimizer.*|(DeepSpeed )?ZeRO[- ]?1.*", ShardingMeaning(1)),
    (r"(DeepSpeed )?ZeRO[- ]?2.*", ShardingMeaning(2)),
    (r"ZeRO[- ]?3.*", ShardingMeaning(3)),
    (AUTOMATIC, ShardingMeaning(None, exact=False)),
)
"""``sharding``: PyTorch's names and what else sources print."""

SHARDING_NAMES: Mapping[int, str] = {0: "NO_SHARD", 1: "NO_SHARD", 2: "SHARD_GRAD_OP", 3: "FULL_SHARD"}
"""PyTorch's name by ZeRO stage; it has none for stage 1, where every rank has whole weights."""


def mean(table: Table, field: str, text: str) -> Meaning:
    """Meaning of ``text``; ``InputError`` where the table has none or says that there is no equivalent."""
    for pattern, meaning in table:
        if re.fullmatch(pattern, text, re.IGNORECASE):
            if meaning is None:
                raise InputError(f"{field} {text!r} has no equivalent here")
            return meaning if meaning.value else meaning._replace(value=text.lower())
    raise InputError(f"{field} {text!r} is not understood; use {', '.join(_usual(table))}")


def _usual(table: Table) -> list[str]:
    """The words of ours that a table leads to."""
    known = [(pattern, meaning.value) for pattern, meaning in table if meaning is not None]
    return sorted(
        {word for p, value in known for word in ([value] if value else p.replace("\\", "").split("|"))}
    )


def mean_sharding(text: str) -> ShardingMeaning:
    """Meaning of a sharding text; ``InputError`` where it is not understood."""
    for pattern, meaning in SHARDINGS:
        if re.fullmatch(pattern, text, re.IGNORECASE):
            return meaning
    raise InputError(
        f"sharding {text!r} is not understood: use FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or NO_SHARD"
    )


class Habits(NamedTuple):
    """What a software stack does where a run does not say."""

    zero_stage: int
    sequence_parallel: bool = True
    grad_dtype: str = "fp32"
    fp16_grad_dtype: str | None = None
    """The same in fp16 jobs, where it is another."""
    always_splits_sequence: bool = False
    """The stack's benchmarks set ``tp_mode="REDUCE_SCATTER"`` even where rows say otherwise; peak memory agrees."""
    selective: str = "selective"
    """What ``selective`` recomputation means: in Megatron the inside of the attention (arXiv:2205.05198, section 5)."""
    balances_stages: bool = False
    """Stages are cut by cost, the head included, rather than into equal numbers of layers."""
    fused_loss: bool = False
    """The loss is taken in chunks, which never holds all logits, as Liger's patches of models do unless told otherwise.

    Source: linkedin/Liger-Kernel@00218a06 src/liger_kernel/transformers/monkey_patch.py, which defaults to
    ``fused_linear_cross_entropy``.
    """
    splits_local_batch: bool = False
    """What is printed as a rank's batch is split into micro-batches of one for a pipeline.

    Source: pytorch/torchtitan ``torchtitan/config/job_config.py`` (``pipeline_parallel_microbatch_size``, by default 1,
    of ``local_batch_size``).
    """
    shards_bf16: bool = False
    """Beside a pipeline, ranks share optimizer states of bf16 jobs whatever the ZeRO stage, as ``BF16_Optimizer`` does.

    Source: deepspeedai/DeepSpeed pull request 1801 (March 2022: "implementing optimizer state sharding (a.k.a., zero
    stage 1)", for pipelines with stage 0), until pull request 7790 of January 2026 refused the combination. Runs of
    before are read as later ones.
    """
    vocabulary_multiple: int | None = None
    """Tables have a multiple of this times the tensor degree as rows; None: as many as the tokenizer.

    Source: NVIDIA/Megatron-LM megatron/arguments.py, tokenizer/tokenizer.py (``_vocab_size_with_padding``): 128 unless
    ``make_vocab_size_divisible_by`` is set; Megatron-DeepSpeed's and NeMo's likewise. huggingface/nanotron: 1.
    """
    dropout: float = 0.0
    """Share that is dropped of a model without gates that is given by sizes alone, which is GPT's (`planner.models.
    measured`); those with gates, which came later, are trained without in their own scripts.

    Source: NVIDIA/Megatron-LM v2.5 megatron/arguments.py and @core_v0.16.1 megatron/core/transformer/
    transformer_config.py (``hidden_dropout`` and ``attention_dropout`` are 0.1 unless told otherwise).
    """


STACK_HABITS: Mapping[str, Habits] = {
    **dict.fromkeys(
        (
            "torch-fsdp2",
            "torch-async-tp",
            "torch-batched-combine",
            "torch-compiled-loss",
            "torch-eager",
            "torch-layers-whole",
            "torch-loss-alone",
            "torch-loss-alone-batched",
            "torch-no-sync",
            "torch-whole",
        ),
        Habits(zero_stage=3, splits_local_batch=True),
    ),
    **dict.fromkeys(
        (
            "torch-fsdp1",
            "fast-llm",
            "halo",
            "kempner-forge",
            "prime-rl",
            "prime-rl-chunked",
            "torch-blocks",
            "transformers-fsdp2",
            "hf-2022",
            "hf-fsdp",
            "hf-kernels",
            "hf-reentrant",
            "hf-sdpa-math",
            "litgpt",
            "litgpt-fsdp",
            "llm-shearing",
            "nvidia-bert",
        ),
        Habits(zero_stage=3),
    ),
    **dict.fromkeys(
        (
            "megatron",
            "megatron-llama",
            "megatron-serial",
            "megatron-serial-fused",
            "megatron-unfused",
            "transformer-engine-1.11",
        ),
        Habits(zero_stage=1, selective="attention", vocabulary_multiple=128, dropout=0.1),
    ),
    "colossalai": Habits(zero_stage=1, sequence_parallel=False, grad_dtype="bf16"),
    **dict.fromkeys(
        ("paddle", "paddle-fused", "paddle-fused-norm", "paddle-fused-rope"),
        Habits(zero_stage=1, sequence_parallel=False, grad_dtype="bf16", selective="attention"),
    ),
    **dict.fromkeys(("aleph-alpha-scaling", "flash-attention-2023", "llm-c"), Habits(zero_stage=1)),
    "internevo": Habits(zero_stage=1, sequence_parallel=False),
    **dict.fromkeys(
        ("megatron-2021", "megatron-2022", "nemo-2022"),
        Habits(
            zero_stage=0,
            sequence_parallel=False,
            selective="attention",
            vocabulary_multiple=128,
            dropout=0.1,
        ),
    ),
    **dict.fromkeys(("composer-2022", "composer-2023", "composer-2023.10"), Habits(zero_stage=3)),
    "deepspeed-2022": Habits(
        zero_stage=1,
        sequence_parallel=False,
        fp16_grad_dtype="bf16",
        selective="attention",
        shards_bf16=True,
        vocabulary_multiple=128,
        dropout=0.1,
    ),
    **dict.fromkeys(
        (
            "megatron-bridge",
            "megatron-bridge-plain",
            "nemo",
            "nemo-2023",
            "nemo-2024",
            "nemo-25.11",
            "nemo-automodel",
            "nemo-plain",
            "nemo-unfused",
        ),
        Habits(zero_stage=1, grad_dtype="bf16", vocabulary_multiple=128),
    ),
    **dict.fromkeys(
        ("deepspeed", "atorch-deepspeed"),
        Habits(
            zero_stage=1,
            sequence_parallel=False,
            selective="attention",
            shards_bf16=True,
            vocabulary_multiple=128,
            dropout=0.1,
        ),
    ),
    "deepspeed-liger": Habits(
        zero_stage=1,
        sequence_parallel=False,
        selective="attention",
        fused_loss=True,
        vocabulary_multiple=128,
    ),
    "deepspeed-transformers": Habits(zero_stage=1, sequence_parallel=False),
    **dict.fromkeys(
        ("nanotron", "nanotron-keeping", "nanotron-checked", "nanotron-polling"),
        Habits(zero_stage=1, always_splits_sequence=True, balances_stages=True, vocabulary_multiple=1),
    ),
    **dict.fromkeys(
        (
            "jax-in-order",
            "jax-xla",
            "libtpu-0.0.51",
            "levanter",
            "levanter-fa4",
            "levanter-grug",
            "levanter-quack",
            "levanter-sonic",
            "levanter-2026.08",
            "torch-xla",
        ),
        Habits(zero_stage=3, sequence_parallel=False),
    ),
    "alpa": Habits(zero_stage=3, sequence_parallel=False, grad_dtype="bf16"),
    "neuronx": Habits(zero_stage=1),
}
"""Defaults of each stack: its documentation's recommended data-parallel sharding.

Gradients of Paddle's and ColossalAI's weights have the type of these (paddle.amp level O2 without master_grad;
hpcaitech/ColossalAI@4f9953b colossalai/zero/low_level/low_level_optim.py), as do Alpa's, in which it steps
(alpa-projects/alpa@256631b alpa/model/model_util.py, ``apply_gradients``). Tensor ranks of InternEvo share no sequence
unless told so (InternLM/InternEvo@c628a8c configs/7B_sft.py: ``mtp``).
"""
