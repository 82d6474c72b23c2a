"""Simulated annealing by Markov chain Monte Carlo, as FlexFlow searches its space.

A random plan; then again and again one choice is changed at random, and the change kept where the plan gets faster, or
else with the probability ``exp(-beta (new / old - 1))``. Source: Jia et al., Beyond Data and Model Parallelism for Deep
Neural Networks, arXiv:1807.05358, section 6.2, with the cost relative and beta rising, as in simulated annealing.
"""

import math
import random
from collections import defaultdict
from collections.abc import Sequence

from planner.search.methods.problem import FIELDS, Choices, Problem

FIRST_BETA, LAST_BETA = 5.0, 200.0
"""At first a plan that is a fifth slower is accepted with 37 %, at last one that is half a percent slower."""

STEPS_PER_CHAIN = 200
"""Changes until the search starts again from another plan."""


def annealing(problem: Problem, seed: int) -> None:
    """Chains from random plans, until the budget is spent or every plan has been priced."""
    draw, space = random.Random(seed), problem.space
    beside = _neighbours(space)
    seen: set[Choices] = set()
    while len(seen) < len(space):
        at = draw.choice(space)
        seen.add(at)
        for step in range(STEPS_PER_CHAIN):
            field = draw.randrange(len(FIELDS))
            to = draw.choice(beside[field, _without(at, field)])
            seen.add(to)
            beta = FIRST_BETA * (LAST_BETA / FIRST_BETA) ** (step / STEPS_PER_CHAIN)
            slower = problem.price(to).value / problem.price(at).value - 1
            if slower <= 0 or draw.random() < math.exp(-beta * slower):
                at = to


def _without(choices: Choices, field: int) -> Choices:
    return (*choices[:field], *choices[field + 1 :])


def _neighbours(space: Sequence[Choices]) -> dict[tuple[int, Choices], list[Choices]]:
    """Plans that agree in all choices but one, by that one and the others."""
    found: dict[tuple[int, Choices], list[Choices]] = defaultdict(list)
    for choices in space:
        for field in range(len(FIELDS)):
            found[field, _without(choices, field)].append(choices)
    return found
