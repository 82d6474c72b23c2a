"""What a choice of layouts does: the one evaluator of programs.

Seconds add up: every operator computes, then exchanges; every array is moved where its reader wants it otherwise.
The optimiser's objective is made of the same terms.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.tracing.layouts import share
from planner.tracing.program import Program
from planner.tracing.solving.concatenation import patterns_of
from planner.tracing.solving.lifetimes import node_intervals
from planner.tracing.solving.nodes import (
    AgainOption,
    CopyOption,
    JointOption,
    NodeOption,
    Nodes,
    given_layout,
    left_layout,
    made_layout,
    refused,
    wanted_layout,
)
from planner.tracing.solving.options import SUMMING, Option
from planner.tracing.solving.own_copies import moved
from planner.tracing.solving.pricing import Exchange, ProgramPricer
from planner.tracing.solving.shared_copies import readers_of_copies


class Priced(NamedTuple):
    """One collective, and the operator that it is for."""

    operator: str
    exchange: Exchange


@dataclass(frozen=True, slots=True)
class ProgramEstimate:
    """Time and memory of one call of a program on one device."""

    compute: float
    """[s]"""
    communication: float
    """[s]"""
    memory_bytes: float
    """Of arrays, at the moment when they are most [B]."""
    exchanges: tuple[Priced, ...]

    @property
    def seconds(self) -> float:
        """Computing and communicating, one after the other [s]."""
        return self.compute + self.communication

    @property
    def sent_bytes(self) -> Mapping[str, float]:
        """By collective, what one device sends per call [B]."""
        total: dict[str, float] = {}
        for _, e in self.exchanges:
            total[e.collective] = total.get(e.collective, 0.0) + e.sent_bytes * e.times
        return total


def evaluate_program(
    pricer: ProgramPricer, nodes: Nodes, chosen: Sequence[NodeOption], state_share: float = 0.0
) -> ProgramEstimate:
    """Price the options ``chosen``, one per node; ``state_share`` as in `node_bytes`.

    Raises ``ValueError`` where a copy that holds nothing of its own differs from its value, or products that run as
    one are split otherwise than one another.
    """
    exchanges: list[Priced] = []
    compute = sum(pricer.arrival(n, made_layout(o, 0)) for n, o in zip(nodes.inputs, chosen, strict=False))
    for op, option in zip(nodes.operations, chosen[len(nodes.inputs) :], strict=False):
        assert isinstance(option, Option)
        cost = pricer.operation(op, option)
        compute += cost.compute
        exchanges += [Priced(op.name, e) for e in cost.exchanges]
    compute -= sum(_saved(nodes, chosen, j) for j in range(len(nodes.joints)))
    for again, option in zip(nodes.agains, chosen[nodes.first_again : nodes.first_joint], strict=True):
        assert isinstance(option, AgainOption)
        if option.option:
            op = nodes.operations[again.operation]
            cost = pricer.operation(op, option.option)
            compute += cost.compute
            exchanges += [Priced(op.name, e) for e in cost.exchanges]
    names, operators, readers = nodes.names, nodes.operators, readers_of_copies(nodes, chosen)
    for link in nodes.links:
        have, want = chosen[link.source.node], chosen[link.target.node]
        if refused(link, have, want):
            raise ValueError(f"{names[link.target.node]} does not lie as {link.value} does")
        if link.kept:
            continue
        source, target = given_layout(have, link), wanted_layout(want, link)
        if source is not None and target is not None:
            found = pricer.move(link.value, source, target, link.times)
            at = link.target.node
            exchanges += [Priced(readers.get(at, operators[at : at + 1])[0], e) for e in found]
    communication = sum(p.exchange.seconds * p.exchange.times for p in exchanges)
    return ProgramEstimate(
        compute,
        communication,
        max(held_bytes(pricer, nodes, chosen, state_share), default=0.0),
        tuple(exchanges),
    )


def _saved(nodes: Nodes, chosen: Sequence[NodeOption], number: int) -> float:
    """By products that run as one, if they do [s]."""
    joint, option = nodes.joints[number], chosen[nodes.first_joint + number]
    assert isinstance(option, JointOption)
    if option.pattern is None:
        return 0.0
    for i in joint.operations:
        product = chosen[len(nodes.inputs) + i]
        assert isinstance(product, Option)
        split = np.array([product.split])
        if tuple(patterns_of(nodes.operations[i], joint.place, split)[0].tolist()) != option.pattern:
            raise ValueError(f"{nodes.operations[i].name} is not split as what it is to run as one with")
    return joint.saved[joint.patterns.index(option.pattern)]


def node_bytes(
    pricer: ProgramPricer, nodes: Nodes, node: int, option: NodeOption, state_share: float
) -> list[float]:
    """Bytes of what a node makes, output by output, then of what it brings for a loop, scatters, or has returned [B].

    ``state_share``: bytes kept for the optimizer beside each parameter, as a multiple of it.
    """
    program, mesh = pricer.program, pricer.mesh
    if isinstance(option, Option):
        op = nodes.operations[node - len(nodes.inputs)]
        made = [
            pricer.stored_bytes(n) * share(mesh, w) for n, w in zip(op.outputs, option.writes, strict=True)
        ]
        if op.takes_rows_for:
            made.append(pricer.full_bytes(op.inputs[0]) * share(mesh, option.reads[0]) * option.brought)
        if op.kind in SUMMING:
            before, after = share(mesh, option.before(op)), share(mesh, option.writes[0])
            made.append(pricer.full_bytes(op.outputs[0]) * before * (before > after))
        return made
    if isinstance(option, CopyOption):
        copy = nodes.copies[node - len(nodes.inputs) - len(nodes.operations)]
        return [pricer.full_bytes(copy.value) * share(mesh, option.layout) if option.held else 0.0]
    if isinstance(option, AgainOption):
        again = nodes.agains[node - nodes.first_again]
        found = []
        for value in again.values:
            layout = left_layout(option, value.place)
            part = 0.0 if layout is None else share(mesh, layout)
            held = pricer.full_bytes(value.name) * part
            wanted = option.shared or value.last_own >= 0
            kept = wanted and option.kept is not None
            stored = pricer.full_bytes(value.held) * value.rows * part if kept else 0.0
            found += [stored, held if wanted else 0.0, held if option.shared else 0.0]
        return found
    if isinstance(option, JointOption):
        return []
    name, part = nodes.inputs[node], share(mesh, option)
    returned = (pricer.full_bytes(n) * part for n in program.returned.get(name, ()))
    return [pricer.full_bytes(name) * part * held_share(program, name, state_share), *returned]


def held_share(program: Program, name: str, state_share: float) -> float:
    """Bytes held for an input, as a multiple of its own: of a parameter, with what the optimizer keeps beside it."""
    return 1 + state_share if program.value[name].role == "parameter" else 1.0


def held_bytes(
    pricer: ProgramPricer, nodes: Nodes, chosen: Sequence[NodeOption], state_share: float = 0.0
) -> list[float]:
    """What is held at each operator, and after the last [B]."""
    change = [0.0] * (len(nodes.operations) + 2)
    for node, intervals in enumerate(node_intervals(pricer.program, nodes)):
        taken = node_bytes(pricer, nodes, node, chosen[node], state_share)
        for (first, last), size in zip(intervals, taken, strict=True):
            change[first] += size
            change[last] -= size
    for _, position, size in moved(pricer, nodes, chosen):
        change[position] += size
        change[position + 1] -= size
    return list(itertools.accumulate(change[:-1]))
