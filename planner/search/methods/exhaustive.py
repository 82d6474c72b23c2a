"""Every plan of the space, one after the other."""

from planner.search.methods.problem import Problem


def exhaustive(problem: Problem, seed: int) -> None:
    """Price everything, in the order of the space; ``seed`` is not used."""
    for choices in problem.space:
        problem.price(choices)
