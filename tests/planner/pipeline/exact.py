"""The shortest schedule by integer programming, for small cases: written from the rules, not from the scheduler.

Starts t_a are continuous. For two actions a, b on one rank a binary says which is first: t_b >= t_a + d_a - M (1 - x)
and t_a >= t_b + d_b - M x. Precedence adds t_b >= t_a + d_a + transfer. Memory at the start of a forward a is what all
actions before it have left, plus its own: a sum over the same binaries, at most the limit of the rank.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pulp

Name = tuple[str, int, int]
"""Pass, stage, microbatch."""


@dataclass(frozen=True)
class Case:
    forward: Sequence[float]
    backward_input: Sequence[float]
    backward_weight: Sequence[float]
    homes: Sequence[int]
    microbatches: int
    p2p: float
    until_input: Sequence[float]
    until_weight: Sequence[float]
    limit: Sequence[float]

    def seconds(self, name: Name) -> float:
        work, stage, _ = name
        return {"F": self.forward, "I": self.backward_input, "W": self.backward_weight}[work][stage]

    def change(self, name: Name) -> float:
        """Memory after the action less before."""
        work, stage, _ = name
        early, late = self.until_input[stage], self.until_weight[stage]
        return {"F": early + late, "I": -early, "W": -late}[work]

    def actions(self) -> list[Name]:
        return [(w, s, k) for w in "FIW" for s in range(len(self.homes)) for k in range(self.microbatches)]

    def precedences(self) -> Iterator[tuple[Name, Name]]:
        last = len(self.homes) - 1
        for k in range(self.microbatches):
            for s in range(last + 1):
                yield ("I", s, k), ("W", s, k)
                if s < last:
                    yield ("F", s, k), ("F", s + 1, k)
                    yield ("I", s + 1, k), ("I", s, k)
            yield ("F", last, k), ("I", last, k)


def shortest_makespan(case: Case, seconds: float = 60.0) -> float:
    """Least makespan; AssertionError where it is not proven in time."""
    actions = case.actions()
    horizon = sum(map(case.seconds, actions)) + 2 * len(case.homes) * case.microbatches * case.p2p
    model = pulp.LpProblem("schedule", pulp.LpMinimize)
    start = {a: model.add_variable(f"t_{i}", 0, horizon) for i, a in enumerate(actions)}
    end = model.add_variable("end", 0, horizon)
    model += end
    for a in actions:
        model += end >= start[a] + case.seconds(a)
    for a, b in case.precedences():
        crosses = case.homes[a[1]] != case.homes[b[1]]
        model += start[b] >= start[a] + case.seconds(a) + (case.p2p if crosses else 0.0)
    for rank, limit in enumerate(case.limit):
        here = [a for a in actions if case.homes[a[1]] == rank]
        before = _orders(model, case, here, start, horizon)
        for a in here:
            if a[0] == "F":
                held = pulp.lpSum(case.change(b) * before[b, a] for b in here if b != a)
                model += held + case.change(a) <= limit
    # Microbatches are alike, so they may as well enter in order.
    for k in range(case.microbatches - 1):
        model += start["F", 0, k] <= start["F", 0, k + 1]
    model.solve(pulp.HiGHS(msg=False, timeLimit=seconds, threads=1))
    assert pulp.LpStatus[model.status] == "Optimal"
    return float(pulp.value(model.objective))


def _orders(
    model: pulp.LpProblem,
    case: Case,
    here: Sequence[Name],
    start: dict[Name, pulp.LpVariable],
    horizon: float,
) -> dict[tuple[Name, Name], pulp.LpAffineExpression]:
    """1 where the first is before the second."""
    before = {}
    for i, a in enumerate(here):
        for b in here[i + 1 :]:
            first = model.add_variable(f"x_{'_'.join(map(str, (*a, *b)))}", cat="Binary")
            model += start[b] >= start[a] + case.seconds(a) - horizon * (1 - first)
            model += start[a] >= start[b] + case.seconds(b) - horizon * first
            before[a, b], before[b, a] = first + 0, 1 - first
    return before
