"""How a command ends: exit codes, and one clear sentence for everything that can go wrong.

====  ==========================================================
0     done
1     internal error, or the system did not let a file be read or written
2     bad input, a file that is not there too
3     no plan satisfies the constraints
4     a threshold given with ``--fail-if`` was missed
130   interrupted
====  ==========================================================

Who works on Meshwright sets ``MESHWRIGHT_DEBUG`` and gets the traceback instead.
"""

import errno
import functools
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from planner.errors import Infeasible, InputError, PlannerError

F = TypeVar("F", bound=Callable[..., Any])

DEBUG = "MESHWRIGHT_DEBUG"

FAILED, BAD_INPUT, NO_PLAN, THRESHOLD, INTERRUPTED = 1, 2, 3, 4, 130


class ThresholdMissed(Exception):
    """A condition given with ``--fail-if`` holds."""


def describe(error: BaseException) -> tuple[int, str]:
    """Exit code and sentence for an error; an empty sentence where there is nobody to read it."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, ThresholdMissed):
        return THRESHOLD, str(error)
    if isinstance(error, InputError):
        return BAD_INPUT, str(error)
    if isinstance(error, Infeasible):
        return NO_PLAN, "; ".join(filter(None, (str(error), error.least_change)))
    if isinstance(error, PlannerError):
        return NO_PLAN, str(error)
    if isinstance(error, OSError):
        return FAILED, _describe_os_error(error)
    if isinstance(error, MemoryError):
        return FAILED, "this machine ran out of memory"
    return _describe_other(error)


def _describe_os_error(error: OSError) -> str:
    if error.errno == errno.EPIPE:
        return ""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{(error.strerror or str(error)).lower()}"


def _describe_other(error: BaseException) -> tuple[int, str]:
    from pydantic import ValidationError

    from cluster_specs.record import first_problem

    if isinstance(error, ValidationError):
        return BAD_INPUT, first_problem(error)
    reason = " ".join(str(error).split())
    return FAILED, f"internal error, please report it: {type(error).__name__}: {reason}"


class Ended(SystemExit):
    """The end of the program, its sentence already said."""


def fail(error: BaseException) -> NoReturn:
    """End the program with the code and the sentence of ``error``."""
    if os.environ.get(DEBUG):
        raise error
    code, sentence = describe(error)
    if sentence:
        sys.stderr.write(f"error: {sentence}\n" if code not in (THRESHOLD, INTERRUPTED) else f"{sentence}\n")
    raise Ended(code)


def guarded(command: F) -> F:
    """``command`` with every error turned into an exit code and a sentence."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        try:
            command(**values)
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:
            fail(error)

    return run  # type: ignore[return-value]
