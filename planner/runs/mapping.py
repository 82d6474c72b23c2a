"""From a run, as its source describes it, to a `Plan`.

Whatever the run leaves open gets the usual choice, and the choice is listed. The order matters: the cluster
says how many devices there are, these say the degrees, these the micro-batches and the shards.
"""

from collections.abc import Mapping
from typing import Any

from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.software import load_software
from cluster_specs.usual_stacks import unasked_stack
from planner.evaluation.cuts import stages_of
from planner.graph import Graph
from planner.models.model import Model
from planner.pipeline.generators import is_written_out, schedule_entry
from planner.plans import Job, Parallelism, Plan, StagePlan
from planner.runs import vocabulary
from planner.runs.assumptions import IGNORED, Assumptions
from planner.runs.jobs import job_of
from planner.runs.models import model_of
from planner.runs.origins import Origin, find_origin
from planner.runs.recomputation import recompute, recompute_every
from planner.runs.record import RunFile, parse_run
from planner.runs.releases import told_by, variant
from planner.runs.sharding import Degrees, shards_of
from planner.runs.stages import balanced_stages, filled_layers, printed_layers, with_whole_logits

MICROBATCHES_PER_STAGE = 4
"""Micro-batches per pipeline stage where no batch was published: from there on GPipe's bubble is negligible.

Source: arXiv:1811.06965, section 2.3 (M >= 4 K).
"""

MOST_MICROBATCHES = 1 << 14
"""Of a step: published runs have up to 2,048, batches counted in tokens more than this."""

USUAL_STACKS = (
    "torch-fsdp2",
    "torch-eager",
    "hf-fsdp",
    "megatron",
    "nemo",
    "deepspeed",
    "nanotron",
    "jax-xla",
)
"""What is named where a run has a stack that nobody knows: of each program the version of today."""


def plan_from_run(row: Mapping[str, Any] | RunFile) -> tuple[Plan, tuple[str, ...]]:
    """The `Plan` of a run and the choices made for what it leaves open, as ``field=value``.

    Raises ``InputError`` where the run says something that a plan cannot express (an unknown number format, a
    schedule that does not exist here, degrees that do not give the devices).
    """
    run = row if isinstance(row, RunFile) else parse_run(row)
    assume = Assumptions()
    assume.made += [f"{IGNORED}{field}" for field in run.unknown_fields()]
    cluster = _cluster(run, assume)
    origin = _origin(run, cluster.device, assume)
    degrees = _degrees(run, cluster.num_devices, origin, assume)
    micro_batch, num_microbatches = _batches(run, degrees, origin, assume)
    job = job_of(run, origin, micro_batch * num_microbatches * degrees.data, cluster, assume)
    habits = vocabulary.STACK_HABITS[job.stack]
    model = model_of(run, (habits.vocabulary_multiple or 0) * degrees.tensor, habits.dropout, assume)
    shards = shards_of(run, degrees, habits, cluster, assume)
    parallelism = Parallelism(
        **degrees._asdict(),
        **shards._asdict(),
        micro_batch=micro_batch,
        num_microbatches=num_microbatches,
        virtual_stages=_virtual_stages(run, degrees, assume),
        sequence_parallel=_sequence_parallel(run, degrees, job, origin, assume),
        recompute=recompute(run, origin, assume),
        recompute_every=recompute_every(run, assume),
        schedule=_schedule(run, degrees, assume),
        offload=_offload(run),
        offload_share=_offload_share(run),
    )
    _say_unpriced(run, parallelism, assume)
    graph = _graph(model, job)
    stages = _stages(run, graph, parallelism, origin, assume)
    parallelism = parallelism.model_copy(update={"stages": stages})
    if run.parallel.loss_parallel is False and parallelism.tensor > 1:
        stages = with_whole_logits(graph, cluster, parallelism)
        parallelism = parallelism.model_copy(update={"stages": stages})
    return Plan(model=model, cluster=cluster, job=job, plan=parallelism), tuple(assume.made)


def _say_unpriced(run: RunFile, plan: Parallelism, assume: Assumptions) -> None:
    """Note whether weights are said to be freed after the forward by one word, and to be kept by another.

    Parts for all ranks of a shard group are what freeing them leaves.
    """
    reshard, freed = run.parallel.reshard_after_forward, plan.zero_stage == 3
    if reshard is None or plan.zero_stage < 2:
        return
    meant = (plan.secondary_degree, plan.shard_degree) if freed else ()
    if reshard is not freed and (isinstance(reshard, bool) or reshard not in meant):
        assume.made.append(f"reshard_after_forward={freed} ({reshard} is not priced)")


def _origin(run: RunFile, device: DeviceSpec, assume: Assumptions) -> Origin:
    """The run's software: as it says, as its source had, or the usual one on ``device``."""
    stack = run.parallel.stack
    flags = {"compile": run.parallel.compile, "async_tp": run.parallel.async_tp}
    if stack is not None:
        known = Origin(stack) if stack in vocabulary.STACK_HABITS else find_origin(stack)
        if known is None:
            raise UnknownName(
                "stack",
                stack,
                vocabulary.STACK_HABITS,
                see=f"usual are {', '.join(USUAL_STACKS)}; `meshwright stacks` lists all",
            )
        return _flagged(known, flags, assume)
    size = f"{run.hardware.n_gpus} devices tensor {run.parallel.tp} pipeline {run.parallel.pp}"
    words = " ".join(filter(None, (run.series, run.id, run.hardware.gpu, run.parallel.sharding, size)))
    found = find_origin(words)
    if run.parallel.wrap == "titan":
        # torchtitan itself reduces every micro-batch
        own_loop = found is not None and found.stack in ("hf-fsdp", "torch-blocks")
        return Origin("torch-no-sync" if own_loop else "torch-fsdp2")
    model_parallel = (run.parallel.tp or 1) * (run.parallel.pp or 1) > 1
    usual = "megatron-serial" if model_parallel and device.kind == "gpu" else unasked_stack(device)
    origin = variant(found or Origin(usual), flags, str(run.source), run.notes or "")
    if found is None:
        assume.default("stack", None, origin.stack)
    return origin


def _flagged(named: Origin, flags: Mapping[str, bool | None], assume: Assumptions) -> Origin:
    """The stack that a run names, as its flags have it; what they ask of it beyond that is noted."""
    told = told_by(named.stack, flags)
    if told != named.stack:
        assume.made.append(f"stack={told} (as {named.stack} is with what the run says of it)")
    wanted, compiled = flags["compile"], load_software(told).fused_elementwise
    if wanted is not None and wanted is not compiled:
        assume.made.append(
            f"compile={str(compiled).lower()} (as stack {told} is, of which no other is known)"
        )
    return named._replace(stack=told)


def _graph(model: Model, job: Job) -> Graph:
    from planner.models.catalog import build_graph

    return build_graph(model, job.seq_len)


def _stages(
    run: RunFile, graph: Graph, plan: Parallelism, origin: Origin, assume: Assumptions
) -> tuple[StagePlan, ...]:
    """Stages as printed, or as the stack cuts them; () where they are even."""
    printed, count = run.parallel.pp_layout, plan.pipeline * plan.virtual_stages
    if plan.pipeline == 1:
        return ()
    if printed is not None:
        layers = printed_layers(printed)
        if (len(layers), sum(layers)) == (count, graph.num_layers):
            return stages_of(layers, plan)
        assume.made.append(f"{IGNORED}parallel.pp_layout")
    if vocabulary.STACK_HABITS[origin.stack].balances_stages and plan.virtual_stages == 1:
        return balanced_stages(graph, plan)
    filled = filled_layers(graph.num_layers, count) if origin.fills_stages else ()
    if filled:
        assume.default("pp_layout", None, f"{filled[0]} layers a stage, {filled[-1]} in the last")
    return stages_of(filled, plan) if filled else ()


def _cluster(run: RunFile, assume: Assumptions) -> ClusterSpec:
    from cluster_specs.catalog import cluster_for, load_cluster

    hardware = run.hardware
    if hardware.cluster is not None:
        return load_cluster(hardware.cluster)
    if hardware.gpu is None or hardware.n_gpus is None:
        raise InputError("hardware needs a cluster, or gpu and n_gpus")
    cluster, assumed = cluster_for(
        hardware.gpu,
        hardware.n_gpus * (hardware.devices_per_chip or 1),
        hardware.gpus_per_node,
        intra_link=hardware.intra_link,
        inter_link=hardware.inter_link,
        slices=hardware.slices or 1,
        topology=hardware.topology,
    )
    assume.made += assumed
    return cluster


def _degrees(run: RunFile, num_devices: int, origin: Origin, assume: Assumptions) -> Degrees:
    parallel = run.parallel
    pipeline, context, expert = parallel.pp or 1, parallel.cp or 1, parallel.ep or 1
    rest, uneven = divmod(num_devices, (parallel.dp or num_devices) * pipeline * context)
    tensor = assume.default("tp", parallel.tp, rest if rest and not uneven else 1)
    model_parallel = tensor * pipeline * context
    data = assume.default("dp", parallel.dp, max(1, num_devices // model_parallel))
    if data * model_parallel != num_devices == data * expert * model_parallel:
        data = assume.default("dp", None, data * expert)  # experts had ranks of their own
    if data * model_parallel != num_devices:
        raise InputError(
            f"dp {data} x tp {tensor} x pp {pipeline} x cp {context} = {data * model_parallel} devices, "
            f"the cluster has {num_devices}"
        )
    whole = _whole_experts(run, data * context, tensor, expert, origin, assume)
    modelled = 1 if whole else tensor
    if expert > 1 and (run.parallel.etp or modelled) != modelled:
        assume.made.append(f"etp={modelled} (no etp {run.parallel.etp} beside ep {expert}, tp {tensor})")
    if whole:
        expert //= tensor
    if data * context % expert:
        raise InputError(f"ep {expert} does not divide dp {data} x cp {context} = {data * context} ranks")
    return Degrees(data, tensor, pipeline, context, expert, whole)


def _whole_experts(
    run: RunFile, ranks: int, tensor: int, expert: int, origin: Origin, assume: Assumptions
) -> bool:
    """Whether the expert ranks include the tensor ranks, each with whole experts: an ``etp`` of 1.

    So it must be where ``ep`` does not divide the data and context ``ranks``. With fewer experts' ranks than tensor
    ranks it cannot be.
    """
    if min(tensor, expert) == 1 or expert % tensor or ranks % (expert // tensor):
        return False
    if ranks % expert:
        return assume.default("etp", run.parallel.etp, 1) == 1
    usual = origin.expert_tensor or tensor
    return assume.default("etp", run.parallel.etp, usual) == 1


def _batches(run: RunFile, degrees: Degrees, origin: Origin, assume: Assumptions) -> tuple[int, int]:
    """Micro-batch of a data rank, and number of micro-batches."""
    parallel, batch = run.parallel, run.parallel.global_batch
    if origin.batch_per_rank and parallel.micro_batch is None and batch and batch % degrees.data:
        assume.default("global_batch", None, batch * degrees.data)
        whole = assume.default("micro_batch", None, batch if degrees.pipeline == 1 else 1)
        return whole, batch // whole
    micro_batch = assume.default(
        "micro_batch", parallel.micro_batch, _usual_micro_batch(run, degrees, origin)
    )
    if batch is None:
        usual = MICROBATCHES_PER_STAGE * degrees.pipeline if degrees.pipeline > 1 else 1
        printed = parallel.num_microbatches or parallel.grad_accum
        return micro_batch, assume.default("num_microbatches", printed, usual)
    accumulates = parallel.num_microbatches or parallel.grad_accum
    splits_local = vocabulary.STACK_HABITS[origin.stack].splits_local_batch and degrees.pipeline > 1
    if splits_local and batch == degrees.data * micro_batch:
        micro_batch, accumulates = assume.default("micro_batch", None, 1), None
    together = degrees.tensor * degrees.context
    if origin.batch_per_device and not accumulates and batch == degrees.data * together * micro_batch:
        micro_batch = assume.default("micro_batch", None, together * micro_batch)
    if batch % (degrees.data * micro_batch):
        raise InputError(
            f"global_batch {batch} is not a multiple of dp {degrees.data} x micro_batch {micro_batch}"
        )
    number = batch // (degrees.data * micro_batch)
    if number > MOST_MICROBATCHES:
        raise InputError(
            f"global_batch {batch} makes {number} micro-batches a step, {MOST_MICROBATCHES} are the most: "
            "it counts sequences, not tokens"
        )
    if accumulates not in (None, number):
        made = f"global_batch {batch} over dp {degrees.data} x micro_batch {micro_batch}"
        assume.made.append(f"num_microbatches={number} ({made}, not {accumulates})")
    return micro_batch, number


def _usual_micro_batch(run: RunFile, degrees: Degrees, origin: Origin) -> int:
    """What is left of a rank's sequences for each micro-batch that it is said to accumulate; else one sequence.

    All of them in programs that print batches for each device.
    """
    parallel = run.parallel
    said = parallel.num_microbatches or parallel.grad_accum
    whole = origin.batch_per_device and degrees.pipeline == 1
    each, uneven = divmod(parallel.global_batch or 1, degrees.data * (said or 1))
    return each if (said or whole) and each and not uneven else 1


def _virtual_stages(run: RunFile, degrees: Degrees, assume: Assumptions) -> int:
    printed = run.parallel.vp
    if degrees.pipeline == 1:
        return 1
    schedule = (run.parallel.schedule or "").lower()
    if isinstance(printed, str) and printed.isdigit():
        printed = int(printed)
    if is_written_out(schedule):
        return (
            printed
            if isinstance(printed, int)
            else schedule_entry(run.parallel.schedule or "").stages_per_rank[0]
        )
    least = schedule_entry(_schedule(run, degrees, Assumptions())).stages_per_rank[0]
    if isinstance(printed, int) and not printed == 1 < least:
        return printed
    loops = printed not in (None, 1) or "interleaved" in schedule.replace("non-interleaved", "")
    return assume.default("vp", None, max(2, least)) if loops or least > 1 else 1


def _sequence_parallel(run: RunFile, degrees: Degrees, job: Job, origin: Origin, assume: Assumptions) -> bool:
    if degrees.tensor == 1:
        return True  # nothing to split: the flag has no effect
    habits = vocabulary.STACK_HABITS[job.stack]
    if habits.always_splits_sequence:
        return assume.default("sequence_parallel", None, True)
    usual = origin.sequence_parallel
    if usual is None:
        usual = habits.sequence_parallel and job.attention_kernel == "flash"
    return assume.default("sequence_parallel", run.parallel.sequence_parallel, usual)


def _schedule(run: RunFile, degrees: Degrees, assume: Assumptions) -> str:
    if degrees.pipeline == 1:
        return "1f1b"
    if run.parallel.schedule is not None and is_written_out(run.parallel.schedule):
        return run.parallel.schedule
    usual = "1f1b" if run.parallel.vp in (None, 1) else "interleaved"
    found = assume.understand("schedule", run.parallel.schedule, vocabulary.SCHEDULES, usual)
    # Sources call both forms by the name of the other; the stages of a rank decide.
    if found in ("1f1b", "interleaved") and run.parallel.vp is not None and found != usual:
        return assume.default("schedule", None, usual)
    return found


def _offload(run: RunFile) -> tuple[str, ...]:
    parallel = run.parallel
    optimizer = parallel.cpu_offload_optimizer or "CPU-offloaded Adam" in (parallel.sharding or "")
    share = parallel.act_offload_fraction or parallel.cpu_offload_layers
    activations = parallel.act_offload or "offload" in (parallel.recompute or "") or bool(share)
    weights = bool(parallel.cpu_offload_weights)
    found = {"optimizer": optimizer or weights, "weights": weights, "activations": activations}
    return tuple(name for name, on in found.items() if on)


def _offload_share(run: RunFile) -> float:
    """Share of the activations that go to the host: printed, or as a number of layers, else all."""
    parallel = run.parallel
    if parallel.cpu_offload_layers and run.model.layers:
        return min(1.0, parallel.cpu_offload_layers / run.model.layers)
    return parallel.act_offload_fraction or 1.0
