"""Runs as others describe them: read a file or a row, and say what plan it was.

`plan_from_run` turns one row of the run format into a `Plan`; what the row leaves open is filled with the
usual choice and listed, so that a comparison never hides what was assumed.
"""

from planner.runs.files import load_run
from planner.runs.mapping import plan_from_run
from planner.runs.record import RunFile, parse_run

__all__ = ["RunFile", "load_run", "parse_run", "plan_from_run"]
