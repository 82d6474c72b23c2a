"""Beam search: decide one thing after the other, and keep the few most promising beginnings."""

from planner.search.methods.problem import FIELDS, Choices, Problem, Tree

WIDTH = 8
"""Beginnings that are kept."""


def beam(problem: Problem, seed: int) -> None:
    """Judge a beginning by its first and its last completion: least and most saving of memory; no ``seed``."""
    tree = Tree(problem.space)
    beginnings: list[Choices] = [()]
    for _ in FIELDS:
        longer = [(*prefix, value) for prefix in beginnings for value in tree.values(prefix)]
        judged = sorted((_judge(problem, tree, prefix), place) for place, prefix in enumerate(longer))
        beginnings = [longer[place] for _, place in judged[:WIDTH]]


def _judge(problem: Problem, tree: Tree, prefix: Choices) -> float:
    return min(problem.price(_completed(tree, prefix, end)).value for end in (0, -1))


def _completed(tree: Tree, prefix: Choices, end: int) -> Choices:
    while len(prefix) < len(FIELDS):
        prefix = (*prefix, tree.values(prefix)[end])
    return prefix
