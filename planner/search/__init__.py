"""The search over everything that a plan decides."""

from planner.search.recommend import plan

__all__ = ["plan"]
