"""The figures of a plan: where its memory and time go, what limits it, what came close."""

from collections.abc import Mapping, Sequence

from cluster_specs.cluster import ClusterSpec
from cluster_specs.units import GIB, format_bandwidth, format_bytes, format_rate, format_seconds
from cost_models.roofline import product_peak, ridge_point
from planner.analysis.naming import short_name
from planner.analysis.replicas import Scaled
from planner.analysis.sensitivity import Sensitivity
from planner.evaluation.operators import OperatorCost
from planner.evaluation.timeline import StepTimeline
from planner.pages.charts import (
    COLOURS,
    PLOT,
    Row,
    Spec,
    bars_height,
    chart,
    device_counts,
    kinds,
    labelled_bars,
    logarithmic,
    name,
    quantity,
    tips,
)
from planner.pages.page import Figure, Table
from planner.plans import Estimate, Parallelism, Plan
from planner.report.plans import TIME_PARTS

MOST_COMPONENTS = 9
"""Components of memory that have a colour of their own; the others share one."""

ROOM = 10.0
"""The roof is drawn so many times beyond the least and the most intense operator."""


def memory_figure(step: StepTimeline) -> Figure:
    """Bars of memory by pipeline rank, in components, against the device's limit."""
    largest = _largest([memory.components for memory in step.memory])
    ranks = [_rank_name(step, rank) for rank in range(len(step.memory))]
    held = [_grouped(memory.components, largest) for memory in step.memory]
    rows = [
        {"rank": rank, "component": words(part), "gib": size / GIB, "text": format_bytes(size)}
        for rank, parts in zip(ranks, held, strict=True)
        for part, size in parts.items()
    ]
    limit = step.memory_limit_bytes
    parts = [words(part) for part in dict.fromkeys(part for parts in held for part in parts)]
    fullest = max(memory.total for memory in step.memory)
    table = [
        (
            rank,
            memory.phase,
            *(format_bytes(parts.get(p, 0.0)) for p in _order(held)),
            format_bytes(memory.total),
        )
        for rank, parts, memory in zip(ranks, held, step.memory, strict=True)
    ]
    return Figure(
        "memory-by-rank",
        "Memory of one device, by pipeline rank",
        f"At its fullest moment, as the driver reports it. The fullest holds {format_bytes(fullest)} of "
        f"{format_bytes(limit)}; the dashed line is all that the device has.",
        _memory_chart(rows, parts, limit),
        Table(("rank", "peak in", *parts, "all"), tuple(table)),
        wide=True,
    )


def _memory_chart(rows: Sequence[Row], parts: Sequence[str], limit: float) -> Spec:
    bars = {
        "y": name("rank", axis={"title": None, "domain": False, "ticks": False}),
        "x": quantity("gib", "memory [GiB]", axis={"tickCount": 8}),
        "color": {
            "field": "component",
            "type": "nominal",
            "scale": {"domain": parts, "range": COLOURS[: len(parts)]},
        },
        "order": {"field": "place", "type": "quantitative"},
        "tooltip": tips({"": "rank", "component": "component", "memory": "text"}),
    }
    placed = [{**row, "place": parts.index(row["component"])} for row in rows]
    rule = {"type": "rule", "strokeDash": [5, 3], "size": 2, "color": "var(--limit)"}
    end: Spec = {"x": {"datum": limit / GIB}, "tooltip": {"value": f"limit {format_bytes(limit)}"}}
    height = bars_height(len({row["rank"] for row in rows}))
    return chart(height, {"mark": "bar", "encoding": bars}, {"mark": rule, "encoding": end}, data=placed)


def _rank_name(step: StepTimeline, rank: int) -> str:
    stages = step.timeline.schedule.stages_of(rank)
    several = ", ".join(map(str, stages[:4])) + (", ..." if len(stages) > 4 else "")
    return f"rank {rank} (stage{'s' if len(stages) > 1 else ''} {several})"


def _largest(held: Sequence[Mapping[str, float]]) -> list[str]:
    total: dict[str, float] = {}
    for parts in held:
        for part, size in parts.items():
            total[part] = total.get(part, 0.0) + size
    return sorted(total, key=lambda part: -total[part])[:MOST_COMPONENTS]


def _grouped(parts: Mapping[str, float], largest: Sequence[str]) -> dict[str, float]:
    """The ``largest`` by themselves, the rest as "other"."""
    shown = {part: parts[part] for part in largest if part in parts}
    rest = sum(size for part, size in parts.items() if part not in largest)
    return shown | ({"other": rest} if rest > 0 else {})


def _order(held: Sequence[Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(part for parts in held for part in parts))


def words(part: str) -> str:
    """Name of a component for people."""
    return part.replace("_", " ")


def time_figure(estimate: Estimate) -> Figure:
    """Bars of what a step's time goes to."""
    parts = sorted(estimate.time.items(), key=lambda part: -part[1])
    rows: list[Row] = [
        {
            "name": words(TIME_PARTS.get(part, part)),
            "value": seconds,
            "text": f"{format_seconds(seconds)} ({seconds / estimate.step_time_s:.0%})",
        }
        for part, seconds in parts
    ]
    return Figure(
        "time",
        "Where the time of a step goes",
        f"The parts add up to {format_seconds(estimate.step_time_s)}; communication counts only where no computation "
        "hides it.",
        labelled_bars(rows, "time [s]"),
        Table(("part", "time, share of the step"), tuple((row["name"], row["text"]) for row in rows)),
    )


def sensitivity_figure(found: Sequence[Sensitivity]) -> Figure:
    """Bars of what better hardware would save."""
    rows: list[Row] = [
        {
            "name": each.number.replace("-", " "),
            "value": each.time_saved_fraction,
            "text": f"{each.time_saved_fraction:.1%}",
        }
        for each in found
    ]
    return Figure(
        "sensitivity",
        "What better hardware would save",
        f"Share of the step saved if one number were a tenth better, with the plan unchanged: {found[0].what} helps "
        "most. More memory saves nothing by itself; it takes another plan to use it.",
        labelled_bars(rows, "share of the step saved", axis={"format": ".1~%"}),
        Table(
            ("number", "saved"),
            tuple((each.what, row["text"]) for each, row in zip(found, rows, strict=True)),
        ),
    )


def contenders_figure(plan: Plan, estimate: Estimate) -> Figure:
    """The plan and the next best by time and memory."""
    chosen = _contender("this plan", plan.plan, estimate, "")
    others = [_contender("next best", a.plan, a.estimate, a.loses_because) for a in plan.alternatives]
    encoding: Spec = {
        "x": quantity("seconds", "step time [s]", scale={"zero": False}),
        "y": quantity("gib", "memory of the fullest device [GiB]", scale={"zero": False}),
        **kinds("this plan", "next best"),
        "tooltip": tips({"": "plan", "step time": "time", "memory": "memory", "because": "because"}),
    }
    rows = [chosen, *others]
    return Figure(
        "contenders",
        "What came close",
        "Left is faster, lower leaves more memory free.",
        chart(PLOT, {"mark": {"type": "point", "size": 110}, "encoding": encoding}, data=rows),
        Table(
            ("plan", "step time", "memory", "why not"),
            tuple((str(r["plan"]), str(r["time"]), str(r["memory"]), str(r["because"])) for r in rows),
            prose=True,
        ),
    )


def _contender(kind: str, choice: Parallelism, estimate: Estimate, because: str) -> Row:
    return {
        "kind": kind,
        "plan": short_name(choice),
        "seconds": estimate.step_time_s,
        "gib": estimate.memory_bytes / GIB,
        "time": format_seconds(estimate.step_time_s),
        "memory": format_bytes(estimate.memory_bytes) + ("" if estimate.fits else ", does not fit"),
        "because": because or "chosen",
    }


def roofline_figure(operators: Sequence[OperatorCost], cluster: ClusterSpec, precision: str) -> Figure:
    """Operators by arithmetic intensity and attained rate, under the roof."""
    computing = [op for op in operators if op.flops > 0]
    rows = [
        {
            "operator": f"{op.block}.{op.name}",
            "kind": "attention" if op.bound == "attention" else "matrix product",
            "intensity": op.flops / op.moved_bytes,
            "rate": op.flops_per_second / 1e12,
            "text": format_rate(op.flops_per_second),
            "each": format_seconds(op.seconds),
            "count": op.instances,
        }
        for op in computing
    ]
    device, rate = cluster.device, product_peak(cluster.device, precision)
    roof = _roof(cluster, precision, [float(row["intensity"]) for row in rows])
    x = logarithmic("intensity", "arithmetic intensity [FLOP/byte]", [*roof, *rows])
    y = logarithmic("rate", "attained [TFLOP/s]", [*roof, *rows])
    encoding: Spec = {
        "x": x,
        "y": y,
        **kinds("matrix product", "attention"),
        "tooltip": tips({"": "operator", "attained": "text", "forward": "each", "in the model": "count"}),
    }
    line: Spec = {
        "mark": {"type": "line", "color": "var(--soft)"}, "data": {"values": roof}, "encoding": {"x": x, "y": y}
    }  # fmt: skip
    return Figure(
        "roofline",
        "Operators under the roof of the device",
        f"Forward of one micro-batch on one {device.name}. The roof is {format_rate(rate)} in {precision} and "
        f"{format_bandwidth(device.memory_bandwidth)}, which meet at {ridge_point(device, precision):.0f} FLOP/byte. "
        "Operators without arithmetic are in the table only.",
        chart(PLOT, line, {"mark": "point", "encoding": encoding}, data=rows),
        Table(
            ("operator", "in the model", "FLOP/byte", "attained", "traffic", "forward"),
            tuple(map(_operator_row, operators)),
        ),
    )


def _roof(cluster: ClusterSpec, precision: str, intensities: Sequence[float]) -> list[Row]:
    """Corners of the roof, somewhat beyond the operators."""
    device, rate = cluster.device, product_peak(cluster.device, precision)
    ridge = ridge_point(device, precision)
    low, high = min((*intensities, ridge)) / ROOM, max((*intensities, ridge)) * ROOM
    return [{"intensity": x, "rate": min(rate, rate * x / ridge) / 1e12} for x in (low, ridge, high)]


def _operator_row(op: OperatorCost) -> tuple[str, ...]:
    intensity = f"{op.flops / op.moved_bytes:,.0f}" if op.flops else "-"
    rate = format_rate(op.flops_per_second) if op.flops else "-"
    traffic = format_bandwidth(op.bytes_per_second)
    return (f"{op.block}.{op.name}", str(op.instances), intensity, rate, traffic, format_seconds(op.seconds))


def scaling_figure(found: Sequence[Scaled], chosen: int) -> Figure:
    """Tokens/s over devices, the same split with more or fewer replicas, beside what perfect scaling would give."""
    least = next((s for s in found if s.fits), found[0])
    rows = [
        {
            "kind": _scaled_kind(s, chosen),
            "devices": s.devices,
            "rate": s.tokens_per_s,
            "ideal": s.devices * least.tokens_per_s / least.devices,
            "text": f"{s.tokens_per_s:,.0f} tokens/s",
            "efficiency": f"{s.efficiency:.0%}",
            "memory": format_bytes(s.memory_bytes),
        }
        for s in found
    ]
    return Figure(
        "scaling",
        "The same split on more or fewer devices",
        "The batch stays, replicas come and go; a search at each size could do better. Per cent: tokens/s per "
        f"device over those on {least.devices:,} devices, to which the dashed line keeps.",
        _scaling_chart(rows),
        Table(
            ("devices", "throughput", "efficiency", "memory of the fullest"),
            tuple(
                tuple(str(row[field]) for field in ("devices", "text", "efficiency", "memory"))
                for row in rows
            ),
        ),
    )


SCALED_KINDS = ("this plan", "more or fewer replicas", "does not fit")


def _scaled_kind(scaled: Scaled, chosen: int) -> str:
    if not scaled.fits:
        return SCALED_KINDS[2]
    return SCALED_KINDS[0 if scaled.devices == chosen else 1]


def _scaling_chart(rows: Sequence[Row]) -> Spec:
    """Points over devices with their efficiency, and a dashed line where perfect scaling would lead."""
    x = device_counts([int(row["devices"]) for row in rows])
    both = [{"rate": row[field]} for row in rows for field in ("rate", "ideal")]
    y = logarithmic("rate", "tokens/s", both)
    facts = tips({"devices": "devices", "throughput": "text", "efficiency": "efficiency", "memory": "memory"})
    dashed = {"type": "line", "strokeDash": [4, 4], "color": "var(--soft)"}
    text = {"type": "text", "dy": 14, "dx": 16}
    present = [kind for kind in SCALED_KINDS if any(row["kind"] == kind for row in rows)]
    return chart(
        PLOT,
        {"mark": dashed, "encoding": {"x": x, "y": {**y, "field": "ideal"}}},
        {"mark": "line", "encoding": {"x": x, "y": y}},
        {"mark": "point", "encoding": {"x": x, "y": y, **kinds(*present), "tooltip": facts}},
        {"mark": text, "encoding": {"x": x, "y": y, "text": {"field": "efficiency"}}},
        data=rows,
    )
