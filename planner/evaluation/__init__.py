"""What a plan will do: seconds, bytes and why, from one code path."""

from planner.evaluation.evaluator import Evaluator, evaluate

__all__ = ["Evaluator", "evaluate"]
