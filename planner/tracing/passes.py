"""Clean-up before planning; what each pass did is noted in the program."""

from collections.abc import Callable, Sequence

from planner.tracing.cleaning import CLEANING
from planner.tracing.fusion import fuse
from planner.tracing.joining import join_kernels
from planner.tracing.program import Program
from planner.tracing.views import absorb_views

PASSES: Sequence[Callable[[Program], Program]] = (*CLEANING, absorb_views, join_kernels, fuse)
"""In order; each takes a program and returns one that computes the same."""


def clean(program: Program) -> Program:
    """``program`` after all passes."""
    for step in PASSES:
        program = step(program)
    return Program.model_validate(program.model_dump(by_alias=True))
