"""The search over everything that a plan decides."""

from planner.search.planning import plan

__all__ = ["plan"]
