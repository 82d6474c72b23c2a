"""How well a job uses more devices: efficiency along series of growing clusters, and where it falls."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from planner.sweep.records import Knee, Point


def efficiencies(points: Sequence[Point]) -> Mapping[int, float]:
    """Index of a planned point -> tokens/s per device over the best of its own and the smaller clusters of its series.

    The smallest cluster alone is no measure: where memory is short it is slow too.
    """
    found = {}
    for members in _series(points).values():
        best = 0.0
        for i in members:
            best = max(best, _rate(points[i]))
            found[i] = _rate(points[i]) / best
    return found


def knees(points: Sequence[Point], threshold: float) -> tuple[Knee, ...]:
    """Of every series with more than one count: up to which one efficiency stays above ``threshold``."""
    found = []
    for members in _series(points).values():
        if len({points[i].inputs.devices for i in members}) < 2:
            continue
        rates = [(points[i].inputs.devices, points[i].scaling_efficiency or 0.0) for i in members]
        below = next((n for n, share in rates if share < threshold), None)
        above = [n for n, share in rates if below is None or n < below]
        found.append(
            Knee(
                series=_shared(points[members[0]]),
                threshold=threshold,
                smallest_devices=rates[0][0],
                last_devices_above=above[-1] if above else None,
                first_devices_below=below,
            )
        )
    return tuple(found)


def _shared(point: Point) -> dict[str, Any]:
    """Inputs of a point, less its size."""
    return point.inputs.model_dump(exclude={"devices", "nodes"}, exclude_defaults=True)


def _series(points: Sequence[Point]) -> Mapping[Hashable, list[int]]:
    """Planned points that differ in size alone, the smallest first."""
    series: dict[Hashable, list[int]] = defaultdict(list)
    for i, point in enumerate(points):
        if point.status == "planned":
            series[repr(sorted(_shared(point).items()))].append(i)
    return {name: sorted(members, key=lambda i: points[i].inputs.devices) for name, members in series.items()}


def _rate(point: Point) -> float:
    assert point.estimate is not None
    return point.estimate.tokens_per_s_per_device
