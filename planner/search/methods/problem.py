"""The space of plans as choices, and a count of what is priced: what every method is given."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.errors import Infeasible
from planner.search.best_first import Found, Search
from planner.search.candidates import Candidate
from planner.search.space import candidates

Choices = tuple[object, ...]
"""One value for each of `FIELDS`."""

FIELDS = ("tensor", "context", "pipeline", "expert", "micro_batch", "schedule", "states", "recompute")
"""Decisions in the order in which methods take them; the data degree follows from the devices."""

OVERFLOW = 10.0
"""A plan that does not fit counts as this much slower for every whole limit by which it is over."""


class BudgetSpent(Exception):
    """No more evaluations are left."""


class Price(NamedTuple):
    """What a method learns of a plan."""

    value: float
    """Step time [s]; of a plan that does not fit, with a penalty that grows with what is missing."""
    fits: bool


def choices_of(c: Candidate) -> Choices:
    """The candidate as choices."""
    return (
        c.tensor,
        c.context,
        c.pipeline,
        c.expert,
        c.micro_batch,
        (c.schedule, c.virtual_stages),
        (c.zero_stage, c.sharding, c.shard_degree),
        c.recompute,
    )


class Problem:
    """A question, as the methods see it."""

    def __init__(self, search: Search, budget: int) -> None:
        """Enumerates the space; nothing is priced. Raises ``Infeasible`` where the space is empty."""
        space = candidates(search.evaluator, search.pins, search.objective)
        self._candidates: Mapping[Choices, Candidate] = {choices_of(c): c for c in space}
        if not self._candidates:
            raise Infeasible(
                "no plan has these degrees: check that pins, devices and global batch divide each other"
            )
        self._search, self._budget = search, budget
        self._prices: dict[Choices, Price] = {}
        self.evaluated = 0
        self.best: Found | None = None
        self.best_after = 0
        """Evaluations until the best was found."""

    @property
    def space(self) -> Sequence[Choices]:
        """Every plan that is allowed, in a fixed order."""
        return tuple(self._candidates)

    def price(self, choices: Choices) -> Price:
        """Price a plan; one that was priced before is free. Raises ``BudgetSpent``."""
        if choices not in self._prices:
            c = self._candidates[choices]
            price = self._priced(c)
            if not price.fits and c.tensor > 1:
                price = min(price, self._priced(c._replace(lean=True)))
            self._prices[choices] = price
        return self._prices[choices]

    def _priced(self, c: Candidate) -> Price:
        if self.evaluated >= self._budget:
            raise BudgetSpent
        self.evaluated += 1
        found = self._search.price(c)
        seconds, over = found.estimate.step_time_s, found.estimate.memory_bytes / self._search.limit - 1
        if over > 0:
            return Price(seconds * (1 + OVERFLOW * over) + OVERFLOW * seconds, False)
        if self.best is None or seconds < self.best.estimate.step_time_s:
            self.best, self.best_after = found, self.evaluated
        return Price(seconds, True)


class Tree:
    """The space by prefixes: which values may follow the choices taken so far."""

    def __init__(self, space: Sequence[Choices]) -> None:
        """Indexes every prefix."""
        following: dict[Choices, dict[object, None]] = {}
        for choices in space:
            for level in range(len(FIELDS)):
                following.setdefault(choices[:level], {})[choices[level]] = None
        self._following = {prefix: tuple(values) for prefix, values in following.items()}

    def values(self, prefix: Choices) -> tuple[object, ...]:
        """What the next choice may be, in the order of the space."""
        return self._following[prefix]
