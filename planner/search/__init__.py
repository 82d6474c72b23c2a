"""The search over everything that a plan decides."""

from planner.search.planning import plan, rescheduled
from planner.search.recommend import doubts
from planner.search.unsearched import faster_pipeline, naming_kernels, naming_unsearched

__all__ = ["doubts", "faster_pipeline", "naming_kernels", "naming_unsearched", "plan", "rescheduled"]
