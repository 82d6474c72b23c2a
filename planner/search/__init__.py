"""The search over everything that a plan decides."""

from planner.search.planning import plan, rescheduled

__all__ = ["plan", "rescheduled"]
