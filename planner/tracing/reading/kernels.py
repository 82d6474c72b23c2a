"""Rules that users give for kernels that nothing can look into: how their loops index their arrays, as text.

    "b q d, b k d, b k d -> b q d; whole k"

One word per dim, arrays separated by commas, ``->`` before the results. A mesh axis may split every loop but those
that are ``whole`` and those that the results lack. A loop that is summed over, so that devices with a part of it each
make parts of the result, is named after ``sum``: ``"i k, k j -> i j; sum k"`` is a product of matrices, and costs what
one does. Other kernels cost the memory traffic of their arrays.

Source: the notation is that of ``sharding_rule`` in ``jax.experimental.custom_partitioning``.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from planner.errors import InputError
from planner.tracing.factors import Loops, Rule, Shape
from planner.tracing.program import Dims

CLAUSES = ("whole", "sum")

NONE: Mapping[str, str] = MappingProxyType({})
"""No rules."""


def kernel_rule(name: str, text: str, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> Rule:
    """The rule that ``text`` gives for kernel ``name`` on arrays of these shapes; raises ``InputError``."""
    arrays, *clauses = text.split(";")
    sides = arrays.split("->")
    if len(sides) != 2:
        raise InputError(f"rule for {name}: {text!r} has not one '->' between operands and results")
    named = _clauses(name, clauses)
    read, made = ([array.split() for array in side.split(",")] for side in sides)
    sizes = _sizes(name, [*read, *made], [*inputs, *outputs])
    left = {word for array in made for word in array}
    if lost := sorted({word for words in named.values() for word in words} - set(sizes)):
        raise InputError(f"rule for {name}: {text!r} names {', '.join(lost)}, which no array has")
    summed = set(named["sum"])
    if kept := sorted(summed & left):
        raise InputError(f"rule for {name}: {', '.join(kept)} is summed over, but the result has it")
    loops = Loops()
    fixed = {*named["whole"], *(set(sizes) - left - summed)}
    factor = {word: loops.new(size, word not in fixed) for word, size in sizes.items()}

    def dims(array: list[str]) -> Dims:
        return tuple(factor[word] for word in array)

    return loops.rule("product" if summed else "loop", list(map(dims, read)), list(map(dims, made)))


def rule_for(
    rules: Mapping[str, str], names: Sequence[str], inputs: Sequence[Shape], outputs: Sequence[Shape]
) -> Rule | None:
    """By the first of the kernel's names that has one."""
    found = next((name for name in names if name in rules), None)
    return None if found is None else kernel_rule(found, rules[found], inputs, outputs)


def _clauses(name: str, clauses: Sequence[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {clause: [] for clause in CLAUSES}
    for clause in clauses:
        first, *words = clause.split() or [""]
        if first not in found:
            raise InputError(f"rule for {name}: {clause.strip()!r} begins with neither 'whole' nor 'sum'")
        found[first] += words
    return found


def _sizes(name: str, arrays: Sequence[list[str]], shapes: Sequence[Shape]) -> dict[str, int]:
    """Of each word, in order."""
    if len(arrays) != len(shapes):
        raise InputError(f"rule for {name}: it has {len(arrays)} arrays, the kernel {len(shapes)}")
    found: dict[str, int] = {}
    for words, shape in zip(arrays, shapes, strict=True):
        if len(words) != len(shape):
            raise InputError(f"rule for {name}: {' '.join(words)!r} is an array of shape {list(shape)}")
        for word, size in zip(words, shape, strict=True):
            if found.setdefault(word, size) != size:
                raise InputError(f"rule for {name}: {word} is {found[word]} and {size}")
        if len(set(words)) < len(words):
            raise InputError(f"rule for {name}: {' '.join(words)!r} has one loop twice")
    return found
