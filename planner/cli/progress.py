"""One line of progress on stderr, for what takes longer than a second and is watched by a person."""

import os
import sys
import time
from types import TracebackType

PATIENCE = 1.0
"""Silence before the first word [s]."""
INTERVAL = 0.1
"""Least time between two updates [s]."""

CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """Callable that shows a message in place; a context manager that clears it at the end.

    Silent where stderr is no terminal (or a dumb one), and when told to be quiet.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._shown = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._next = time.monotonic() + PATIENCE
        self._dirty = False

    def __call__(self, message: str) -> None:
        """Show ``message`` instead of the last one."""
        now = time.monotonic()
        if not self._shown or now < self._next:
            return
        self._next = now + INTERVAL
        self._dirty = True
        width = int(os.environ.get("COLUMNS", "0") or 0) or os.get_terminal_size(sys.stderr.fileno()).columns
        sys.stderr.write(CLEAR_LINE + message[: max(1, width - 1)])
        sys.stderr.flush()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._dirty:
            sys.stderr.write(CLEAR_LINE)
            sys.stderr.flush()
