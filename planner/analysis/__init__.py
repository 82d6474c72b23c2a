"""Questions about plans, answered by the evaluator and the search: does it fit, why this one, which is better."""

from planner.analysis.comparison import Comparison, Difference, compare
from planner.analysis.fitting import FitReport, fit
from planner.analysis.guide import explain
from planner.analysis.remedies import Remedy

__all__ = ["Comparison", "Difference", "FitReport", "Remedy", "compare", "explain", "fit"]
