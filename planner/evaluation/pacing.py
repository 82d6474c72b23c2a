"""A block whose host waits for the device: to learn how many tokens each expert gets, before these are sent.

From one such wait to the next host and device start together. The host issues operators one after the other; the device
begins each when it is issued, and what came before it is done. Elsewhere the host may be any number of operators ahead.

Sources: NVIDIA/Megatron-LM@2edffadb52 ``megatron/core/transformer/moe/token_dispatcher.py`` (``cuda_sync_point``: the
counts that ``preprocess`` makes are waited for before the exchange); deepseek-ai/DeepEP ``csrc/deep_ep.cpp``
(``internode_dispatch``: the host polls for the counts).
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from planner.evaluation.issuing import Issuing
from planner.evaluation.terms import BlockTerms
from planner.graph import Block
from planner.sharding.costs import Comm, EdgeCost
from planner.sharding.mesh import EXPERT_AXES
from planner.sharding.pricing import Pricer


class Step(NamedTuple):
    """Seconds of issuing, and of what is issued."""

    host: float
    device: float


def period(steps: Iterable[Step]) -> float:
    """Time from one wait to the next [s]."""
    host = device = 0.0
    for step in steps:
        host += step.host
        device = max(device, host) + step.device
    return max(host, device)


class _Steps(NamedTuple):
    issuing: Issuing
    terms: BlockTerms
    moved: Mapping[str, list[EdgeCost]]
    """Operator -> what brings what it reads."""

    def forward(self, names: Collection[str]) -> tuple[list[Step], list[Step]]:
        """Steps of operators ``names`` before the wait, and after it."""
        steps, wait = [Step(self.issuing.graph, 0.0)], 0
        for op in self.issuing.block.ops:
            if op.name not in names:
                continue
            steps.append(self._of(c for moved in self.moved[op.name] for c in moved.forward))
            cost, host = self.terms.ops[op.name], self.issuing.operator(op)
            if op.kind == "dispatch":
                chosen = self.issuing.before_exchange()
                steps.append(Step(chosen, 0.0))
                wait, host = len(steps), host - chosen
            steps.append(Step(host, cost.forward))
            steps.append(self._of(cost.comm_forward))
        return steps[:wait], steps[wait:]

    def backward(self) -> list[Step]:
        """Steps of the gradients, last operator first."""
        steps = [Step(self.issuing.graph, 0.0)]
        for op in reversed(self.issuing.block.ops):
            cost = self.terms.ops[op.name]
            steps.append(Step(self.issuing.gradient(op), cost.backward_input + cost.backward_weight))
            steps.append(self._of(cost.comm_backward))
            steps.append(
                self._of(c for moved in self.moved[op.name] for c in (*moved.backward, *moved.again))
            )
        return steps

    def _of(self, comms: Iterable[Comm]) -> Step:
        found = tuple(comms)
        each = self.issuing.pricer.software.host_collective
        return Step(each * len(found), sum(comm.seconds for comm in found))


def waits(pricer: Pricer) -> bool:
    """Whether the host waits in every forward; experts whose arrays have a capacity need not tell it their tokens."""
    habits, exchanges = pricer.routing_operators, any(pricer.mesh.size(axis) > 1 for axis in EXPERT_AXES)
    return bool(habits and habits.waits) and exchanges and pricer.job.expert_capacity is None


class Paced(NamedTuple):
    """Time of host and device [s]; 0 where the host waits for nothing."""

    forward: float = 0.0
    backward: float = 0.0


def paced(pricer: Pricer, block: Block, terms: BlockTerms, again: Collection[str]) -> Paced:
    """``block`` with what lies in its terms, not with what a plan puts beside; ``again`` runs twice.

    A forward that runs again in the backward waits again; gradients wait for nothing.
    """
    dispatches = {op.name for op in block.ops if op.kind == "dispatch"}
    if not dispatches or not waits(pricer):
        return Paced()
    moved: dict[str, list[EdgeCost]] = defaultdict(list)
    for edge, cost in terms.edges.items():
        moved[edge.consumer].append(cost)
    steps = _Steps(Issuing.of(pricer, block, terms.experts), terms, moved)
    before, after = steps.forward({op.name for op in block.ops})
    forward, backward = period((*after, *before)), 0.0
    if not dispatches.isdisjoint(again):
        before, after = steps.forward(again)
        backward = period((*after, *steps.backward(), *before))
    return Paced(forward, backward)
