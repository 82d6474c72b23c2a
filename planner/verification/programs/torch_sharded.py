"""A module of PyTorch under the layouts of a `ShardedProgram`: what it exchanges, and its numbers beside one device's.

    python -m planner.verification.programs.torch_sharded task.json

Prints, as JSON, every collective by operator, as the first device of the plan's mesh calls it, where nothing is
computed; and the module's results on devices that this process simulates.
"""

import copy
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from cluster_specs.errors import InputError
from planner.tracing.applying.dtensor.apply import ShardedModule, read_as_planned
from planner.tracing.applying.dtensor.graphs import unlike
from planner.tracing.program import Program
from planner.tracing.reading.from_torch import Reading
from planner.tracing.sharded import ShardedProgram
from planner.verification.programs.functions import load_function, print_answer, smaller_mesh
from planner.verification.programs.numbers import NOISE, output_of
from planner.verification.programs.torch_numbers import (
    alone,
    check_finite,
    filled,
    given_numbers,
    noted_casts,
    nudged,
    nudged_module,
    numbers,
    on_meta,
    rounding,
    titles,
)
from planner.verification.programs.trace import optimizer_of

KINDS: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {
        "all_gather_into_tensor": ("all_gather", True),
        "all_reduce": ("all_reduce", False),
        "reduce_scatter_tensor": ("reduce_scatter", False),
        "shard_dim_alltoall": ("all_to_all", False),
        "all_to_all_single": ("send", False),
    }
)
"""Operator of PyTorch -> our collective, and whether the whole array is as many times what a device brings to it."""


def check(task: Mapping[str, Any]) -> dict[str, Any]:
    """What is exchanged, and how far what is computed is from what one device computes."""
    sharded = ShardedProgram.model_validate_json(Path(task["exported"]).read_text())
    loaded = load_function(task["function"])
    if isinstance(loaded, Program) or not hasattr(loaded[0], "named_parameters"):
        raise InputError(f"{task['function']} is no module of PyTorch: (module, *inputs) is what runs here")
    module, *inputs = loaded
    module, reading = filled(module, _reading(module, inputs, sharded))
    found = {"version": torch.__version__, "unlike": unlike(reading), "mesh": dict(sharded.mesh)}
    found |= _exchanged(module, inputs, reading, sharded)
    small = sharded.model_copy(update={"mesh": smaller_mesh(sharded.mesh, task["devices"])})
    # Of all devices, and at most as much of one that has everything.
    taken = 2 * sharded.memory_bytes * math.prod(sharded.mesh.values())
    if found["unlike"] or taken > task["most_bytes"]:
        return {**found, "bytes": taken}
    return {**found, "mesh": dict(small.mesh), "outputs": _compared(module, inputs, reading, small)}


def _reading(module: Any, inputs: Sequence[Any], sharded: ShardedProgram) -> Reading:
    """The module as the plan's program was read; with a gradient if it has that and does not say so."""
    options = sharded.program.traced_with
    optimizer = optimizer_of(options["optimizer"]) if "optimizer" in options else None

    def read(gradient: bool) -> Reading:
        # of a copy, as a module may keep what it saw while it was read
        return read_as_planned(copy.deepcopy(module), inputs, sharded, gradient, optimizer)

    if options:
        return read("gradient" in options)
    try:
        return read(False)
    except InputError:
        return read(True)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Collectives that are called meanwhile, each for the operator that ``now`` names."""

    def __init__(self, now: Callable[[], str]) -> None:
        super().__init__()
        self.now, self.found = now, list[dict[str, Any]]()

    def __torch_dispatch__(self, target: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # which calls again, for what each device has
            return NotImplemented
        library, _, name = target._schema.name.partition("::")
        if library in ("_c10d_functional", "_dtensor") and name in KINDS:
            kind, gathers = KINDS[name]
            group = _resolve_process_group(args[-1]) if isinstance(args[-1], str) else args[-1]
            size = args[0].numel() * args[0].element_size() * (group.size() if gathers else 1)
            made = {"operator": self.now(), "collective": kind, "full_bytes": size, "times": 1}
            self.found.append(made)
        return target(*args, **(kwargs or {}))


@contextmanager
def followed_on_meta() -> Iterator[None]:
    """What ``DTensor`` asks of devices that compute nothing: how many a host has, whether two masks are the same."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("equal", lambda first, second: True, "Meta")
    try:
        with patch.object(torch, "meta", torch.cpu, create=True):
            yield
    finally:
        library._destroy()


@contextmanager
def world(mesh: Mapping[str, int]) -> Iterator[None]:
    """As many devices as ``mesh`` has, of which this process is the first."""
    dist.init_process_group("fake", rank=0, world_size=math.prod(mesh.values()), store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def _placed(module: Any, reading: Reading, sharded: ShardedProgram, device: str) -> ShardedModule:
    axes = sharded.mesh
    mesh = init_device_mesh(device, tuple(axes.values()), mesh_dim_names=tuple(axes))
    return ShardedModule(module, reading, sharded, mesh)


def _exchanged(
    module: Any, inputs: Sequence[Any], reading: Reading, sharded: ShardedProgram
) -> dict[str, Any]:
    """Collectives on the plan's mesh, and operators that every device computes alike, with why."""
    given = tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, tuple(inputs))
    states = [x for _, x in reading.update.states] if reading.update else []
    with world(sharded.mesh), followed_on_meta():
        placed = _placed(on_meta(module), reading, sharded, "meta")
        with Recorder(lambda: placed.runner.owner(placed.runner.at)) as recorder:
            placed.results(given, states)
    return {"compiled": recorder.found, "alike": placed.runner.alike}


def _compared(
    module: Any, inputs: Sequence[Any], reading: Reading, sharded: ShardedProgram
) -> list[dict[str, Any]]:
    """Results on all devices of a mesh beside those of PyTorch on one."""
    given, names = given_numbers(inputs), titles(reading)
    own_states = reading.update.states if reading.update else []
    states = [numbers(x, seed, positive=True) for seed, (_, x) in enumerate(own_states)]
    rng, share = torch.Generator().manual_seed(0), rounding(reading.program)
    runs = [(copy.deepcopy(module), given, states)]
    for off in (share, NOISE * share):
        runs.append((nudged_module(module, rng, off), *nudged((given, states), rng, off)))
    with noted_casts() as casts:
        expected, *moved = (alone(own, x, y, reading) for own, x, y in runs)
    if casts:  # which PyTorch makes on a GPU only: the same operators stand for it, on one device
        one = sharded.model_copy(update={"mesh": dict.fromkeys(sharded.mesh, 1)})
        expected, *moved = (_results(own, x, y, reading, one) for own, x, y in runs)
    check_finite(names, expected)
    with LocalTensorMode(math.prod(sharded.mesh.values())):
        found = _results(module, given, states, reading, sharded, expected)
    every = zip(names, expected, found, *moved, strict=True)
    return [output_of(name, *map(_floats, each)) for name, *each in every if each[0] is not None]


def _results(
    module: Any,
    given: Any,
    states: Sequence[Any],
    reading: Reading,
    sharded: ShardedProgram,
    expected: Sequence[Any] = (),
) -> list[Any]:
    """Whole, of the module under layouts: where devices do not agree, those that are furthest from ``expected``."""
    with world(sharded.mesh):
        made = _placed(module, reading, sharded, "cpu").results(given, states)
        found = [None if x is None else x.full_tensor() for x in made]
    each = itertools.zip_longest(found, expected)
    return [_furthest(x, goal) if isinstance(x, LocalTensor) else x for x, goal in each]


def _furthest(tensor: Any, expected: Any) -> Any:
    """Of what devices have, which all should have alike."""
    every = [*tensor._local_tensors.values()]
    return max(every, key=lambda x: float((x.double() - expected.double()).abs().sum()))


def _floats(tensor: Any) -> Any:
    return tensor.detach().to(torch.float64).numpy()


if __name__ == "__main__":
    torch.set_num_threads(1)  # sums in one order
    print_answer(sys.argv[1], check)
