"""Garbage collection, which has nothing to find where records are kept."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside, as it was afterwards.

    Searches, and programs that are read and priced, keep nearly all of the many small records that they make: looking
    for others among them again and again takes a tenth of the time or more.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
