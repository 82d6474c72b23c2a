"""The command line: one API call and one report per command.

Nothing here decides anything, and nothing heavy is imported before a command runs: ``meshwright --help``
has to answer at once.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; ends the process with one of the codes in `planner.cli.outcome`."""
    from planner.cli.outcome import INTERRUPTED, Ended, fail

    # Python looks for cycles among all that there is before it ends: a tenth of a plan's time and more, for nothing.
    atexit.register(gc.freeze)
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by the caller (>&-), so that nobody reads it
            setattr(sys, stream, Path(os.devnull).open("w"))  # noqa: SIM115, to the end
    try:
        from planner.cli.app import app  # here, so that an interrupt while it loads is no traceback either

        app(args=arguments, prog_name="meshwright")
    except Ended:
        raise
    except SystemExit as end:
        if end.code == INTERRUPTED:  # before the command began, which typer keeps silent about
            fail(KeyboardInterrupt())
        raise
    except (Exception, KeyboardInterrupt) as error:
        fail(error)
