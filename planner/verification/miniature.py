"""A plan small enough for this machine, of the same structure: the same kinds of blocks, parameters and axes.

Every degree larger than 1 stays larger than 1, most of them 2; every dim of the model becomes a few dozen; what
shards what stays as planned.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from planner.evaluation.cuts import even_cuts, stage_plans
from planner.evaluation.setting import graph_of
from planner.exporters.placements import refuse_experts_over_context, state_mesh
from planner.graph import HEAD_DIMS, KV_HEAD_DIMS, Graph, Run, Tensor
from planner.models.catalog import build_graph
from planner.models.model import Model
from planner.plans import Parallelism, Plan, StagePlan

SEQ_LEN = 32

Written = Mapping[str, Mapping[str, Mapping[str, str]]]
"""Shardings of a stage: block -> operator -> axis -> dim."""

SIZES: Mapping[str, int] = MappingProxyType(
    {
        "hidden": 64,
        "classified": 128,
        "head_dim": 8,
        "ffn": 96,
        "expert_ffn": 48,
        "shared_ffn": 48,
        "experts": 4,
        "vocab": 128,
        "q_lora": 32,
        "kv_lora": 16,
        "rope_dim": 4,
        "qk_dim": 12,
        "v_dim": 8,
        "kv_down": 20,
        "kv_up": 16,
        "token_types": 2,
        "buckets": 8,
        "state_groups": 4,
        "group_heads": 2,
        "state_keys": 8,
        "state_values": 8,
        "chunk": 8,
    }
)
"""Small size of each dim: even, so that two ranks can share it; latent attention's add up as the large ones do."""

KEYS: Mapping[str, int] = MappingProxyType(
    {
        "hidden_size": 64,
        "n_embd": 64,
        "n_embed": 64,
        "intermediate_size": 96,
        "n_inner": 96,
        "moe_intermediate_size": 48,
        "shared_expert_intermediate_size": 48,
        "num_attention_heads": 8,
        "n_head": 8,
        "head_dim": 8,
        "vocab_size": 128,
        "num_local_experts": 4,
        "num_experts": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "sliding_window": 8,
        "first_k_dense_replace": 1,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "n_groups": 4,
        "mamba_n_groups": 4,
        "num_heads": 16,
        "mamba_num_heads": 16,
        "mamba_n_heads": 16,
        "mamba_head_dim": 8,
        "mamba_d_head": 8,
        "mamba_d_ssm": 128,
        "state_size": 8,
        "ssm_state_size": 8,
        "mamba_d_state": 8,
        "chunk_size": 8,
        "mamba_chunk_size": 8,
        "shared_intermediate_size": 48,
        "moe_shared_expert_intermediate_size": 48,
    }
)
"""Small value of keys of a Hugging Face configuration."""

LAYER_KEYS = ("num_hidden_layers", "n_layer")

PATTERNS = ("hybrid_override_pattern",)
"""Keys of a letter for each layer."""

HEADS, WINDOW, CHOSEN_EXPERTS, LAYERS = 8, 8, 2, 2

DROPPED = (
    "replicate", "context_copies", "expert_copies", "shard", "expert", "context", "tensor", "pipeline",
)  # fmt: skip
"""Axes that are left out, first ones first, where two ranks of each are more than the devices at hand."""

GROWN = ("shard", "replicate")
"""Axes that take what devices are left."""


class Scaled(NamedTuple):
    """A small plan, and what it does not show."""

    plan: Plan
    left_out: tuple[str, ...]


def scaled_down(plan: Plan, most: int, configured: bool = False) -> Scaled:
    """``plan`` on at most ``most`` devices, in fp32 so that sums compare to rounding.

    The model is a small graph, or, where it must be ``configured``, one of its family with a small configuration.
    Raises ``Unsupported`` for experts over context ranks.
    """
    refuse_experts_over_context(plan.plan)
    degrees, dropped = _degrees(plan.plan, most)
    stages = degrees["pipeline"] * min(plan.plan.virtual_stages, 2)
    if configured:
        model = scaled_config(plan, max(stages, LAYERS))
    else:
        graph = scaled_graph(build_graph(plan.model, plan.job.seq_len), plan.plan)
        model = Model(name=f"{plan.model.name}, small", family="graph", graph=graph)
    whole = graph_of(plan.model, plan.job)
    small = graph_of(model, plan.job.model_copy(update={"seq_len": SEQ_LEN}))
    written = _without(plan.plan, _operators(whole) - _operators(small))
    parallelism = _parallelism(written, degrees, small.num_layers)
    job = plan.job.model_copy(
        update={
            "precision": "fp32",
            "optimizer": "sgd",
            "seq_len": SEQ_LEN,
            "global_batch": parallelism.data * parallelism.micro_batch * parallelism.num_microbatches,
        }
    )
    fields = {"model": model, "job": job, "plan": parallelism, "estimate": None, "alternatives": ()}
    left_out = tuple(f"axis {axis} is left out of the small plan: it has {most} devices" for axis in dropped)
    return Scaled(plan.model_copy(update=fields), left_out)


def _degrees(p: Parallelism, most: int) -> tuple[dict[str, int], list[str]]:
    data = state_mesh(p)
    large = {
        "replicate": data.replicate,
        "shard": data.shard,
        "expert_copies": data.expert_copies,
        "expert": data.expert // data.expert_copies,
        "context_copies": data.context_copies,
        "context": p.context // data.context_copies,
        "tensor": p.tensor,
        "pipeline": p.pipeline,
    }
    degrees = {axis: min(size, 2) for axis, size in large.items()}
    dropped = []
    for axis in DROPPED:
        if 2 ** sum(size > 1 for size in degrees.values()) > most and degrees[axis] > 1:
            degrees[axis] = 1
            dropped.append(axis)
    for axis in GROWN:
        while 2 * math.prod(degrees.values()) <= most and 2 * degrees[axis] <= large[axis]:
            degrees[axis] *= 2
    return degrees, dropped


def _operators(graph: Graph) -> set[tuple[str, str]]:
    return {(block.name, op.name) for block in graph.blocks for op in block.ops}


def _without(p: Parallelism, absent: Collection[tuple[str, str]]) -> Parallelism:
    """``p`` without the shardings of operators that the small model does not have: its dropout, which it leaves out."""

    def left(sharding: Written) -> Written:
        return {
            block: {op: axes for op, axes in split.items() if (block, op) not in absent}
            for block, split in sharding.items()
        }

    stages = (stage.model_copy(update={"sharding": left(stage.sharding)}) for stage in p.stages)
    return p.model_copy(update={"stages": tuple(stages)})


def _parallelism(p: Parallelism, degrees: Mapping[str, int], layers: int) -> Parallelism:
    large = state_mesh(p)
    shard = degrees["shard"] * (degrees["expert"] if large.over_expert else 1)
    shard *= degrees["context"] if large.over_context else 1
    axes = {
        "tensor": degrees["tensor"],
        "context": degrees["context"] * degrees["context_copies"],
        "expert": degrees["expert"] * degrees["expert_copies"],
    }
    data = degrees["replicate"] * degrees["shard"] * axes["expert"]
    mesh = axes | {"data": data // axes["expert"]}
    virtual = min(p.virtual_stages, 2)
    bare = p.model_copy(
        update={
            **axes,
            "data": data,
            "pipeline": degrees["pipeline"],
            "virtual_stages": virtual,
            "stages": (),
        }
    )
    return bare.model_copy(
        update={
            "shard_degree": shard if p.zero_stage else 1,
            "replicate_degree": data * axes["context"] // shard,
            "micro_batch": min(p.micro_batch, 2),
            "num_microbatches": 2 * small
            if (small := degrees["pipeline"]) > 1
            else min(p.num_microbatches, 2),
            "stages": tuple(_stages(p, bare, mesh, layers)),
        }
    )


def _stages(p: Parallelism, small: Parallelism, mesh: Mapping[str, int], layers: int) -> Iterator[StagePlan]:
    """Even stages with the shardings that the large plan writes down; none where it writes none."""
    if not p.stages:
        return
    sharding = {block: split for stage in p.stages for block, split in stage.sharding.items()}
    recompute = p.stages[0].recompute
    for stage in stage_plans(small, even_cuts(layers, small.pipeline * small.virtual_stages)):
        yield stage.model_copy(update={"mesh": mesh, "sharding": sharding, "recompute": recompute})


def scaled_config(plan: Plan, layers: int) -> Model:
    """A model of the same family with ``layers`` layers and a small configuration."""
    config = dict(plan.model.config)
    count = build_graph(plan.model, plan.job.seq_len).num_layers
    heads, kv_heads = (config.get(key) for key in ("num_attention_heads", "num_key_value_heads"))
    for key, value in config.items():
        if (isinstance(value, list) or key in PATTERNS) and len(value) == count:
            config[key] = value[:layers]
        elif key == "num_key_value_heads" and heads and kv_heads:
            config[key] = max(2, HEADS * kv_heads // heads)
        elif key in LAYER_KEYS:
            config[key] = layers
        elif key in KEYS and isinstance(value, int) and not isinstance(value, bool):
            config[key] = min(value, KEYS[key])
    config["max_position_embeddings" if "max_position_embeddings" in config else "n_positions"] = SEQ_LEN
    return Model(name=f"{plan.model.name}, small", family=plan.model.family, config=config)


def scaled_graph(graph: Graph, p: Parallelism) -> Graph:
    """``graph`` with small dims, two layers of a kind, and each kind of block once in its order."""
    dims = {d: _size(d, graph, p) for d in graph.dims}
    runs: list[Run] = []
    seen: set[str] = set()
    for run in graph.layers:
        if len(seen) < len({r.block for r in graph.layers}):
            runs.append(Run(block=run.block, count=min(run.count, LAYERS)))
        seen.add(run.block)
    blocks = []
    for block in graph.blocks:
        tensors = tuple(_tensor(t, graph) for t in block.tensors)
        ops = tuple(op.model_copy(update={"attributes": _attributes(op.attributes)}) for op in block.ops)
        blocks.append(block.model_copy(update={"tensors": tensors, "ops": ops}))
    fields = {**graph.model_dump(exclude={"blocks"}), "dims": dims, "layers": tuple(runs)}
    return Graph.model_validate({**fields, "blocks": [b.model_dump() for b in blocks]})


def _size(dim: str, graph: Graph, p: Parallelism) -> int:
    if dim in HEAD_DIMS:
        return HEADS
    if dim in KV_HEAD_DIMS:
        heads = graph.dims[graph.follows.get(dim, "heads")]
        return 1 if graph.dims[dim] < p.tensor else max(2, HEADS * graph.dims[dim] // heads)
    if dim.endswith(("seq", "positions")):
        return SEQ_LEN
    if dim == "patches":  # as many fewer than tokens as before
        return SEQ_LEN - graph.dims["seq"] + graph.dims["patches"]
    return min(graph.dims[dim], SIZES.get(dim, SIZES["hidden"]))


def _tensor(tensor: Tensor, graph: Graph) -> Tensor:
    """Routed tokens: as many experts each as before, but no more than `CHOSEN_EXPERTS`."""
    if "experts" not in tensor.dims or tensor.scale >= 1:
        return tensor
    experts = min(graph.dims["experts"], SIZES["experts"])
    chosen = min(max(1, round(tensor.scale * graph.dims["experts"])), CHOSEN_EXPERTS)
    return tensor.model_copy(update={"scale": chosen / experts})


def _attributes(attributes: Mapping[str, bool | int | float | str]) -> dict[str, bool | int | float | str]:
    spans = {name: WINDOW for name in ("window", "chunk") if attributes.get(name)}
    return {**attributes, **spans}
