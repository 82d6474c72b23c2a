"""Problems of the public contest on intra-operator parallelism: reading them, and what a solution is worth.

A problem has nodes with strategies. A solution takes one strategy per node and pays the costs of nodes and
edges. Node i's output lives over [a, b) and takes ``usages[i][s]`` while it does; a solution is feasible when
at no time the outputs alive take more than ``usage_limit``. Everything is an exact integer.

Source: google/iopddl (ASPLOS / EuroSys 2025), format and rules of the contest.
"""

import gzip
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.errors import InputError
from planner.garbage import uncollected

NEVER = 10**18
"""Costs from here on mean that an entry must not be taken."""

LATEST = 2**62
"""Moments are counted in 64 bits."""

GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class ContestProblem:
    """A problem as its file says."""

    name: str
    intervals: tuple[tuple[int, int], ...]
    """Per node, the life [a, b) of its output; may be empty."""
    costs: tuple[tuple[int, ...], ...]
    """Per node, one entry per strategy."""
    usages: tuple[tuple[int, ...], ...]
    """Per node, one entry per strategy [B]."""
    edges: tuple[tuple[int, ...], ...]
    """Node indices; repeated edges add up, and a node may be named twice."""
    edge_costs: tuple[tuple[int, ...], ...]
    """Per edge, one entry per combination of its nodes' strategies, the first node most significant."""
    usage_limit: int | None = None
    """Most that may be alive at once [B]; None: no limit."""

    def __post_init__(self) -> None:
        _check(self)

    def cost(self, choice: Sequence[int]) -> int:
        """Sum of node and edge costs of ``choice``."""
        self._check_choice(choice)
        nodes = sum(costs[s] for costs, s in zip(self.costs, choice, strict=True))
        return nodes + sum(
            costs[self._index(edge, choice)] for edge, costs in zip(self.edges, self.edge_costs, strict=True)
        )

    def peak(self, choice: Sequence[int]) -> int:
        """Largest sum of usages alive at one time [B]; zero where nothing lives."""
        self._check_choice(choice)
        change: dict[int, int] = defaultdict(int)
        for (start, end), usages, s in zip(self.intervals, self.usages, choice, strict=True):
            if start < end:
                change[start] += usages[s]
                change[end] -= usages[s]
        peak = alive = 0
        for time in sorted(change):
            alive += change[time]
            peak = max(peak, alive)
        return peak

    def fits(self, choice: Sequence[int]) -> bool:
        """Whether ``choice`` stays within the limit at all times."""
        return self.usage_limit is None or self.peak(choice) <= self.usage_limit

    def _index(self, edge: Sequence[int], choice: Sequence[int]) -> int:
        index = 0
        for node in edge:
            index = index * len(self.costs[node]) + choice[node]
        return index

    def _check_choice(self, choice: Sequence[int]) -> None:
        if len(choice) != len(self.costs):
            raise InputError(f"{len(choice)} strategies given for {len(self.costs)} nodes; each needs one")
        for node, (s, costs) in enumerate(zip(choice, self.costs, strict=True)):
            if not 0 <= s < len(costs):
                raise InputError(f"node {node}: strategy {s} is not among its 0 to {len(costs) - 1}")


def read_contest_problem(path: Path) -> ContestProblem:
    """The problem in a JSON file, which may be compressed by gzip.

    Raises `InputError` where there is none or it is no such problem, and ``OSError`` where it cannot be read.
    """
    if path.is_dir():
        raise InputError(f"{path} is a folder, a file is needed")
    if not path.exists():
        raise InputError(f"{path}: no such file")
    data = path.read_bytes()
    with uncollected():
        try:
            document = json.loads(gzip.decompress(data) if data.startswith(GZIP_MAGIC) else data)
        except (ValueError, EOFError, OSError, RecursionError) as error:
            raise InputError(f"{path}: neither JSON nor JSON compressed by gzip ({error})") from None
        try:
            return parse_contest_problem(document)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None


def parse_contest_problem(document: Any) -> ContestProblem:
    """The problem in a document of the contest's form; raises `InputError` where it has another."""
    problem = _member(document, "problem", "the document", Mapping)
    nodes = _member(problem, "nodes", "problem", Mapping)
    edges = _member(problem, "edges", "problem", Mapping)
    limit = problem.get("usage_limit")
    if limit is not None and type(limit) is not int:
        raise InputError(f"problem.usage_limit must be an integer, not {limit!r}")
    return ContestProblem(
        name=str(problem.get("name", "")),
        intervals=_rows(nodes, "intervals", "problem.nodes"),  # type: ignore[arg-type]
        costs=_rows(nodes, "costs", "problem.nodes"),
        usages=_rows(nodes, "usages", "problem.nodes"),
        edges=_rows(edges, "nodes", "problem.edges"),
        edge_costs=_rows(edges, "costs", "problem.edges"),
        usage_limit=limit,
    )


def _member(mapping: Any, key: str, where: str, kind: type) -> Any:
    if not isinstance(mapping, Mapping) or not isinstance(mapping.get(key), kind):
        expected = "a list" if kind is list else "an object"
        raise InputError(f"{where} needs {key!r}, {expected}")
    return mapping[key]


def _rows(mapping: Any, key: str, where: str) -> tuple[tuple[int, ...], ...]:
    rows = _member(mapping, key, where, list)
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            raise InputError(f"{where}.{key}[{number}] must be a list of integers")
    return tuple(map(tuple, rows))


def _check(problem: ContestProblem) -> None:
    num = len(problem.costs)
    for what in ("intervals", "usages"):
        if len(getattr(problem, what)) != num:
            raise InputError(f"{len(getattr(problem, what))} {what} given for {num} nodes; each needs one")
    for node, given in enumerate(zip(problem.intervals, problem.costs, problem.usages, strict=True)):
        _check_node(node, *given)
    if len(problem.edges) != len(problem.edge_costs):
        raise InputError(f"{len(problem.edge_costs)} tables of costs given for {len(problem.edges)} edges")
    for number, (edge, costs) in enumerate(zip(problem.edges, problem.edge_costs, strict=True)):
        if not edge or not all(0 <= node < num for node in edge):
            raise InputError(f"edge {number} must name nodes from 0 to {num - 1}, not {list(edge)}")
        entries = math.prod(len(problem.costs[node]) for node in edge)
        if len(costs) != entries:
            raise InputError(f"edge {number}: {entries} costs are needed, {len(costs)} given")


def _check_node(node: int, interval: Sequence[int], costs: Sequence[int], usages: Sequence[int]) -> None:
    if len(interval) != 2:
        raise InputError(f"node {node}: an interval has a start and an end, not {len(interval)} numbers")
    if any(abs(moment) > LATEST for moment in interval):
        raise InputError(f"node {node}: moments lie within {LATEST} of 0, not {list(interval)}")
    if not costs or len(costs) != len(usages):
        raise InputError(
            f"node {node}: {len(costs)} costs and {len(usages)} usages;"
            " there must be one of each per strategy, and a strategy"
        )
