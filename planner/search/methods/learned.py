"""A learned placer: a policy that draws plans, trained by policy gradient on how fast they are.

A baseline in the spirit of ColocRL, reduced to what fits the space here: one logit for every value of every choice
instead of a recurrent network over operators, so it learns which values are good but not how they depend on each other.
Choices are drawn one after the other among those still allowed. The reward is minus the logarithm of the step time, and
the gradient that of REINFORCE over a batch of plans, with their mean as the baseline, their spread as the unit, and an
entropy bonus.

Source: Mirhoseini et al., Device Placement Optimization with Reinforcement Learning, arXiv:1706.04972; Williams,
Simple statistical gradient-following algorithms for connectionist reinforcement learning, Machine Learning 8 (1992).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from planner.search.methods.problem import FIELDS, Choices, Problem, Tree

BATCH = 10
"""Plans drawn between two updates."""

LEARNING_RATE = 1.0
SAME = 1e-6
"""Rewards that differ by less are equal."""

ENTROPY = 0.03
"""Weight of the entropy of the draws in the objective."""

PATIENCE = 30
"""Batches without a plan that is new, after which the policy only repeats itself."""


class _Draw(NamedTuple):
    """One choice as it was drawn."""

    allowed: NDArray[np.int64]
    """Places of the logits of what was allowed."""
    probabilities: NDArray[np.float64]
    taken: int


def learned(problem: Problem, seed: int) -> None:
    """Train until the budget is spent."""
    draw, tree = np.random.default_rng(seed), Tree(problem.space)
    values = [sorted({choices[level] for choices in problem.space}, key=repr) for level in range(len(FIELDS))]
    place = {(level, value): n for level, some in enumerate(values) for n, value in enumerate(some)}
    logits = [np.zeros(len(some)) for some in values]
    seen: set[Choices] = set()
    repeated = 0
    while repeated < PATIENCE:
        batch = [_sample(draw, tree, logits, place) for _ in range(BATCH)]
        fresh = {choices for choices, _ in batch} - seen
        repeated, seen = (0 if fresh else repeated + 1), seen | fresh
        rewards = np.array([-np.log(problem.price(choices).value) for choices, _ in batch])
        advantages = (rewards - rewards.mean()) / (rewards.std() + SAME)
        steps = [np.zeros_like(row) for row in logits]
        for advantage, (_, draws) in zip(advantages, batch, strict=True):
            for level, taken in enumerate(draws):
                steps[level][taken.allowed] += _gradient(taken, float(advantage)) / BATCH
        for row, step in zip(logits, steps, strict=True):
            row += LEARNING_RATE * step


def _sample(
    draw: np.random.Generator,
    tree: Tree,
    logits: list[NDArray[np.float64]],
    place: dict[tuple[int, object], int],
) -> tuple[Choices, list[_Draw]]:
    """A plan, and how each of its choices was drawn."""
    prefix: Choices = ()
    draws = []
    for level, row in enumerate(logits):
        options = tree.values(prefix)
        allowed = np.array([place[level, option] for option in options])
        weights = np.exp(row[allowed] - row[allowed].max())
        probabilities = weights / weights.sum()
        taken = int(draw.choice(len(options), p=probabilities))
        draws.append(_Draw(allowed, probabilities, taken))
        prefix = (*prefix, options[taken])
    return prefix, draws


def _gradient(draw: _Draw, advantage: float) -> NDArray[np.float64]:
    """Of ``advantage * log p(taken)`` and of the entropy, by the logits of what was allowed."""
    p = draw.probabilities
    toward = -p
    toward[draw.taken] += 1
    logarithms = np.log(np.maximum(p, 1e-300))
    spread = -p * (logarithms - float((p * logarithms).sum()))
    return np.asarray(advantage * toward + ENTROPY * spread)
