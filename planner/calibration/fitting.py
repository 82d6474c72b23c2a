"""Constants of a cluster from measurements, each through the cost model that uses it."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, TypeVar

from cluster_specs.catalog import load_cluster
from cluster_specs.changes import with_numbers
from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Record
from cluster_specs.shipped import FittedValue, MeasuredLine, cluster_files
from cluster_specs.topology import CommGroup, comm_group
from cost_models.calibration import Fit, alpha_beta, fit_constants
from cost_models.collectives import COLLECTIVES, choice, wire_bytes
from cost_models.compute import AttentionShape, attention_seconds, matmul_seconds, stream_seconds
from planner.calibration.measurements import (
    AttentionMeasurement,
    CollectiveMeasurement,
    CopyMeasurement,
    LaunchMeasurement,
    MatmulMeasurement,
    Measurement,
)
from planner.errors import InputError

LEAST_FOR_LINE = 3
"""Sizes without which a line is not worth its two constants."""
FASTER = 0.05
"""A constant at its limit that still predicts so much more than was measured means a wrong base."""
NOTHING = 1e-3
"""A constant that ends below this share of what the base has explains nothing: something else takes all the time."""
MEDIAN, WORST = 0.25, 0.5
"""Residuals above which constants are no description of what was measured."""

M = TypeVar("M", bound=Record)


class Calibration(Record):
    """What was measured, as changes of a base, and how well they explain it."""

    base: str
    """A shipped cluster, without its size."""
    measurements: int
    changes: Mapping[str, float]
    """Dotted path of a field of the cluster -> its value, in SI."""
    before: Mapping[str, float]
    """The same paths -> what the base has."""
    fitted: Mapping[str, FittedValue]
    lines: tuple[MeasuredLine, ...]


class _Task(NamedTuple):
    """Constants that one kind of measurement tells."""

    paths: tuple[str, ...]
    most: tuple[float, ...]
    seconds: Sequence[float]
    predict: Callable[[ClusterSpec], list[float]]


def calibrate(base: str, measurements: Sequence[Measurement]) -> Calibration:
    """Constants of cluster ``base`` (a shipped name without its size) from measurements on it.

    The device first, then links from the innermost: each fit starts from the cluster that the fits before it
    have found. Raises ``InputError`` where there is nothing to fit, the base has no rate for a data type, its
    network is a torus, or it is slower than what was measured.
    """
    cluster = _enough_nodes(base, measurements)
    original, found, fitted = cluster, dict[str, float](), dict[str, FittedValue]()
    for task in _tasks(cluster, measurements):
        fit = _fit(task, cluster)
        for path, value, most in zip(task.paths, fit.values, task.most, strict=True):
            fitted[path] = _judged(path, fit, value >= most, value < NOTHING * _value(cluster, path), base)
            found[path] = value
        cluster = with_numbers(cluster, dict(zip(task.paths, fit.values, strict=True)))
    if not found:
        raise InputError("nothing was measured: use --measure, --nccl-log or --data")
    return Calibration(
        base=base,
        measurements=len(measurements),
        changes=found,
        before={path: _value(original, path) for path in found},
        fitted=fitted,
        lines=_lines(cluster, _only(measurements, CollectiveMeasurement)),
    )


def _enough_nodes(base: str, measurements: Sequence[Measurement]) -> ClusterSpec:
    nodes = max((one.nodes for one in _only(measurements, CollectiveMeasurement)), default=1)
    if ":" in base:
        raise InputError(f"calibrate takes a cluster without its size: {base.partition(':')[0]}, not {base}")
    file = cluster_files().get(base.lower())
    if file is not None and file.slices is not None:
        raise InputError(f"{base} has slices of a torus, not nodes: calibrate cannot measure it")
    return load_cluster(f"{base}:{nodes}")


def _only(measurements: Sequence[Measurement], kind: type[M]) -> list[M]:
    return [one for one in measurements if isinstance(one, kind)]


def _fit(task: _Task, cluster: ClusterSpec) -> Fit:
    def predict(values: Sequence[float]) -> list[float]:
        return task.predict(with_numbers(cluster, dict(zip(task.paths, values, strict=True))))

    start = [_value(cluster, path) for path in task.paths]
    return fit_constants(predict, task.seconds, start, task.most)


def _judged(path: str, fit: Fit, largest: bool, nothing: bool, base: str) -> FittedValue:
    if largest and sorted(fit.residuals)[len(fit.residuals) // 2] > FASTER:
        raise InputError(
            f"{path}: measured faster than {base} can be, even at its peak; calibrate on the cluster that it was"
        )
    return FittedValue(
        samples=len(fit.residuals),
        median_residual=fit.median_residual,
        worst_residual=fit.worst_residual,
        at_limit=largest or nothing,
    )


def misfits(found: Calibration) -> tuple[str, ...]:
    """Constants that end at a limit, or leave much unexplained, in sentences."""
    said = []
    for path, fit in found.fitted.items():
        if fit.at_limit:
            said.append(f"{path} ended at its limit, {found.changes[path]:.3g}")
        if fit.median_residual > MEDIAN or fit.worst_residual > WORST:
            said.append(
                f"{path} explains its {fit.samples} samples badly: they are off by {fit.median_residual:.0%} in the "
                f"median and {fit.worst_residual:.0%} at worst"
            )
    return tuple(f"{one}; {found.base} may not be what was measured" for one in said)


def _value(cluster: ClusterSpec, path: str) -> float:
    """Field at a dotted path; links go by name."""
    found: Any = cluster
    for part in path.split("."):
        named = {link.name: link for link in found} if isinstance(found, tuple) else None
        found = getattr(found, part) if named is None else named[part]
    return float(found)


# --- what each kind of measurement tells ------------------------------------------------------------------


def _tasks(cluster: ClusterSpec, measurements: Sequence[Measurement]) -> list[_Task]:
    """In the order in which one needs the other: launches bound small kernels, tiers lie inside one another."""
    device = [
        _launch(_only(measurements, LaunchMeasurement)),
        _copy(_only(measurements, CopyMeasurement)),
        _matmul(_only(measurements, MatmulMeasurement)),
    ]
    attention = _only(measurements, AttentionMeasurement)
    device += [_attention([one for one in attention if one.backward is back], back) for back in (False, True)]
    collectives = _only(measurements, CollectiveMeasurement)
    return [task for task in device if task.seconds] + _links(cluster, collectives)


def _launch(measured: Sequence[LaunchMeasurement]) -> _Task:
    return _Task(
        ("device.kernel_launch",),
        (inf,),
        [one.seconds for one in measured],
        lambda cluster: [cluster.device.kernel_launch for _ in measured],
    )


def _copy(measured: Sequence[CopyMeasurement]) -> _Task:
    return _Task(
        ("device.efficiency.memory",),
        (1.0,),
        [one.seconds for one in measured],
        lambda cluster: [stream_seconds(one.bytes, cluster.device).seconds for one in measured],
    )


def _matmul(measured: Sequence[MatmulMeasurement]) -> _Task:
    return _Task(
        ("device.efficiency.matmul",),
        (1.0,),
        [one.seconds for one in measured],
        lambda cluster: [
            matmul_seconds(one.m, one.n, one.k, cluster.device, one.dtype).seconds for one in measured
        ],
    )


def _attention(measured: Sequence[AttentionMeasurement], backward: bool) -> _Task:
    return _Task(
        (f"device.efficiency.attention_{'backward' if backward else 'forward'}",),
        (1.0,),
        [one.seconds for one in measured],
        lambda cluster: [
            attention_seconds(_shape(one), cluster.device, one.dtype, backward=backward).seconds
            for one in measured
        ],
    )


def _shape(one: AttentionMeasurement) -> AttentionShape:
    return AttentionShape(
        batch=one.batch,
        heads=one.heads,
        q_len=one.seq,
        kv_len=one.seq,
        qk_dim=one.head_dim,
        v_dim=one.head_dim,
        kv_heads=one.kv_heads,
        causal=one.causal,
    )


def _links(cluster: ClusterSpec, measured: Sequence[CollectiveMeasurement]) -> list[_Task]:
    """Latency and efficiency of each tier that some group crosses outermost, from the innermost tier."""
    by_tier: dict[int, list[CollectiveMeasurement]] = defaultdict(list)
    for one in measured:
        by_tier[_tier(cluster, one)].append(one)
    return [_link(cluster.links[tier].name, by_tier[tier]) for tier in sorted(by_tier)]


def _tier(cluster: ClusterSpec, one: CollectiveMeasurement) -> int:
    """Index of the innermost tier that joins all ranks of a measurement."""
    reach = (one.nodes - 1) * cluster.devices_per_node + _each(cluster, one)
    return next(index for index, link in enumerate(cluster.links) if link.devices >= reach)


def _link(name: str, measured: Sequence[CollectiveMeasurement]) -> _Task:
    return _Task(
        (f"links.{name}.latency", f"links.{name}.efficiency"),
        (inf, 1.0),
        [one.seconds for one in measured],
        lambda cluster: [COLLECTIVES[one.op](one.bytes, _group(cluster, one)).seconds for one in measured],
    )


def _group(cluster: ClusterSpec, one: CollectiveMeasurement) -> CommGroup:
    return comm_group(cluster, ((_each(cluster, one), 1), (one.nodes, cluster.devices_per_node)))


def _each(cluster: ClusterSpec, one: CollectiveMeasurement) -> int:
    """Ranks on every node. Raises ``InputError`` where they do not lie so."""
    each, rest = divmod(one.ranks, one.nodes)
    if rest or each > cluster.devices_per_node:
        raise InputError(
            f"{one.ranks} ranks on {one.nodes} nodes do not lie on {cluster.name} with "
            f"{cluster.devices_per_node} devices a node"
        )
    return each


def _lines(cluster: ClusterSpec, measured: Sequence[CollectiveMeasurement]) -> tuple[MeasuredLine, ...]:
    """Latency and bandwidth per collective, group and algorithm, where there are enough sizes."""

    def kind(one: CollectiveMeasurement) -> tuple[str, int, int, str]:
        return one.op, one.ranks, one.nodes, choice(one.op, one.bytes, _group(cluster, one)).algorithm

    lines = []
    for (op, ranks, nodes, algorithm), group in groupby(sorted(measured, key=kind), key=kind):
        points = list(group)
        if len({one.bytes for one in points}) < LEAST_FOR_LINE:
            continue
        fit = alpha_beta([one.bytes for one in points], [one.seconds for one in points])
        latency, bandwidth = fit.values
        lines.append(
            MeasuredLine(
                collective=op,
                algorithm=algorithm,
                ranks=ranks,
                nodes=nodes,
                latency=latency,
                bus_bandwidth=wire_bytes(op, bandwidth, ranks),
                samples=len(points),
                median_residual=fit.median_residual,
            )
        )
    return tuple(lines)
