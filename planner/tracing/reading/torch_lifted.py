"""An exported module as a function of its tensors, and the graph of that, or of its derivative."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch._decomp import core_aten_decompositions
from torch.fx.experimental.proxy_tensor import make_fx

from planner.errors import InputError
from planner.tracing.program import Role
from planner.tracing.reading.torch_export import refused, tensors_of
from planner.tracing.reading.torch_running import Running
from planner.tracing.reading.torch_stops import writes


class Traced(NamedTuple):
    """A graph of operators, and what it is of."""

    graph: Any
    roles: list[tuple[str, Role]]
    """Path and role of each tensor that it takes."""
    gradients: int
    """How many of its first results are gradients of its first arguments."""
    notes: tuple[str, ...]
    weights: Mapping[str, Any]
    """Those that a gradient reaches."""


def traced(exported: Any, module: Any, inputs: Sequence[Any], gradient: bool) -> Traced:
    """The graph of what an exported module returns, or of ``gradient`` and the one number that it returns."""
    lifted = _Lifted(exported, module)
    return _graph(
        lifted, _differentiated(lifted.loss) if gradient else lifted.outputs, module, inputs, gradient
    )


def traced_running(module: Any, inputs: Sequence[Any], gradient: bool) -> Traced:
    """The same of a module that takes gradients itself."""
    running = Running(module, inputs)
    return _graph(
        running, running.differentiated(_one) if gradient else running.outputs, module, inputs, gradient
    )


def _graph(
    parts: "_Lifted | Running",
    function: Callable[..., Any],
    module: Any,
    inputs: Sequence[Any],
    gradient: bool,
) -> Traced:
    if gradient and not parts.parameters:
        raise InputError("gradient=True needs a module with parameters")
    table = core_operators() if gradient or isinstance(parts, Running) else None
    leaves = [x.to("meta") for x in tensors_of(inputs)]
    given = (parts.parameters, parts.states, *leaves)
    try:
        found = make_fx(function, decomposition_table=table)(*given)
        if any(map(writes, found.graph.nodes)):
            found = make_fx(torch.func.functionalize(found), decomposition_table=table)(*given)
    except InputError:
        raise
    except Exception as error:
        raise refused("differentiated" if gradient else "traced", error) from error
    names = list(parts.parameters)
    unreached = _unreached(found.graph, names) if gradient else []
    roles: list[tuple[str, Role]] = [(n, "frozen" if n in unreached else "parameter") for n in names]
    roles += [(n, "frozen" if n in parts.frozen else "constant") for n in parts.states]
    taken = {n for n, _ in roles}
    roles += [(f"input.{n}" if n in taken else n, "input") for n in _input_names(module, inputs)]
    reached = {n: w.to("meta") for n, w in parts.parameters.items() if n not in unreached}
    return Traced(found.graph, roles, len(names) if gradient else 0, tuple(_noted(unreached)), reached)


def core_operators() -> Any:
    """What each operator that is no core operator is made of."""
    return core_aten_decompositions()


class _Lifted:
    """An exported module as a function of its parameters, its other tensors, and its inputs; nothing in place."""

    def __init__(self, exported: Any, module: Any) -> None:
        self.module = exported.graph_module
        first: dict[int, str] = {}
        tied = {n: first.setdefault(id(p), n) for n, p in module.named_parameters(remove_duplicate=False)}
        specs = exported.graph_signature.input_specs
        self.specs = [(s.kind.name, tied.get(s.target, s.target), s.arg) for s in specs]
        known = {**exported.constants, **exported.state_dict}
        weights = {t: known[t].detach() for kind, t, _ in self.specs if kind == "PARAMETER"}
        trained = {n for n, p in module.named_parameters() if p.requires_grad} or weights.keys()
        self.parameters = {t: w for t, w in weights.items() if t in trained}
        self.frozen = weights.keys() - trained  # where others have gradients
        self.states = {t: known[t] for _, t, _ in self.specs if t is not None and t not in self.parameters}
        self.written = sum(s.kind.name != "USER_OUTPUT" for s in exported.graph_signature.output_specs)

    def outputs(self, weights: Any, states: Any, *inputs: Any) -> list[Any]:
        """What the module returns; new values of its buffers, which come first, are left out.

        ``inputs`` are its tensors; what else it was given is written in it.
        """
        given = iter(inputs)
        arguments = [
            states.get(target, weights.get(target))
            if kind != "USER_INPUT"
            else argument.value
            if hasattr(argument, "value")
            else next(given)
            for kind, target, argument in self.specs
        ]
        return list(self.module(*arguments)[self.written :])

    def loss(self, weights: Any, states: Any, *inputs: Any) -> Any:
        """The one number that the module returns; raises ``InputError`` where it returns something else."""
        return _one(self.outputs(weights, states, *inputs))


def _one(made: Sequence[Any]) -> Any:
    """The one number among what a module returns."""
    if len(made) != 1 or tuple(made[0].shape) != ():
        shapes = ", ".join(str(tuple(x.shape)) for x in made)
        raise InputError(f"gradient=True needs a module that returns one number, this one returns {shapes}")
    return made[0]


def _differentiated(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(weights: Any, states: Any, *inputs: Any) -> Any:
        try:
            gradients, value = torch.func.grad_and_value(call)(weights, states, *inputs)
        except RuntimeError as error:
            if "setup_context" not in str(error):
                raise
            raise InputError(
                "gradient=True: an operator that a library defines (torch.library.define) has a derivative that "
                "cannot be traced; defined by torch.library.custom_op it could be"
            ) from None
        return [*gradients.values(), value]

    return run


def _unreached(graph: Any, parameters: Sequence[str]) -> list[str]:
    """Parameters without a gradient, for which ``torch.func`` makes zeros: these are taken out of ``graph``."""
    output = graph.output_node()
    made = list(output.args[0])
    weights = [n for n in graph.nodes if n.op == "placeholder"]
    found = []
    for place, (name, weight) in enumerate(zip(parameters, weights, strict=False)):
        zeros = made[place]
        if zeros is None:
            found.append(name)
        elif zeros.target is torch.ops.aten.full_like.default and zeros.args == (weight, 0):
            made[place] = None
            found.append(name)
    if len(found) == len(parameters):
        raise InputError("gradient=True: no gradient reaches a parameter of the module")
    output.args = (made,)
    for node in reversed(graph.nodes):
        if node.target is torch.ops.aten.full_like.default and not node.users:
            graph.erase_node(node)
    return found


def _noted(unreached: Sequence[str]) -> list[str]:
    more = f" and {len(unreached) - 3} more" if len(unreached) > 3 else ""
    return [f"no gradient reaches {', '.join(unreached[:3])}{more}: taken as frozen"] if unreached else []


def _input_names(module: Any, inputs: Sequence[Any]) -> list[str]:
    """Of tensors, as the module calls them, if there is one for each."""
    names = [n for n in inspect.signature(module.forward).parameters if n != "self"]
    named = [name for name, given in zip(names, inputs, strict=False) if tensors_of(given)]
    count = len(tensors_of(inputs))
    return named if len(named) == count else [f"input.{i}" for i in range(count)]
