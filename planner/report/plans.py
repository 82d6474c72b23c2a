"""The recommendation on one screen: what to do, what it gives, where memory and time go, what came close."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster_specs.units import format_bytes, format_rate, format_seconds
from planner.analysis.naming import EXCHANGES, short_name
from planner.evaluation.setting import batch_name, describe_trained
from planner.models.catalog import counted
from planner.pipeline.generators import schedule_label
from planner.plans import Estimate, Optimality, Parallelism, Plan
from planner.report.console import Bar, columns, heading

DEGREES = ("data", "tensor", "pipeline", "context", "expert")

TIME_PARTS: Mapping[str, str] = {
    "tensor": "exposed tensor-parallel",
    "context": "exposed context-parallel",
    "expert": "exposed expert-parallel",
    "data": "exposed data-parallel",
    "overlap_slowdown": "slowed by overlap",
}
"""What parts of a step are called where the axis alone would not say that it is communication."""

SMALL_SHARE = 0.005
"""Components below this share of the whole are added up as "other"."""


def plan_report(plan: Plan, assumed: Sequence[str] = ()) -> RenderableType:
    """A plan with its estimate, and what had to be ``assumed`` to make it."""
    parts: list[RenderableType] = [_job(plan), heading("Plan"), _choices(plan)]
    if plan.estimate is not None:
        parts += _estimate(plan.estimate, counted(plan.model))
    if plan.alternatives:
        parts += [heading("Next best"), _alternatives(plan)]
    if plan.explanation:
        parts += [heading("Why"), Text(plan.explanation)]
    if plan.optimality is not None:
        parts += [heading("Proof"), Text(optimality_statement(plan.optimality))]
    if assumed:
        parts += [heading("Assumed"), Text(", ".join(assumed))]
    return Group(*parts)


def _job(plan: Plan) -> Text:
    job, cluster = plan.job, plan.cluster
    types = job.precision + (" under autocast" if job.autocast else "")
    weights = "" if job.master_weights else ", no fp32 master weights"
    tiles = f", feed-forward layers in {job.mlp_tiles} parts of a sequence" if job.mlp_tiles > 1 else ""
    devices = " + ".join(f"{pool.num_devices} x {pool.device.name}" for pool in cluster.pools)
    return Text(
        f"{plan.model.name} on {devices} ({cluster.name}), "
        f"{batch_name(plan.model, job)}, {types}, {job.optimizer}{weights}, "
        f"{job.stack}{tiles}",
        style="bold",
    )


def _choices(plan: Plan) -> Table:
    table = columns("", "")
    for name, text in describe_choices(plan):
        table.add_row(name, text)
    return table


def describe_choices(plan: Plan) -> Iterator[tuple[str, str]]:
    """Every choice of a plan as a name and a phrase."""
    choice, fed = plan.plan, counted(plan.model)
    samples = "sequences" if fed == "tokens" else fed
    if plan.job.adapter is not None:
        yield "trained", describe_trained(plan.model, plan.job)
    whole = sum(pool.num_devices for pool in plan.cluster.pools)
    if choice.num_devices < whole:
        yield "devices", f"{choice.num_devices} of {whole}; the others idle"
    if choice.stages_differ or plan.cluster.others:
        yield from _stages(plan)
    else:
        yield "parallelism", ", ".join(f"{axis} {getattr(choice, axis)}" for axis in DEGREES)
    yield (
        "batch",
        (
            f"micro-batch {choice.micro_batch} x {choice.num_microbatches} accumulated x {choice.data} ranks "
            f"= {choice.micro_batch * choice.num_microbatches * choice.data} {samples}"
        ),
    )
    if choice.expert_ranks > 1:
        yield "experts", f"over {choice.expert_ranks} ranks; tokens by {EXCHANGES[plan.job.token_exchange]}"
    yield "sharding", describe_sharding(choice)
    yield "pipeline", describe_pipeline(choice)
    if choice.tensor > 1:
        yield "sequence parallel", "yes" if choice.sequence_parallel else "no"
    yield "recompute", describe_recompute(choice)
    if choice.offload:
        yield "offload", ", ".join(choice.offload)


def _stages(plan: Plan) -> Iterator[tuple[str, str]]:
    """Layers, devices and degrees of stages of their own."""
    pools = plan.cluster.pools
    for number, stage in enumerate(plan.plan.stages):
        start, end = stage.devices
        before = [sum(pool.num_devices for pool in pools[: k + 1]) for k in range(len(pools))]
        device = pools[next(k for k, last in enumerate(before) if start < last)].device.name
        data, tensor, context, expert = stage.degrees
        degrees = dict(zip(DEGREES, (data, tensor, 1, context, expert), strict=True))
        split = ", ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "no split"
        first, last = stage.blocks
        yield (
            f"stage {number}",
            f"layers {first} to {last - 1} on {end - start} x {device} ({start} to {end - 1}): {split}",
        )


def describe_sharding(choice: Parallelism) -> str:
    """ZeRO stage, PyTorch's name for it, and over how many ranks."""
    if choice.zero_stage == 0:
        return "none: every data-parallel rank holds all states of its part (ZeRO 0, NO_SHARD)"
    replicas = f", replicated {choice.replicate_degree}x" if choice.replicate_degree > 1 else ""
    name = f"ZeRO {choice.zero_stage}" + ("" if choice.zero_stage == 1 else f" ({choice.sharding})")
    return f"{name} over {choice.shard_degree} ranks{replicas}"


def describe_pipeline(choice: Parallelism) -> str:
    """Schedule and layers of each stage."""
    if choice.pipeline == 1:
        return "none"
    layers = [stage.blocks[1] - stage.blocks[0] for stage in choice.stages]
    parts = f", {choice.virtual_stages} stages per device" if choice.virtual_stages > 1 else ""
    return f"{schedule_label(choice.schedule)}{parts}; layers per stage: {_runs(layers)}"


def describe_recompute(choice: Parallelism) -> str:
    """Policy, and the stages that differ from it: ``selective; none in stages 6, 13 to 15``."""
    stages: dict[str, list[int]] = {}
    for i, stage in enumerate(choice.stages):
        if stage.recompute not in (None, choice.recompute):
            stages.setdefault(stage.recompute, []).append(i)
    own = [
        f"{policy} in stage{'s' if len(where) > 1 else ''} {_ranges(where)}"
        for policy, where in stages.items()
    ]
    every = f" in every {choice.recompute_every} layers' first" if choice.recompute_every > 1 else ""
    return "; ".join([choice.recompute + every, *own])


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those that follow one another as one: ``6, 13 to 15``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _runs(values: Sequence[int]) -> str:
    """``[9, 10, 10, 9]`` as ``9, 2 x 10, 9``."""
    groups: list[list[int]] = []
    for value in values:
        if groups and groups[-1][0] == value:
            groups[-1][1] += 1
        else:
            groups.append([value, 1])
    return (
        ", ".join(f"{count} x {value}" if count > 1 else f"{value}" for value, count in groups)
        or "not decided"
    )


def _estimate(estimate: Estimate, fed: str) -> list[RenderableType]:
    used, limit = estimate.memory_bytes, estimate.memory_limit_bytes
    verdict = "fits" if estimate.fits else "DOES NOT FIT"
    memory = columns("", "")
    memory.add_row(
        Bar(used / limit if limit else 1.0, frame=True, style="green" if estimate.fits else "red"),
        f"{format_bytes(used)} of {format_bytes(limit)}: {verdict}",
    )
    if estimate.host_bytes:
        known = "" if estimate.host_limit_bytes is None else f" of {format_bytes(estimate.host_limit_bytes)}"
        memory.add_row("", f"offloaded: {format_bytes(estimate.host_bytes)}{known} on the host of a node")
    return [
        heading("Estimate"),
        _headline(estimate, fed),
        heading(
            f"Memory of the fullest device (stage {estimate.fullest_stage}, peak in {estimate.peak_phase})"
        ),
        memory,
        shares(estimate.memory, format_bytes),
        heading("Time of a step"),
        shares(
            {TIME_PARTS.get(part, part): seconds for part, seconds in estimate.time.items()}, format_seconds
        ),
        *_communication(estimate),
    ]


def _headline(estimate: Estimate, fed: str) -> Table:
    low, high = estimate.step_time_interval_s
    table = columns("", "")
    table.add_row(
        "step time", f"{format_seconds(estimate.step_time_s)} (80 % of such runs: {_span(low, high)})"
    )
    table.add_row(
        "throughput",
        f"{estimate.tokens_per_s:,.0f} {fed}/s, {estimate.tokens_per_s_per_device:,.0f} per device",
    )
    table.add_row(
        "utilisation",
        f"MFU {estimate.mfu:.1%}, HFU {estimate.hfu:.1%} "
        f"({format_rate(estimate.model_flops_per_s_per_device)} of model per device)",
    )
    table.add_row(
        "counted", f"masked attention as nothing, over a dense peak of {format_rate(estimate.dense_peak)}"
    )
    if estimate.bubble_fraction:
        table.add_row(
            "bubble", f"{estimate.bubble_fraction:.1%} of the pipeline's time its busiest rank waits"
        )
    return table


def _span(low: float, high: float) -> str:
    return f"{format_seconds(low)} to {format_seconds(high)}"


def shares(parts: Mapping[str, float], text_of: Callable[[float], str]) -> Table:
    """Components, largest first, with their share of the sum as a bar; the small ones added up."""
    total = sum(parts.values())
    large = {name: value for name, value in parts.items() if value > SMALL_SHARE * total}
    rest = total - sum(large.values())
    rows = sorted(large.items(), key=lambda item: -item[1])
    if rest > 0:
        rows.append(("other", rest))
    table = columns("", "", "", "", right="lrrl")
    for name, value in rows:
        share = value / total if total else 0.0
        table.add_row(name.replace("_", " "), text_of(value), f"{share:.0%}", Bar(share))
    return table


def _communication(estimate: Estimate) -> list[RenderableType]:
    sent = {kind: size for kind, size in estimate.communication.items() if size > 0}
    if not sent:
        return []
    text = ", ".join(f"{kind.replace('_', ' ')} {format_bytes(size)}" for kind, size in sent.items())
    return [Text(f"sent by a device in a step: {text}", style="dim")]


def _alternatives(plan: Plan) -> Table:
    table = columns("plan", "step time", "memory", "because", right="lrrl")
    for alternative in plan.alternatives:
        estimate = alternative.estimate
        table.add_row(
            short_name(alternative.plan),
            format_seconds(estimate.step_time_s),
            format_bytes(estimate.memory_bytes) + ("" if estimate.fits else " (too much)"),
            alternative.loses_because,
        )
    return table


def optimality_statement(optimality: Optimality) -> str:
    """What the search can promise, and of which plans it cannot."""
    plans = "plan" if optimality.evaluated == 1 else "plans"
    effort = f"{optimality.evaluated:,} {plans} evaluated, {optimality.pruned:,} excluded by bounds"
    limits = f"; limits hit: {', '.join(optimality.limits_hit)}" if optimality.limits_hit else ""
    space = f" Not in it: {'; '.join(optimality.left_out)}." if optimality.left_out else ""
    if optimality.proven:
        return f"Proven best in the searched space ({effort}{limits}).{space}"
    return f"Best found; nothing in the space is more than {optimality.gap:.1%} better ({effort}{limits}).{space}"
