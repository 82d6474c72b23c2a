"""Megatron-LM arguments, in a shell script or as plain text -> `Settings`.

Names and defaults are those of Megatron-LM d98e8a6 (core 0.20), megatron/training/arguments.py and the dataclasses
of Megatron Core.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.evaluation.megatron_layout import read_layout, read_pattern
from planner.importers.keys import Keys
from planner.importers.settings import Settings, Surroundings
from planner.importers.torchtitan import even_but_ends
from planner.models.dropout import Shares
from planner.plans import NARROW
from planner.runs.graphs import read_graphs

OVERLAPPING = ("overlap-grad-reduce", "use-megatron-fsdp", "use-torch-fsdp2", "use-custom-fsdp")
"""Flags of which any has gradients reduced beside the backward, which is off by default."""

STACKS = {
    (True, True): "megatron",
    (True, False): "megatron-unfused",
    (False, True): "megatron-serial-fused",
    (False, False): "megatron-serial",
}
"""Whether gradients are reduced beside the backward, and the loss is fused -> stack."""

OPTIMIZERS = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""``--data-parallel-sharding-strategy`` of Megatron-FSDP -> ZeRO stage."""

BACKENDS = {"auto": "flash", "flash": "flash", "fused": "flash", "unfused": "plain", "local": "plain"}

EXCHANGES = {"p2p": "ring", "all_gather": "all_gather", "a2a": "all_to_all"}
"""``--cp-comm-type``; rings of all-to-alls are not among what is priced."""

DISPATCHERS = {"deepep": "deepep", "hybridep": "hybridep"}
"""``--moe-flex-dispatcher-backend``; the rates of NCCL's own are not known."""

SCALINGS: Mapping[str, str | None] = {
    **{name: name for name in ("delayed", "tensorwise", "mxfp8", "blockwise")},
    "custom": None,
}
"""``--fp8-recipe`` -> what a scale holds for, which one's own code may say."""

GRANULARITIES = {"full": "full", "selective": "attention"}

MODULES: Mapping[frozenset[str], tuple[str, bool]] = {
    frozenset({"core_attn"}): ("attention", True),
    frozenset({"layernorm"}): ("selective", False),
    frozenset({"moe_act"}): ("selective", False),
    frozenset({"mla_up_proj"}): ("latent", True),
}
"""``--recompute-modules`` -> the policy that comes nearest, and whether it is the same."""

SIZES = {
    "layers": "num-layers",
    "hidden": "hidden-size",
    "heads": "num-attention-heads",
    "experts": "num-experts",
    "kv_heads": "num-query-groups",
    "head_dim": "kv-channels",
}
"""Our name -> argument that describes the model."""

DROPPED = 0.1
"""Share that is dropped where nothing is said (``megatron/core/transformer/transformer_config.py``)."""

IGNORED = (
    "nproc[-_]per[-_]node", "nnodes", "node[-_]rank", "master[-_](addr|port)", "rdzv.*", "max-.*repeats",
    "ffn-hidden-size", "moe-.*", "max-position-embeddings", "position-embedding-type", "rotary-.*", "rope-.*",
    "use-rope-scaling", "use-rotary.*", "no-position-embedding", "normalization", "norm-epsilon", "swiglu",
    "squared-relu", "disable-bias-linear", "add-qkv-bias", "qk-layernorm", "untie-embeddings.*", "vocab-size",
    "make-vocab.*", "group-query-attention", "multi-latent-attention", "(q|kv)-lora-rank", "qk-.*head-dim",
    "v-head-dim", "mtp-.*", "init-method.*", "no-masked-softmax-fusion",
    "transformer-impl", "spec", "use-mcore-models", "attention-softmax-in-fp32", "apply-.*scaling",
    "no-.*-fusion", "(min-)?lr.*", "train-(iters|samples)", "weight-decay.*", "adam-.*", "clip-grad", "seed",
    "data-.*path", "(train|valid|test)-data.*", "split", "mock-data", "vocab-file", "merge-file",
    "tokenizer-.*", "num-workers", "dataloader-type", "reset-.*", "eod-mask-loss", "create-attention.*",
    "eval-.*", "save.*", "load", "ckpt-.*", "no-(load|save)-.*", "use-dist-ckpt", "dist-ckpt-.*", "async-save",
    "exit-.*", "override-opt.*", "use-checkpoint.*", "finetune", "log-.*", "tensorboard-.*", "wandb-.*",
    "timing-.*", "profile.*", "distributed-(backend|timeout.*)", "manual-gc.*",
    "overlap-(param-gather|p2p.*|moe.*)", "no-overlap.*", "tp-comm-overlap.*",
    "use-precision-aware-optimizer", "optimizer-offload.*", "cross-entropy-.*",
    "accumulate-allreduce-grads-in-fp32", "fp[48]-(margin|interval|amax.*)", "fp4-recipe", "no-check-for-nan.*",
    "align-.*", "expert-tensor-parallel-size",
)  # fmt: skip
"""Arguments without influence here, as regular expressions."""


def read_megatron(keys: Keys, around: Surroundings) -> Settings:
    """`Settings` of Megatron-LM arguments."""
    nodes, per_node = keys.integer("nnodes"), keys.integer("nproc_per_node") or keys.integer("nproc-per-node")
    sizes = {name: keys.integer(key) for name, key in SIZES.items()}
    policy, assumed = _recompute(keys, around.layers)
    overlaps = any(keys.flag(key) for key in OVERLAPPING)
    assumed += _inexact(keys, overlaps)
    tensor, expert = keys.degree("tensor-model-parallel-size"), keys.degree("expert-model-parallel-size")
    whole = tensor > 1 and expert % tensor == 0 and keys.integer("expert-tensor-parallel-size") == 1
    settings = Settings(
        STACKS[overlaps, keys.flag("cross-entropy-loss-fusion")],
        devices=nodes * per_node if nodes and per_node else None,
        tensor=tensor,
        pipeline=keys.degree("pipeline-model-parallel-size"),
        context=keys.degree("context-parallel-size"),
        expert=expert // tensor if whole else expert,
        experts_over_tensor=whole,
        micro_batch=keys.integer("micro-batch-size"),
        global_batch=keys.integer("global-batch-size"),
        seq_len=keys.integer("seq-length"),
        sequence_parallel=keys.flag("sequence-parallel"),
        recompute=policy,
        offload=("optimizer",) if keys.flag("optimizer-cpu-offload") else (),
        job=_job(keys),
        dropout=Shares(keys.share("hidden-dropout", DROPPED), keys.share("attention-dropout", DROPPED)),
        sizes={name: size for name, size in sizes.items() if size is not None},
        assumed=tuple(assumed),
    )
    settings = _pipeline(_states(settings, keys), keys, around.layers)
    keys.ignore(*IGNORED)
    return replace(settings, unknown=tuple(f"--{key}" for key in keys.unknown()))


def _job(keys: Keys) -> dict[str, Any]:
    half = [name for name in ("bf16", "fp16") if keys.flag(name)]
    narrow = [name for name in NARROW if keys.get(f"{name}-format") is not None]
    job: dict[str, Any] = {
        "precision": narrow[0] if narrow else half[0] if half else "fp32",
        "optimizer": keys.word("optimizer", OPTIMIZERS, "adamw"),
        "grad_dtype": "bf16" if keys.flag("grad-reduce-in-bf16") else "fp32",
        "attention": keys.word("attention-backend", BACKENDS, "flash"),
        "context_exchange": keys.word("cp-comm-type", EXCHANGES, None),
    }
    scaling = keys.word("fp8-recipe", SCALINGS, "delayed")
    if job["precision"] == "fp8":
        job |= {"fp8_scaling": scaling, "narrow_weight_gathers": keys.flag("fp8-param-gather")}
    if keys.flag("grad-reduce-in-bf16"):
        job["reduce_dtype"] = "bf16"
    keys.flag("use-flash-attn")
    dispatcher = keys.get("moe-token-dispatcher-type") or _usual_dispatcher(keys)
    if dispatcher == "flex":
        job["token_exchange"] = keys.word("moe-flex-dispatcher-backend", DISPATCHERS, "deepep")
    if dispatcher == "allgather":
        job["token_exchange"] = "all_gather"
    if keys.flag("moe-pad-expert-input-to-capacity"):
        job["expert_capacity"] = keys.number("moe-expert-capacity-factor")
    if keys.flag("overlap-moe-expert-parallel-comm"):
        job["overlap_experts"] = True
    scope = keys.get("cuda-graph-scope") or keys.get("cuda-graph-modules") or ""
    return job | read_graphs(f"{keys.get('cuda-graph-impl') or 'none'}/{scope}")._asdict()


def _usual_dispatcher(keys: Keys) -> str | None:
    """How experts get tokens where nothing says: gathered on every rank, since there was a choice (March 2024)."""
    return "allgather" if keys.get("num-experts") is not None else None


def _inexact(keys: Keys, overlaps: bool) -> list[str]:
    own = [key for key in ("hidden-dropout", "attention-dropout") if keys.get(key) is None]
    found = [f"{key}={DROPPED} (Megatron's own; give --{key} 0 where nothing is dropped)" for key in own]
    sharded = keys.flag("use-distributed-optimizer") and not keys.flag("use-megatron-fsdp")
    if overlaps and sharded and not keys.flag("overlap-param-gather"):
        found.append("weights gathered beside the forward (overlap-param-gather is not set)")
    experts, tensor = keys.integer("expert-tensor-parallel-size"), keys.degree("tensor-model-parallel-size")
    if (
        keys.degree("expert-model-parallel-size") > 1
        and experts not in (None, tensor)
        and (experts != 1 or keys.degree("expert-model-parallel-size") % tensor)
    ):
        found.append(f"experts split over {tensor} tensor ranks (expert-tensor-parallel-size says {experts})")
    return found


def _recompute(keys: Keys, layers: int) -> tuple[str, list[str]]:
    modules = keys.get("recompute-modules")
    names = frozenset([modules] if isinstance(modules, str) else modules or ["core_attn"])
    policy = keys.word("recompute-granularity", GRANULARITIES, "none")
    method, count = keys.get("recompute-method"), keys.integer("recompute-num-layers", least=0)
    if keys.flag("recompute-activations"):
        policy = "attention"
    if policy == "full" and method == "block" and count is not None and count < layers:
        return policy, [f"recompute=full (only {count} layers of each stage are)"]
    if policy != "attention":
        return policy, []
    nearest, exact = MODULES.get(names, ("full" if names & {"mlp", "moe"} else "selective", False))
    return nearest, [] if exact else [f"recompute={nearest} (modules {', '.join(sorted(names))})"]


def _states(settings: Settings, keys: Keys) -> Settings:
    stage = 1 if keys.flag("use-distributed-optimizer") else 0
    strategy = keys.word("data-parallel-sharding-strategy", STRATEGIES, 3)
    if keys.flag("use-megatron-fsdp") or keys.flag("use-custom-fsdp"):
        stage = strategy
    if keys.flag("use-torch-fsdp2"):
        stage = 2 if keys.flag("torch-fsdp2-no-reshard-after-forward") else 3
    copies = keys.integer("num-distributed-optimizer-instances")
    return replace(settings, zero_stage=stage, replicate=copies if stage else None)


def _pipeline(settings: Settings, keys: Keys, layers: int) -> Settings:
    """Stages and their cuts: by a layout or pattern, by numbers of layers at the ends, or even."""
    first, last = (keys.integer(f"decoder-{end}-pipeline-num-layers", least=0) for end in ("first", "last"))
    ends = [keys.flag(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    per_chunk, v = (
        keys.integer("num-layers-per-virtual-pipeline-stage"),
        keys.integer("num-virtual-stages-per-pipeline-rank") or 1,
    )
    layout = keys.get("pipeline-model-parallel-layout")
    pattern = str(keys.get("hybrid-layer-pattern") or keys.get("hybrid-override-pattern") or "")
    p = settings.pipeline
    if p == 1:
        return settings
    cuts: tuple[int, ...] | None = None
    if layout is not None:
        cuts = read_layout(str(layout))
        v = max(1, (len(cuts) - 1) // p)
    elif "|" in pattern:
        cuts = read_pattern(pattern)
        v = max(1, (len(cuts) - 1) // p)
    elif first is not None or last is not None:
        cuts = _given_ends(keys, layers, p * v, first, last)
    else:
        counted = layers + sum(ends)
        v = counted // (p * per_chunk) if per_chunk else v
        if counted % (p * v):
            raise keys.fail(
                "pipeline-model-parallel-size", f"a divisor of the {counted} layers that are counted"
            )
        cuts = even_but_ends(layers, p * v, *map(int, ends))
    return replace(settings, virtual_stages=v, cuts=cuts, schedule="interleaved" if v > 1 else "1f1b")


def _given_ends(keys: Keys, layers: int, stages: int, first: int | None, last: int | None) -> tuple[int, ...]:
    """Boundaries where the first and last stage are given, and the others share the rest evenly."""
    given = [size for size in (first, last) if size is not None]
    others = stages - len(given)
    if others < 1 or (layers - sum(given)) % others:
        raise keys.fail(
            "decoder-first-pipeline-num-layers", f"such that {others} other stages get equal numbers"
        )
    sizes = [(layers - sum(given)) // others] * others
    sizes = ([first] if first is not None else []) + sizes + ([last] if last is not None else [])
    return tuple(sum(sizes[:s]) for s in range(stages + 1))
