"""Layouts for a traced program: cleaned, tabulated, solved, and read back."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple, Unpack

import numpy as np

from cluster_specs.cluster import ClusterSpec
from cluster_specs.units import format_bytes
from planner.errors import Infeasible, SolverStopped
from planner.garbage import uncollected
from planner.intra_op import clock
from planner.intra_op.answers import NetworkAnswer, combined
from planner.intra_op.bettering import bettered
from planner.intra_op.narrowing import solve_narrowed
from planner.intra_op.parts import TooLarge
from planner.tracing.layouts import Layout, NamedMesh, Partition
from planner.tracing.program import Operation, Program, elements
from planner.tracing.sharded import CollectiveUse, OperatorSharding, ShardedProgram, SharedCopy
from planner.tracing.solving.baselines import BASELINES, Rules, by_rules, fixed_inputs, follow
from planner.tracing.solving.evaluation import ProgramEstimate, held_bytes
from planner.tracing.solving.nodes import (
    AgainOption,
    CopyOption,
    JointOption,
    NodeOption,
    Nodes,
    made_layout,
    without_idle_copies,
)
from planner.tracing.solving.options import Option
from planner.tracing.solving.own_copies import moved, with_own_copies
from planner.tracing.solving.problem import chosen_options
from planner.tracing.solving.rings import from_both_ends, ring_of
from planner.tracing.solving.setting import Conditions, Setting, may_recompute, set_up, tabulated
from planner.tracing.solving.shared_copies import readers_of_copies
from planner.tracing.solving.starting import with_all_kept

NO_SLOWER, WITHOUT, NEARBY = 0.25, 0.25, 0.4
"""Of the time left, where memory is short: for a choice within the limit that is as fast as one without it; where
choices with second runs of operators are many, for one without; and for what is near that one with them."""

AT_FIRST = 500_000
"""Entries of what is left of a program with second runs, up to which it is decided before a choice without is known."""


@uncollected()
def shard(
    program: Program,
    cluster: ClusterSpec | str,
    mesh: Mapping[str, int] | None = None,
    *,
    seconds: float = 60.0,
    **conditions: Unpack[Conditions],
) -> ShardedProgram:
    """The fastest layout of every array of ``program`` on ``mesh`` (axis -> devices) that fits in memory.

    Without a mesh: one axis over the nodes, one over the devices of each. ``memory_limit``, ``optimizer_share`` and
    ``fold`` as in `Conditions`. Stops after about ``seconds`` with the best found and a bound.

    Raises `Infeasible` where nothing fits, ``InputError`` for the mesh or the cluster.
    """
    with clock.counted(seconds) as deadline:
        setting = set_up(program, cluster, mesh, **conditions)
        best = _unlimited(setting, deadline)
        if best.estimate.memory_bytes > setting.memory_limit:
            best = _within_limit(best, conditions, deadline)
    baselines = baseline_estimates(setting).items()
    return _result(best.setting, best.chosen, best.estimate).model_copy(
        update={
            "lower_bound_seconds": min(best.bound, best.estimate.seconds),
            "proven": best.proven,
            "baselines": {n: e.seconds for n, e in baselines if e.memory_bytes <= setting.memory_limit},
        }
    )


class _Solved(NamedTuple):
    """The best choice found in a setting, and what is proven."""

    setting: Setting
    chosen: tuple[NodeOption, ...]
    estimate: ProgramEstimate
    cost: float
    """The same in ticks, by the tables."""
    bound: float
    """[s]"""
    proven: bool


class _NoneAsFast(Infeasible):
    """Nothing was found that is fast enough to be of use."""

    def __init__(self, bound: float, proven: bool) -> None:
        super().__init__("no layouts are as fast")
        self.bound = bound
        """Of what there is [s]."""
        self.proven = proven
        """Whether there is nothing."""


def _solved(setting: Setting, deadline: float, below: float, largest: float) -> _Solved:
    """Within the limit; raises `_NoneAsFast` where nothing was found that takes at most ``below`` [s]."""
    most = np.ceil(below / setting.problem.tick)
    answer = solve_narrowed(setting.problem.network(setting.memory_limit), deadline, most, largest)
    if not answer.choice or answer.cost > most:
        raise _NoneAsFast(_bound(setting, answer), answer.lower_bound > most)
    return _read_back(setting, answer)


def _unlimited(setting: Setting, deadline: float) -> _Solved:
    """Without a limit: where memory may be short in half of the time, and on if it is not.

    To go on is to begin anew below the best choice known, which proves less than the whole time at once.
    """
    now = clock.now()
    roomy = setting.problem.peak(np.max) <= setting.memory_limit
    first = solve_narrowed(setting.problem.network(math.inf), deadline if roomy else (now + deadline) / 2)
    best = _read_back(setting, first)
    if best.proven or best.estimate.memory_bytes > setting.memory_limit or clock.now() >= deadline:
        return best
    more = solve_narrowed(setting.problem.network(math.inf), deadline, first.cost - 1)
    better = _read_back(setting, combined(more, first))
    fits = better.estimate.memory_bytes <= setting.memory_limit
    return better if fits else best._replace(bound=better.bound)


def _read_back(setting: Setting, answer: NetworkAnswer) -> _Solved:
    """What an answer means."""
    chosen = without_idle_copies(setting.nodes, chosen_options(setting.problem, answer.choice))
    bound = _bound(setting, answer)
    return _Solved(setting, chosen, setting.estimate(chosen), answer.cost, bound, answer.proven)


def _bound(setting: Setting, answer: NetworkAnswer) -> float:
    """What an answer proves [s], of tables whose numbers are rounded to whole ticks."""
    rounded = (len(setting.problem.seconds) + len(setting.problem.links)) / 2
    return max(0.0, answer.lower_bound - rounded) * setting.problem.tick


def _fitting(
    setting: Setting,
    fold: bool | None,
    deadline: float,
    last: float,
    below: float = math.inf,
    largest: float = math.inf,
) -> _Solved:
    """Within the limit, which counts what operators move for themselves where a choice without that exceeds it.

    That takes half as long again as has been spent, where the time is up, but not after ``last``, if that is to come.
    Nothing that takes ``below`` [s] or more is of use.
    """
    began, bound = clock.now(), 0.0
    while True:
        best = _solved(setting, deadline, below, largest)
        bound = max(bound, best.bound)  # what counts more memory is no faster
        values = _moved_too_much(best)
        if not values:
            return best._replace(bound=bound)
        last = last if clock.now() < last else math.inf
        deadline = max(deadline, min(clock.half_as_long_again(began), last))
        nodes = with_own_copies(setting.nodes, values)
        setting = tabulated(setting.pricer, nodes, setting.memory_limit, setting.optimizer_share, fold)


def _moved_too_much(best: _Solved) -> set[str]:
    """Values that operators move for themselves where memory is exceeded, and all that are as large."""
    pricer, limit = best.setting.pricer, best.setting.memory_limit
    if best.estimate.memory_bytes <= limit:
        return set()
    held = held_bytes(pricer, best.setting.nodes, best.chosen, best.setting.optimizer_share)
    too_much = {m.value for m in moved(pricer, best.setting.nodes, best.chosen) if held[m.position] > limit}
    large = max(map(pricer.full_bytes, too_much), default=math.inf)
    return too_much | {v.name for v in pricer.program.values if pricer.full_bytes(v.name) >= large}


def _within_limit(free: _Solved, conditions: Conditions, deadline: float) -> _Solved:
    """The best choice within the limit that ``free``, which is without one, exceeds."""
    fold, recompute = conditions.get("fold"), conditions.get("recompute", True)
    try:
        if recompute:
            return _in_little_memory(free, fold, deadline)
        return _fitting(free.setting, fold, deadline, deadline)
    except Infeasible:
        raise _too_little(free, may_recompute(free.setting, fold) if recompute else free.setting) from None


def _too_little(free: _Solved, setting: Setting) -> Infeasible:
    """What is said where nothing in ``setting`` fits."""
    limit, least = setting.memory_limit, setting.problem.peak(np.min)
    needed = f"at least {format_bytes(least, 4)}" if least > limit else "more"
    return Infeasible(
        f"the arrays of {setting.program.name} do not fit in memory: they may take {format_bytes(limit, 4)} on each "
        f"device and need {needed}, however they lie",
        f"without a limit the fastest layouts take {format_bytes(free.estimate.memory_bytes, 4)}",
    )


def _in_little_memory(free: _Solved, fold: bool | None, deadline: float) -> _Solved:
    """With second runs, unless without them the limit costs nothing; ``free`` is without a limit.

    Where choices with them are many, those without come first, of which there are far fewer: nothing slower need be
    looked at then.
    """
    if free.proven and (same := _no_slower(free, _soon(NO_SLOWER, deadline))):
        return same
    again = may_recompute(free.setting, fold)
    try:
        best = _fitting(again, fold, deadline, deadline, largest=AT_FIRST)
    except (TooLarge, SolverStopped):
        plain = None
        with suppress(Infeasible, SolverStopped):
            plain = _fitting(free.setting, fold, _soon(WITHOUT, deadline), deadline)
        best = _faster(plain, again, fold, deadline) if plain else _fitting(again, fold, deadline, deadline)
    return best._replace(bound=max(free.bound, best.bound))


def _faster(plain: _Solved, again: Setting, fold: bool | None, deadline: float) -> _Solved:
    """The best choice with second runs, or ``plain`` where none that is faster is found."""
    near = _near(plain, again, fold, _soon(NEARBY, deadline))
    try:
        best = _fitting(again, fold, deadline, deadline, near.estimate.seconds)
    except _NoneAsFast as slower:
        return near._replace(bound=slower.bound, proven=slower.proven)
    except SolverStopped:
        return near._replace(bound=0.0, proven=False)
    return min(best, near._replace(bound=best.bound, proven=best.proven), key=lambda s: s.estimate.seconds)


def _near(plain: _Solved, again: Setting, fold: bool | None, deadline: float) -> _Solved:
    """What is found with second runs around ``plain``, which has none, or that itself."""
    if values := {link.value for link in plain.setting.nodes.links if link.own}:
        nodes = with_own_copies(again.nodes, values)
        again = tabulated(again.pricer, nodes, again.memory_limit, again.optimizer_share, fold)
    start = with_all_kept(plain.setting.nodes, plain.chosen, again)
    if start is None:
        return plain
    near = _read_back(again, bettered(again.problem.network(again.memory_limit), start, deadline))
    fits = near.estimate.memory_bytes <= again.memory_limit
    return near if fits and near.estimate.seconds < plain.estimate.seconds else plain


def _soon(share: float, deadline: float) -> float:
    now = clock.now()
    return now + share * (deadline - now)


def _no_slower(free: _Solved, deadline: float) -> _Solved | None:
    """A choice within the limit that takes as little time as ``free`` without one, if there is any."""
    setting, most = free.setting, free.cost + 1  # which is far less than anybody measures
    with suppress(Infeasible):
        answer = solve_narrowed(setting.problem.network(setting.memory_limit), deadline, most)
        if answer.cost <= most:
            best = _read_back(setting, answer)
            if best.estimate.memory_bytes <= setting.memory_limit:
                return best._replace(bound=free.bound, proven=True)
    return None


def price_layouts(setting: Setting, rules: Rules) -> ProgramEstimate:
    """What a plan written by hand takes in the same space: layouts of inputs by path, everything else follows."""
    layout = by_rules(rules, tuple(setting.mesh.axes))
    fixed = fixed_inputs(setting.problem, setting.nodes, setting.program, setting.mesh, layout)
    return _followed(setting, fixed)


def baseline_estimates(setting: Setting) -> dict[str, ProgramEstimate]:
    """The plans that everybody knows."""
    return {
        name: _followed(
            setting, fixed_inputs(setting.problem, setting.nodes, setting.program, setting.mesh, layout)
        )
        for name, layout in BASELINES.items()
    }


def _followed(setting: Setting, fixed: Mapping[int, int]) -> ProgramEstimate:
    choice = follow(setting.problem, setting.nodes, fixed)
    return setting.estimate([o[c] for o, c in zip(setting.problem.options, choice, strict=True)])


def _result(setting: Setting, chosen: Sequence[NodeOption], estimate: ProgramEstimate) -> ShardedProgram:
    program, nodes, axes = setting.program, setting.nodes, tuple(setting.mesh.axes)
    made = {
        name: made_layout(chosen[node], k)
        for node, names in enumerate(
            [*((n,) for n in nodes.inputs), *(op.outputs for op in nodes.operations)]
        )
        for k, name in enumerate(names)
    }

    def partition(name: str, layout: Layout) -> Partition:
        rank = len(program.value[name].shape)
        return tuple(tuple(axes[a] for a, d in enumerate(layout) if d == i) for i in range(rank))

    first_runs = zip(nodes.operations, chosen[len(nodes.inputs) :], strict=False)
    second_runs = (
        (nodes.operations[again.operation], o.option)
        for again, o in zip(nodes.agains, chosen[nodes.first_again : nodes.first_joint], strict=True)
        if isinstance(o, AgainOption) and o.option
    )
    return ShardedProgram(
        program=program,
        cluster=setting.mesh.cluster.name,
        mesh=dict(setting.mesh.axes),
        inputs={program.value[n].path or n: partition(n, made[n]) for n in nodes.inputs},
        outputs={n: partition(n, made[n]) for n in program.outputs},
        operators=tuple(_operator(setting.mesh, op, o, partition) for op, o in first_runs),
        recomputed=tuple(_operator(setting.mesh, op, o, partition) for op, o in second_runs),
        collected=_collected(nodes, chosen, partition),
        copies=tuple(_copies(nodes, chosen, partition)),
        together=tuple(
            tuple(nodes.operations[i].name for i in joint.operations)
            for joint, o in zip(nodes.joints, chosen[nodes.first_joint :], strict=True)
            if isinstance(o, JointOption) and o.pattern
        ),
        collectives=tuple(
            CollectiveUse(
                operator=p.operator, collective=p.exchange.collective, axes=p.exchange.axes,
                full_bytes=p.exchange.full_bytes, seconds=p.exchange.seconds, times=p.exchange.times,
            )
            for p in estimate.exchanges
        ),
        seconds=estimate.seconds,
        compute_seconds=estimate.compute,
        communication_seconds=estimate.communication,
        memory_bytes=estimate.memory_bytes,
        memory_limit_bytes=setting.memory_limit,
        lower_bound_seconds=0.0,
        proven=False,
        folded=len(set(setting.problem.group)) < len(setting.problem.group),
    )  # fmt: skip


def _collected(
    nodes: Nodes, chosen: Sequence[NodeOption], partition: Callable[[str, Layout], Partition]
) -> dict[str, Partition]:
    """What is in no stack of the program and second runs read, how its rows are kept."""
    late = list(zip(nodes.agains, chosen[nodes.first_again : nodes.first_joint], strict=True))
    read = {n for again, o in late if isinstance(o, AgainOption) and o.option for n in again.reads}
    return {
        value.name: partition(value.name, o.kept[value.place])
        for again, o in late
        for value in again.values
        if value.rows > 1 and value.name in read and isinstance(o, AgainOption) and o.kept
    }


def _copies(
    nodes: Nodes, chosen: Sequence[NodeOption], partition: Callable[[str, Layout], Partition]
) -> Iterator[SharedCopy]:
    """Those that hold something of their own."""
    shared = {link.source.node for link in nodes.links} - {
        link.source.node for link in nodes.links if link.own
    }
    for node, readers in readers_of_copies(nodes, chosen).items():
        option = chosen[node]
        assert isinstance(option, CopyOption)
        if node in shared:
            value = nodes.copies[node - len(nodes.inputs) - len(nodes.operations)].value
            yield SharedCopy(value=value, readers=readers, partition=partition(value, option.layout))


def _operator(
    mesh: NamedMesh, op: Operation, option: NodeOption, partition: Callable[[str, Layout], Partition]
) -> OperatorSharding:
    assert isinstance(option, Option)
    ring = ring_of(op)
    rows = option.split if ring is None else ring.along((), np.array(option.split)).tolist()
    around = [a for a, f in enumerate(option.split) if ring and f == ring.keys]
    axes = tuple(mesh.axes)
    return OperatorSharding(
        name=op.name,
        members=tuple(m.name for m in op.members),
        split={axes[a]: f for a, f in enumerate(rows) if f >= 0},
        reads=tuple(partition(n, layout) for n, layout in zip(op.inputs, option.reads, strict=True)),
        writes=tuple(partition(n, layout) for n, layout in zip(op.outputs, option.writes, strict=True)),
        parts=tuple(axes[a] for a in option.parts),
        ring=tuple(axes[a] for a in around),
        dealt=_dealt(op, mesh.degree(around)) if around else "",
    )


def _dealt(op: Operation, degree: int) -> Literal["in order", "from both ends"]:
    assert op.attention is not None
    part = elements(op.sizes[f] for f in op.attention.keys) // degree
    return "from both ends" if from_both_ends(op.attention, part) else "in order"
