"""A sharded program on simulated devices: the function that was traced, under the layouts of the plan.

Its numbers must be those of one device; its compiled collectives are set beside the priced ones, by operator.
"""

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cluster_specs.units import GIB
from planner.errors import InputError
from planner.tracing.program import Program
from planner.tracing.sharded import CollectiveUse, ShardedProgram
from planner.verification.process import QUICKLY_COMPILED, run_program
from planner.verification.record import Check, Comparison, OperatorDifference, Verification

NARROW, WIDE = "bfloat16", "f32"
"""What XLA's CPU backend computes and sums in another type, and that one, as each side names it.

Source: openxla/xla ``xla/service/cpu/cpu_compiler.cc``: all-reduces of bf16 are promoted to fp32, and other operations
on it converted, as there is no code for most of them.
"""

DEVICES = 64
"""Most that a function is traced for."""


class Framework(NamedTuple):
    """What runs programs."""

    program: str
    """In `planner.verification.programs`."""
    devices: int
    """Most on which a plan runs unless told otherwise."""
    done: str
    """What is done of the program for the plan's own mesh."""
    bytes_are: str
    """What the bytes are of."""


FRAMEWORKS: Mapping[str, Framework] = MappingProxyType(
    {
        "jax": Framework(
            "jax_sharded",
            DEVICES,
            "compiled",
            "bytes are of whole arrays, per call; a scattered sum is whole on a CPU, and then sliced: both are `sum`",
        ),
        "torch": Framework(
            "torch_sharded",
            8,
            "followed",
            "bytes are of whole arrays, per call; all sums are `sum`, scattered or not",
        ),
    }
)
"""By the tool's name."""

MOST_BYTES = 8 * GIB
"""What a run may take of this machine's memory; a larger function is compiled only [B]."""

LIMITS: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
)
"""Coarsest type of the program -> share of its largest number by which sums in another order may move an output."""

FLAGS = (
    "--xla_force_host_platform_device_count={}",
    "--xla_disable_hlo_passes=cpu-all-reduce-combiner,all-gather-combiner,reduce-scatter-combiner",
    *QUICKLY_COMPILED,
)
"""Devices, collectives that stay with their operators, and quick compilation."""

THREADS: Mapping[str, str] = MappingProxyType({"OPENBLAS_NUM_THREADS": "1"})
"""LAPACK's own threads wait for one another where several devices call it. XLA has a thread per device, or ``NPROC`` if
these are more, and jaxlib's batched solvers hold one while others work for them: none would be left where all solve."""

SAME_KIND: Mapping[str, str] = MappingProxyType({"all_reduce": "sum", "reduce_scatter": "sum", "p2p": "send"})
"""XLA decides on the device whether a sum is scattered: on a CPU it is always whole, and then sliced."""


class CompiledUse(CollectiveUse):
    """One collective of the compiled program."""

    types: tuple[str, ...] = ()
    """Of its elements, as XLA names them."""
    rounded: bool = False
    """To 16 bits, as it arrives."""


def trace_function(
    target: str,
    python: str | None = None,
    replicate_unknown: bool = False,
    trips: int | None = None,
    rules: Mapping[str, str] = MappingProxyType({}),
    gradient: bool = False,
    optimizer: str = "",
) -> Program:
    """The program of ``FILE.py:NAME``, traced by JAX or torch in a process of its own; options as in `from_jax`.

    ``gradient`` is of modules alone, as in `from_torch`; ``optimizer`` too, a class of ``torch.optim``.

    Raises ``InputError`` where there is no such function, or it cannot be traced.
    """
    task = {
        "function": target,
        "replicate_unknown": replicate_unknown,
        "trips": trips,
        "rules": dict(rules),
        "gradient": gradient,
        "optimizer": optimizer,
    }
    found = _run("trace", {"function.txt": target}, task, DEVICES, python, ("pydantic",))
    return Program.model_validate(found["program"])


def verify_program(
    sharded: ShardedProgram,
    function: str = "",
    python: str | None = None,
    devices: int | None = None,
    tool: str = "jax",
) -> Verification:
    """Compile the function of ``sharded`` on its mesh, run it on at most ``devices``, and compare.

    ``tool`` is the framework that the function is of. ``function`` is ``FILE.py:NAME``; left out, where the program was
    traced from. Raises ``InputError`` where neither says it, or the function is not the program's; else as
    `run_program`.
    """
    target = function or sharded.program.source
    if not target:
        raise InputError(
            f"{sharded.program.name} does not say which function it was traced from: "
            "name it with --function FILE.py:NAME"
        )
    framework = FRAMEWORKS[tool]
    devices = framework.devices if devices is None else devices
    if devices < 1:
        raise InputError(f"--devices {devices}: at least one is needed")
    size = math.prod(sharded.mesh.values())
    task = {"function": target, "devices": devices, "most_bytes": MOST_BYTES}
    files = {"sharded.json": sharded.to_json()}
    found = _run(framework.program, files, task, size, python, (tool, "pydantic"))
    every = [CompiledUse(axes=(), seconds=0.0, **made) for made in found["compiled"]]
    compiled = [use for use in every if runs_as_planned(use.operator, sharded.program)]
    apart = tuple(differences(sharded.collectives, compiled, narrow_operators(sharded.program)))
    return Verification(
        tool=tool,
        versions=(f"{tool} {found['version']}",),
        what=f"{target} under the layouts of the plan: {_where(sharded, found, framework.done)}",
        checks=tuple(_checks(found.get("outputs", ()), _limit(sharded.program))),
        comparisons=tuple(_comparisons(sharded, compiled, apart)),
        operators=apart,
        notes=(
            framework.bytes_are,
            *_notes(sharded, found),
            *_alike_notes(found.get("alike", {})),
            *_width_notes(apart),
            *_branch_notes([use for use in every if use not in compiled]),
        ),
    )


def runs_as_planned(operator: str, program: Program) -> bool:
    """Whether ``operator`` is in no branch beside the one that the plan takes of a ``cond``: only one of them runs."""
    members = [m.name for op in program.operations for m in op.members]
    for branch in re.finditer(r"/branch\.\d+/", operator):
        own, any_of_them = operator[: branch.end()], f"{operator[: branch.start()]}/branch."
        planned = [name for name in members if name.startswith(any_of_them)]
        if planned and not any(name.startswith(own) for name in planned):
            return False
    return True


def narrow_operators(program: Program) -> frozenset[str]:
    """Operators whose numbers are bf16 alone, beside indices and masks: no sum of theirs has another type."""
    found = set()
    for op in program.operations:
        types = {program.value[name].dtype for name in (*op.inputs, *op.outputs)}
        if {t for t in types if t.startswith(("bfloat", "float", "complex"))} == {NARROW}:
            found |= {op.name, *(m.name for m in op.members)}
    return frozenset(found)


def differences(
    priced: Sequence[CollectiveUse], compiled: Sequence[CompiledUse], narrow: Container[str] = ()
) -> Iterator[OperatorDifference]:
    """Operators whose collectives were compiled otherwise than priced, in kind or bytes.

    In width alone where they would not, had those in `WIDE` 16 bits; and the operator is a ``narrow`` one, or what they
    bring is rounded to these.
    """
    ours, theirs = _by_operator(priced), _by_operator(compiled)
    halved = _by_operator([_in_16_bits(use) if _is_narrow(use, narrow) else use for use in compiled])
    for operator in dict.fromkeys((*ours, *theirs)):
        a, b = ours.get(operator, {}), theirs.get(operator, {})
        if _unlike(a, b):
            alone = not _unlike(a, halved.get(operator, {}))
            yield OperatorDifference(operator=operator, priced=a, compiled=b, width_alone=alone)


def _is_narrow(use: CompiledUse, narrow: Container[str]) -> bool:
    """Whether it moves bf16, by what the operator or the compiled program says; a sum may be fp32 and rounded later."""
    summed = SAME_KIND.get(use.collective, use.collective) == "sum"
    return use.operator in narrow or (use.rounded and not summed)


def _unlike(a: Mapping[str, float], b: Mapping[str, float]) -> bool:
    return any(abs(a.get(kind, 0.0) - b.get(kind, 0.0)) > 0.5 for kind in {*a, *b})


def _in_16_bits(use: CompiledUse) -> CompiledUse:
    share = 0.5 if use.types == (WIDE,) else 1.0
    return use.model_copy(update={"full_bytes": share * use.full_bytes})


def _by_operator(uses: Sequence[CollectiveUse]) -> dict[str, dict[str, float]]:
    """Operator -> kind -> bytes of whole arrays per call."""
    found: dict[str, dict[str, float]] = {}
    for use in (use for use in uses if use.full_bytes):  # empty arrays take no collective
        of = found.setdefault(use.operator, {})
        kind = SAME_KIND.get(use.collective, use.collective)
        of[kind] = of.get(kind, 0.0) + use.full_bytes * use.times
    return found


def _run(
    name: str,
    files: Mapping[str, str],
    task: Mapping[str, Any],
    devices: int,
    python: str | None,
    needs: tuple[str, ...] = ("jax", "pydantic"),
) -> dict[str, Any]:
    if not Path(task["function"].rpartition(":")[0]).is_file():
        raise InputError(f"{task['function']}: no such file; write FILE.py:NAME")
    flags = " ".join(FLAGS).format(devices)
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **THREADS, "NPROC": str(2 * devices)}
    found = run_program(name, files, task, needs, python, environment=environment)
    if "refused" in found:
        raise InputError(found["refused"])
    return found


def _where(sharded: ShardedProgram, found: Mapping[str, Any], done: str) -> str:
    def spelled(mesh: Mapping[str, int]) -> str:
        return ", ".join(f"{axis} {size}" for axis, size in mesh.items())

    where = f"{done} for {math.prod(sharded.mesh.values())} CPU devices ({spelled(sharded.mesh)})"
    if "outputs" not in found:
        return f"{where}, not run"
    if found["mesh"] == dict(sharded.mesh):
        return f"{where} and run"
    return f"{where}, run on {math.prod(found['mesh'].values())} ({spelled(found['mesh'])})"


def _limit(program: Program) -> float:
    types = {v.dtype for v in program.values}
    return max((limit for dtype, limit in LIMITS.items() if dtype in types), default=0.0)


def _checks(outputs: Sequence[Mapping[str, Any]], limit: float) -> Iterator[Check]:
    """Every number that the function returns, and the array that is furthest from its own."""
    arrays = [o for o in outputs if not o["scalar"]]
    worst = max(arrays, key=lambda o: float(o["error"]), default=None)
    for output in (*(o for o in outputs if o["scalar"]), *([worst] if worst else ())):
        title = output["name"] if output["scalar"] else f"furthest of {len(arrays)} arrays, {output['name']}"
        fields = {key: output[key] for key in ("expected", "found", "error")}
        yield Check(name=title, limit=limit, **fields)


def _comparisons(
    sharded: ShardedProgram, compiled: Sequence[CollectiveUse], apart: Sequence[OperatorDifference]
) -> Iterator[Comparison]:
    ours, theirs = _by_operator(sharded.collectives), _by_operator(compiled)
    kinds = sorted({kind for of in (*ours.values(), *theirs.values()) for kind in of})
    for kind in kinds:
        a, b = (sum(of.get(kind, 0.0) for of in side.values()) for side in (ours, theirs))
        yield Comparison(name=f"exchanged by {kind}", unit="bytes", predicted=a, found=b)
    yield Comparison(name="operators that exchange", unit="count", predicted=len(ours), found=len(theirs))
    count = sum(not difference.width_alone for difference in apart)
    yield Comparison(name="operators that differ", unit="count", predicted=0, found=count)


def _width_notes(apart: Sequence[OperatorDifference]) -> Iterator[str]:
    alone = [difference for difference in apart if difference.width_alone]
    if alone:
        more = sum(sum(d.compiled.values()) - sum(d.priced.values()) for d in alone)
        yield (
            f"{len(alone)} operators exchange the arrays that were priced, in 32 bits, {more:,.0f} bytes more: XLA's "
            "CPU backend multiplies and sums bf16 so; they are listed, and not counted as differing"
        )


def _branch_notes(elsewhere: Sequence[CollectiveUse]) -> Iterator[str]:
    if elsewhere:
        moved = sum(use.full_bytes * use.times for use in elsewhere)
        yield (
            f"branches that the plan does not take have {len(elsewhere)} collectives more, of {moved:,.0f} bytes, "
            "and are left out: one branch of each runs"
        )


def _alike_notes(alike: Mapping[str, str]) -> Iterator[str]:
    if alike:
        first, why = next(iter(alike.items()))
        yield f"{len(alike)} operators are computed alike on every device, the first {first}: {why}"


def _notes(sharded: ShardedProgram, found: Mapping[str, Any]) -> Iterator[str]:
    if found.get("unlike"):
        yield f"{found['unlike']}: numbers are not checked"
    elif "outputs" not in found:
        taken, most = found["bytes"] / GIB, MOST_BYTES / GIB
        yield f"a run would take {taken:.0f} GiB, more than {most:.0f}: numbers are not checked"
    elif found["mesh"] != dict(sharded.mesh):
        yield "it ran on fewer devices with the same layouts; collectives are those of the plan's own mesh"
