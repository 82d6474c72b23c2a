"""Clean-up before planning; what each pass did is noted in the program."""

from collections.abc import Callable, Sequence

from planner.tracing.cleaning.fusion import fuse
from planner.tracing.cleaning.joining import join_kernels
from planner.tracing.cleaning.redundant import CLEANING
from planner.tracing.cleaning.views import absorb_views
from planner.tracing.program import Program

PASSES: Sequence[Callable[[Program], Program]] = (*CLEANING, absorb_views, join_kernels, fuse)
"""In order; each takes a program and returns one that computes the same."""


def clean(program: Program) -> Program:
    """``program`` after all passes."""
    for step in PASSES:
        program = step(program)
    return program.checked()
