"""Values and operators of a program as they are met in a JAX function."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from planner.errors import InputError
from planner.tracing.factors import Rule, Shape, elementwise
from planner.tracing.program import Operation, Role, Value
from planner.tracing.reading.jax_calls import APART
from planner.tracing.reading.jax_manual import Axes, Manual


class Place(NamedTuple):
    """Where in the program equations stand."""

    prefix: str
    times: int
    region: str
    kernel: str = ""
    manual: Manual | None = None
    """Of the ``shard_map`` around them."""
    branch: str = ""
    """Of the ``cond`` around them."""
    again: str = ""
    """The second run around them."""

    def varying(self, aval: Any) -> Axes:
        """Axes for which an array has dims of its own here."""
        return () if self.manual is None else self.manual.varying(aval)

    def lead(self, aval: Any) -> Shape:
        """Those dims."""
        return () if self.manual is None else self.manual.lead(self.varying(aval))

    def inside(self, loop: str, times: int) -> "Place":
        """In the body of a loop."""
        return Place(f"{loop}/", self.times * times, loop, manual=self.manual, branch=self.branch)

    def splits(self, axes: Axes) -> dict[str, int] | None:
        """Axes that are fixed here -> factors, of operators whose first loops are over ``axes``."""
        if self.manual is None:
            return None
        return {a: i for i, a in enumerate(a for a in axes if self.manual.sizes[a] > 1)}


class Recorder:
    """What a program is made of so far."""

    def __init__(self) -> None:
        self.values: dict[str, Value] = {}
        self.operations: list[Operation] = []
        self.axes: dict[str, Axes] = {}
        """Value in a ``shard_map`` -> axes over which it varies."""

    def value(
        self, name: str, aval: Any, role: Role = "intermediate", path: str = "", lead: Shape = ()
    ) -> str:
        """Record an array; ``lead`` are the dims that it has for devices."""
        if name in self.values:
            raise InputError(f"two arrays are called {name!r}; give the argument or its key another name")
        shape = (*lead, *(int(n) for n in getattr(aval, "shape", ())))
        self.values[name] = Value(name=name, shape=shape, dtype=str(aval.dtype), role=role, path=path)
        return name

    def as_it_lies(self, title: str, name: str, place: Place) -> str:
        """The same, where the devices hold it: what brings it elsewhere begins, or ends, there."""
        value, axes = self.values[name], self.axes.get(name, ())
        self.axes[title] = axes
        self.values[title] = value.model_copy(update={"name": title})
        self.boundary(title, [name], [title], elementwise([value.shape], [value.shape]), place)
        return title

    def placed(self, name: str, aval: Any, axes: Axes, place: Place) -> str:
        """An array of which devices along ``axes`` hold parts."""
        if place.manual is None:
            return self.value(name, aval)
        self.axes[name] = axes
        return self.value(name, aval, lead=place.manual.lead(axes))

    def record(
        self,
        title: str,
        equation: Any,
        inputs: Sequence[str],
        outputs: Sequence[str],
        rule: Rule,
        place: Place,
        splits: Mapping[str, int] | None = None,
    ) -> None:
        """One operator; ``splits`` is what mesh axes split where they are fixed."""
        self.operations.append(
            Operation(
                name=title,
                primitive=equation.primitive.name,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                times=place.times,
                region=place.region,
                branch=place.branch,
                again=place.again,
                kernel=place.kernel if place.manual is None else "",
                key=digest(equation, title),
                manual=splits,
                **rule._asdict(),
            )
        )

    def boundary(
        self, title: str, inputs: Sequence[str | None], outputs: Sequence[str], rule: Rule, place: Place
    ) -> None:
        """Record where values enter or leave a loop, or a place of their own."""
        known = tuple(n for n in inputs if n is not None)
        fields = {**rule._asdict(), "kind": "boundary", "reads": rule.reads[: len(known)]}
        self.operations.append(
            Operation(
                name=title,
                primitive="scan",
                inputs=known,
                outputs=tuple(outputs),
                times=place.times,
                region=place.region,
                branch=place.branch,
                again=place.again,
                key=title,
                manual=place.splits(self.axes.get(outputs[0], ())),
                **fields,
            )
        )


def output_names(title: str, count: int) -> list[str]:
    """Of an equation's outputs."""
    return [title] if count == 1 else [f"{title}:{k}" for k in range(count)]


def digest(equation: Any, title: str) -> str:
    """What is computed, but for the inputs: parameters and literals; what is computed again is something else."""
    literals = [str(a.val) for a in equation.invars if hasattr(a, "val")]
    params = sorted((k, str(v)) for k, v in equation.params.items())
    types = [str(v.aval) for v in equation.outvars]
    again = title.rpartition("/")[0] if any(call in title for call in APART) else ""
    text = repr((equation.primitive.name, params, literals, types, again))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
