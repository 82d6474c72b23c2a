"""Reading a configuration: every refusal names the file and the key."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeVar

from planner.errors import InputError, UnknownName

T = TypeVar("T")

MOST = 10**9
"""Larger numbers are taken for mistakes."""

ACTIVATIONS = (
    *("gelu", "gelu_10", "gelu_accurate", "gelu_fast", "gelu_new", "gelu_python", "gelu_python_tanh"),
    *("gelu_pytorch_tanh", "hardswish", "laplace", "leaky_relu", "linear", "mish", "prelu", "quick_gelu"),
    *("relu", "relu2", "relu6", "sigmoid", "silu", "sqrtsoftplus", "swish", "tanh", "xielu"),
)
"""Names of functions between the products of a feed-forward layer.

Source: huggingface/transformers ``activations.py``, ``ACT2CLS``@v5.
"""

SAME_ACTIVATION = MappingProxyType({"swish": "silu"})
"""Name -> another of the same function there."""


class ConfigReader:
    """Keys of one configuration, under any of several names.

    Each method takes the aliases of one key, tried in order. A key that is present with null counts as
    absent. The reader remembers which keys it was asked for (`used`).
    """

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config = config
        self._asked: set[str] = set()
        self.source = source

    def _find(self, keys: tuple[str, ...]) -> str | None:
        self._asked.update(keys)
        return next((k for k in keys if self._config.get(k) is not None), None)

    def used(self) -> dict[str, Any]:
        """The part of the configuration that was asked for: what shapes the model."""
        return {k: v for k, v in self._config.items() if k in self._asked}

    def get(self, *keys: str) -> Any:
        """Value of the first key that is present, or None."""
        key = self._find(keys)
        return None if key is None else self._config[key]

    def has(self, *keys: str) -> bool:
        """Whether one of the keys has a value."""
        return self._find(keys) is not None

    def fail(self, key: str, message: str) -> InputError:
        """An error about ``key``, to be raised by the caller."""
        return InputError(f"{self.source}: {key} {message}")

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = MOST) -> int:
        """A whole number from ``least`` to ``most``; without a default it must be there."""
        key = self._find(keys)
        if key is None:
            return self._absent(keys, default)
        value = self._config[key]
        whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise self.fail(key, f"must be a whole number, found {value!r}")
        if not least <= value <= most:
            raise self.fail(key, f"must be from {least} to {most}, found {value!r}")
        return int(value)

    def share(self, *keys: str, default: float) -> float:
        """A number from 0 up to, not with, 1."""
        key = self._find(keys)
        if key is None:
            return default
        value = self._config[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self.fail(key, f"must be from 0 to below 1, found {value!r}")
        return float(value)

    def flag(self, *keys: str, default: bool | None = None) -> bool:
        """A truth value; without a default it must be there."""
        key = self._find(keys)
        if key is None:
            return self._absent(keys, default)
        value = self._config[key]
        if not isinstance(value, bool):
            raise self.fail(key, f"must be true or false, found {value!r}")
        return value

    def text(self, *keys: str, default: str) -> str:
        """A word."""
        key = self._find(keys)
        if key is None:
            return default
        value = self._config[key]
        if not isinstance(value, str):
            raise self.fail(key, f"must be a string, found {value!r}")
        return value

    def activation(self, *keys: str, default: str) -> str:
        """The name of an activation function."""
        name = self.text(*keys, default=default)
        return known_activation(name, f"{self._find(keys)} in {self.source}")

    def items(self, *keys: str) -> list[Any] | None:
        """A list, or None where the key is absent."""
        value = self.get(*keys)
        if value is not None and not isinstance(value, list):
            raise self.fail(keys[0], f"must be a list, found {value!r}")
        return value

    def _absent(self, keys: tuple[str, ...], default: T | None) -> T:
        if default is None:
            raise InputError(f"{self.source}: missing key {' or '.join(repr(k) for k in keys)}")
        return default


def known_activation(name: str, where: str) -> str:
    """The name of an activation function, of several of one function the first; ``where`` it was found."""
    if name not in ACTIVATIONS:
        raise UnknownName(f"{where}:", name, ACTIVATIONS, see="transformers has no such function")
    return SAME_ACTIVATION.get(name, name)


def expert_groups(read: ConfigReader, experts: str, groups: str, chosen: str) -> tuple[int, int]:
    """Groups that the experts are in, and those of them that a token may use; one where a model has none."""
    count, of = read.integer(groups, default=1), read.integer(experts)
    if of % count:
        raise read.fail(groups, f"must divide the {of} experts, found {count}")
    return count, read.integer(chosen, default=count, most=count)
