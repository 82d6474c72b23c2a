"""Properties that are worked out when they are first asked for.

As `functools.cached_property`, but without its lock, which until Python 3.12 takes longer than most of what it guards.
"""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801
    """Decorates a method; its result takes the property's place in the object."""

    def __init__(self, method: Callable[[Any], T]) -> None:
        """Nothing is worked out yet."""
        self._method, self.__doc__ = method, method.__doc__

    @overload
    def __get__(self, thing: None, owner: type) -> "lazy[T]": ...
    @overload
    def __get__(self, thing: object, owner: type) -> T: ...
    def __get__(self, thing: object | None, owner: type) -> "lazy[T] | T":
        """The result for ``thing``."""
        if thing is None:
            return self
        value = thing.__dict__[self._method.__name__] = self._method(thing)
        return value
