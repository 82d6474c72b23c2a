"""Loops, branches and bodies of a ``shard_map``, as a plan has them: their functions are run equation by equation."""

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from planner.tracing.applying.literals import Known, plain
from planner.tracing.applying.manual import mapped
from planner.tracing.applying.parts import Parts, added_up, as_parts
from planner.tracing.applying.scopes import scope_of
from planner.tracing.applying.views import partition_of
from planner.tracing.reading.jax_calls import branch_name, test_name


def scan(runner: Any, equation: Any, title: str, operands: list[Any]) -> list[Any]:
    """The rows and states of a loop lie as its boundaries say."""
    import jax

    params = equation.params
    consts, carried = params["num_consts"], params["num_carry"]
    inner = params["jaxpr"]

    place = functools.partial(_all_at_boundary, runner, title)
    arrays = operands[consts + carried :]
    besides = runner.rows.besides(arrays)
    handed_out: list[Any] = []

    def step(carry: Sequence[Any], given: Sequence[Any]) -> tuple[Any, Any]:
        state, rows = place(carry, "carry", "writes"), place(given, "slice", "writes")
        rows = runner.rows.restored(title, arrays, rows)
        runner.rows.note_sliced(title, arrays, rows)
        runner.copies.note(state, _numbered(f"{title}/carry.", state))
        runner.copies.note(rows, _numbered(f"{title}/slice.", rows))
        fixed = _from_outside(runner, operands[:consts])
        made = runner.in_body().body(inner.jaxpr, inner.consts, [*fixed, *state, *rows], f"{title}/")
        made = [plain(x) for x in made]
        handed_out[:] = made[carried:]
        collected = runner.rows.collected(title, made[carried:])
        return place(made[:carried], "carry", "writes"), place(collected, "stack", "reads")

    start = place([plain(x) for x in operands[consts : consts + carried]], "carry", "reads")
    scanned = [*place([plain(x) for x in arrays], "slice", "reads"), *besides]
    options = {k: params[k] for k in ("length", "reverse", "unroll")}
    state, stacked = jax.lax.scan(step, start, scanned, **options)
    state, stacked = place(state, "carry", "writes"), place(stacked, "stack", "writes")
    left = [*state, *runner.rows.note_collected(title, handed_out, stacked)]
    runner.copies.note(left, _numbered(f"{title}:", left))
    return left


def while_loop(runner: Any, equation: Any, title: str, operands: list[Any]) -> list[Any]:
    """The states of a loop lie as its boundaries say."""
    import jax

    params = equation.params
    tests, consts = params["cond_nconsts"], params["body_nconsts"]
    ends, inner = params["cond_jaxpr"], params["body_jaxpr"]
    place = functools.partial(_all_at_boundary, runner, title)

    def begun(state: Sequence[Any], outside: Sequence[Any]) -> list[Any]:
        carried = place(state, "carry", "writes")
        runner.copies.note(carried, _numbered(f"{title}/carry.", carried))
        return [*_from_outside(runner, outside), *carried]

    def goes_on(state: Sequence[Any]) -> Any:
        asked = begun(state, operands[:tests])
        return plain(runner.in_body().body(ends.jaxpr, ends.consts, asked, test_name(title))[0])

    def step(state: Sequence[Any]) -> list[Any]:
        fixed = begun(state, operands[tests : tests + consts])
        made = runner.in_body().body(inner.jaxpr, inner.consts, fixed, f"{title}/")
        return place([plain(x) for x in made], "carry", "writes")

    start = place([plain(x) for x in operands[tests + consts :]], "carry", "reads")
    left = place(jax.lax.while_loop(goes_on, step, start), "carry", "writes")
    runner.copies.note(left, _numbered(f"{title}:", left))
    return left


def shard_map(runner: Any, equation: Any, title: str, operands: list[Any]) -> list[Any]:
    """As it is written: its operators run where it says, under their names."""

    def run(*given: Any) -> list[Any]:
        made = runner.without_layouts().body(equation.params["jaxpr"], (), given, f"{title}/")
        return [plain(x) for x in made]

    return list(mapped(equation, title, runner.mesh, run)(*map(plain, operands)))


def cond(runner: Any, equation: Any, title: str, operands: list[Any]) -> list[Any]:
    """All branches; the planned one finds its operators, and the others leave what they make where it does.

    Sums that the planned one leaves in parts are one part and nothing else in the others.
    """
    import jax

    index, given = plain(operands[0]), operands[1:]
    branches = equation.params["branches"]
    planned = _planned(runner, title, len(branches))
    left: list[Any] = []
    numbers: list[bool] = []

    def alike(made: Sequence[Any]) -> list[Any]:
        """What every branch must hand on: arrays of the same shapes and types, where the planned one has them."""
        parts = [as_parts(plain(x), known) for x, known in zip(made, left, strict=True)]
        arrays = (x.array if isinstance(x, Parts) else x for x in parts)
        typed = [jax.numpy.asarray(x, v.aval.dtype) for x, v in zip(arrays, equation.outvars, strict=True)]
        return _lying_as(runner, left, typed)

    def taken(number: int) -> Callable[[], list[Any]]:
        name, body = branch_name(title, number), branches[number]

        def run() -> list[Any]:
            if number == planned:
                made = inside(given)
                numbers[:] = (isinstance(x, Known) for x in made)
                left[:] = map(plain, made)
                return alike(left)
            with jax.named_scope(scope_of(name)):
                return alike(inside([added_up(x) if isinstance(x, Parts) else x for x in given]))

        def inside(arrays: Sequence[Any]) -> list[Any]:
            found = _from_outside(runner, arrays)
            made: list[Any] = runner.in_body().body(body.jaxpr, body.consts, found, name)
            return made

        return run

    # The planned branch first: it says where results are left.
    order = [taken((planned + i) % len(branches)) for i in range(len(branches))]
    made = jax.lax.switch((index - planned) % len(branches), order)
    results = _lying_as(runner, left, made)
    for array, inside in zip(results, left, strict=True):
        runner.copies.pinned(array, inside)
    found = (Parts(x) if isinstance(inside, Parts) else x for x, inside in zip(results, left, strict=True))
    return [Known(x) if number else x for x, number in zip(found, numbers, strict=True)]


def _planned(runner: Any, title: str, count: int) -> int:
    """The branch whose operators the plan has."""
    found = (i for i in range(count) if any(n.startswith(branch_name(title, i)) for n in runner.sites))
    return next(found, 0)


def _lying_as(runner: Any, known: Sequence[Any], arrays: Sequence[Any]) -> list[Any]:
    """Arrays where others lie, as far as the plan says."""
    places = [runner.lies.get(id(x)) for x in known]
    return [x if lay is None else runner.put(x, lay[1]) for x, lay in zip(arrays, places, strict=True)]


def _from_outside(runner: Any, arrays: Sequence[Any]) -> list[Any]:
    """What the body of a loop has from outside, where it lies there: else XLA chooses a place for all passes."""
    found = []
    for array in arrays:
        known = runner.lies.get(id(array))
        inside = array if known is None else runner.put(array, known[1])
        runner.outside[id(inside)] = (inside, array)
        runner.copies.pinned(inside, array)
        found.append(inside)
    return found


def _all_at_boundary(runner: Any, title: str, arrays: Sequence[Any], kind: str, side: str) -> list[Any]:
    return [_at_boundary(runner, x, f"{title}/{kind}.{i}", side) for i, x in enumerate(arrays)]


def _at_boundary(runner: Any, array: Any, name: str, side: str) -> Any:
    """What enters or leaves a loop, as the plan has it there."""
    import jax

    site = runner.sites.get(name)
    if site is None:
        return array
    reader = name if side == "reads" else ""
    dims = getattr(site, side) or site.writes  # numbers that a loop starts from are read by nothing
    with jax.named_scope(scope_of(name)):
        return runner.put(array, partition_of(dims[0], site.sharding.split), reader)


def _numbered(beginning: str, arrays: Sequence[Any]) -> list[str]:
    """Names of values that go into a loop or come out of it."""
    return [f"{beginning}{i}" for i in range(len(arrays))]


FOLLOWED: Mapping[str, Callable[..., list[Any]]] = MappingProxyType(
    {"scan": scan, "shard_map": shard_map, "while": while_loop, "cond": cond}
)
"""Primitives whose functions are run equation by equation."""
