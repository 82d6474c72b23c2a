"""A PyTorch module that runs under the layouts of a `ShardedProgram`."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.tensor import empty as empty_of

from planner.errors import InputError
from planner.tracing.applying.dtensor.arrays import Array
from planner.tracing.applying.dtensor.runner import Runner
from planner.tracing.layouts import Partition
from planner.tracing.reading.from_torch import UPDATE, Reading, read_module
from planner.tracing.reading.torch_export import tensors_of
from planner.tracing.sharded import ShardedProgram


def apply_layouts(
    module: Any, sharded: ShardedProgram, mesh: Any, *example_inputs: Any, gradient: bool = False
) -> "ShardedModule":
    """``module`` with its arrays laid out on ``mesh``, a ``DeviceMesh`` whose dims are called as the plan's axes.

    ``example_inputs`` and ``gradient`` are those of `from_torch`. The module's parameters and buffers become
    ``DTensor``s; those on meta get storage, and are to be initialised. What comes back is called with the inputs,
    whole on every device. With ``gradient`` it adds to ``grad`` of the parameters and returns the loss; without, it
    returns what the module does, as ``DTensor``s.

    Raises ``InputError`` where the mesh has other axes, or the module is not the program's.
    """
    return ShardedModule(module, read_as_planned(module, example_inputs, sharded, gradient), sharded, mesh)


def read_as_planned(
    module: Any,
    inputs: Sequence[Any],
    sharded: ShardedProgram,
    gradient: bool,
    optimizer: Callable[[list[Any]], Any] | None = None,
) -> Reading:
    """The module as the plan's program was read; raises ``InputError`` where it is another.

    Without ``optimizer`` the step of one that the plan has is left out.
    """
    planned = sharded.program
    reading = read_module(
        module,
        *inputs,
        gradient=gradient,
        optimizer=optimizer,
        replicate_unknown=bool(planned.replicated),
        trips=int(planned.traced_with.get("trips", 0)) or None,
        rules=planned.rules,
    )
    _check(reading, sharded)
    return reading


def _check(reading: Reading, sharded: ShardedProgram) -> None:
    """Refuse a module of which the plan has not every operator, or which has other inputs."""
    program = reading.program
    own = {op.name for op in program.operations}
    planned = {m.name for op in sharded.program.operations for m in op.members}
    if reading.update is None:
        planned = {name for name in planned if not name.startswith(UPDATE)}
    if unknown := planned - own:
        raise InputError(
            f"{program.name} is not the module that was planned: only the plan has {min(unknown)}"
        )
    for name in program.inputs:
        value, there = program.value[name], sharded.program.value.get(name)
        if there is None or (there.shape, there.dtype) != (value.shape, value.dtype):
            wanted = "none such" if there is None else f"{there.dtype}{list(there.shape)}"
            raise InputError(f"{value.path} is {value.dtype}{list(value.shape)}, the plan has {wanted}")


class ShardedModule:
    """A module whose operators run one by one on what each device has."""

    def __init__(self, module: Any, reading: Reading, sharded: ShardedProgram, mesh: Any) -> None:
        sizes = dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=False))
        if sizes != dict(sharded.mesh):
            raise InputError(f"the mesh is {sizes}, the plan is for {dict(sharded.mesh)}")
        self.sharded, self.reading, self.runner = sharded, reading, Runner(sharded, mesh, reading)
        program = reading.program
        self.without_step = len(program.inputs) < len(sharded.program.inputs) or (
            len(program.results) < len(sharded.program.results)
        )
        """Whether the plan has the step of an optimizer, which the script takes by itself."""
        places = [sharded.inputs[program.value[n].path] for n in program.inputs]
        self.paths = [path for path, role in reading.traced.roles if role != "input"]
        self.places = places[: len(reading.traced.roles)]
        self.states = places[len(reading.traced.roles) :]
        self.held = self._distribute(module)

    def __call__(self, *inputs: Any) -> Any:
        """What the module returns for inputs that every device has; with gradients, the loss alone."""
        *gradients, last = results = self.results(inputs)
        if not self.reading.traced.gradients:
            return last if len(results) == 1 else results
        for parameter, made in zip(self.held, gradients, strict=False):
            if made is not None:
                parameter.grad = made if parameter.grad is None else parameter.grad + made
        return last.full_tensor()

    def results(self, inputs: Sequence[Any], states: Sequence[Any] = ()) -> list[Any]:
        """Results as the program has them, as ``DTensor``s; ``states`` are those of an optimizer, whole."""
        count, names = len(self.held), self.reading.program.inputs
        with torch.no_grad():
            own = map(self.runner.distributed, tensors_of(inputs), self.places[count:])
            kept = map(self.runner.distributed, states, self.states)
            arrays = [*(x.detach() for x in self.held), *own, *kept]
            given = [Array(name, tuple(x.shape), x) for name, x in zip(names, arrays, strict=True)]
            made = list(self._finished(self._walked(given)))
        self.runner.forget()
        return made

    def _walked(self, given: list[Array]) -> list[Array | None]:
        """What the graph makes, and an optimizer's step after it, in the order of the program's results."""
        first = len(self.reading.traced.roles)
        made, update = self.runner.walk(self.reading.traced.graph, given[:first]), self.reading.update
        if update is None:
            return made
        gradients, rest = made[: self.reading.traced.gradients], made[self.reading.traced.gradients :]
        reached = [(w, g) for w, g in zip(given, gradients, strict=False) if g is not None]
        arguments = [*(w for w, _ in reached), *(g for _, g in reached), *given[first:]]
        return [*self.runner.walk(update.graph, arguments, UPDATE), *rest]

    def _finished(self, arrays: list[Array | None]) -> Iterator[Any]:
        """Results as their tie, or the operator that made them, wants them."""
        program = self.reading.program if self.without_step else self.sharded.program
        tied = {t.source: t.target for t in program.ties if t.target in program.inputs}
        for array, name in zip(arrays, program.results, strict=True):
            if array is None:
                yield None
            elif name is None:
                yield self.runner.lying(array, ((),) * array.ndim)
            else:
                place = self._place(tied[name]) if name in tied else self._out(name, array.ndim)
                self.runner.at = tied.get(name, name)
                yield self.runner.lying(array, place, self.runner.at)

    def _out(self, name: str, dims: int) -> Partition:
        """Whole what is no result of the plan's program, but of a part of it."""
        return (
            self.sharded.outputs.get(name, ((),) * dims) if self.without_step else self.sharded.outputs[name]
        )

    def _place(self, name: str) -> Partition:
        return self.sharded.inputs[self.sharded.program.value[name].path]

    def _distribute(self, module: Any) -> list[Any]:
        """Parameters and other tensors of the module, which become ``DTensor``s, and what is written in it."""
        parameters = dict(module.named_parameters(remove_duplicate=False))
        tensors = {**parameters, **dict(module.named_buffers(remove_duplicate=False))}
        found = []
        for path, place in zip(self.paths, self.places, strict=False):
            own = tensors.get(path, self.reading.constants.get(path))
            if own is None:
                raise InputError(f"{path} of the module has no values that could be laid out")
            laid = self._laid(own.detach(), place)
            if path in parameters:
                laid = torch.nn.Parameter(laid, own.requires_grad)
            for same in (name for name, tensor in tensors.items() if tensor is own):
                _replace(module, same, laid)
            found.append(laid)
        return found

    def _laid(self, tensor: Any, place: Partition) -> Any:
        mesh = self.runner.mesh
        if not tensor.is_meta or mesh.device_type == "meta":
            return self.runner.distributed(tensor, place)
        return empty_of(
            *tensor.shape, dtype=tensor.dtype, device_mesh=mesh, placements=self.runner.placements(place)
        )


def _replace(module: Any, path: str, tensor: Any) -> None:
    """Put ``tensor`` where the module has another of that name."""
    owner, _, name = path.rpartition(".")
    part = module.get_submodule(owner)
    table = part._parameters if name in part._parameters else part._buffers
    table[name] = tensor
