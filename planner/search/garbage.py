"""Garbage collection, which has nothing to find in a search."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection inside, as it was afterwards.

    A search keeps nearly all of the many small records that it makes: looking for others among them again and again
    takes a tenth of its time or more.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()
