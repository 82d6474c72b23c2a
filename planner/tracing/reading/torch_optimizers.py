"""An optimizer's step as a graph of operators: weights, gradients and states in, new weights and states out.

The step is that of ``torch.optim`` on one tensor after the other; how far it is on its way (``step``) is a number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import InputError
from planner.tracing.reading.torch_lifted import core_operators

Factory = Callable[[list[Any]], torch.optim.Optimizer]
"""Parameters -> their optimizer."""

States = list[dict[str, Tensor]]
"""By weight: what is kept beside it, by name."""


class Update(NamedTuple):
    """A step: of weights, their gradients, and states, all in this order."""

    graph: Any
    states: list[tuple[str, Tensor]]
    """What is kept for which weight, as ``weight.name``."""
    run: Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], list[Tensor]]
    """The same as a function of plain tensors."""


def update_of(factory: Factory, weights: Mapping[str, Tensor], known: Callable[[Any], bool]) -> Update:
    """The step of the optimizer that ``factory`` makes for ``weights``, which need no storage.

    Operators that are not ``known`` are taken apart, where they are made of others. Raises ``InputError`` where it is
    no optimizer, or looks at values.
    """
    try:
        return _traced(factory, weights, known)
    except InputError:
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0]
        raise InputError(
            f"optimizer: no step could be followed ({said}); it may not look at values (Adafactor, ASGD and LBFGS do)"
        ) from error


def _traced(factory: Factory, weights: Mapping[str, Tensor], known: Callable[[Any], bool]) -> Update:
    begun = _begun(factory, list(weights.values()))
    kept = [{name: x for name, x in state.items() if _is_array(x)} for state in begun]

    def run(given: Sequence[Tensor], gradients: Sequence[Tensor], states: States) -> list[Tensor]:
        new = [x.clone() for x in given]
        after = [{name: x.clone() for name, x in state.items()} for state in states]
        optimizer = _made(factory, new)
        for weight, gradient, first, state in zip(new, gradients, begun, after, strict=True):
            weight.grad = gradient
            optimizer.state[weight] = {name: _number(x) for name, x in first.items()} | state
        with torch.no_grad():
            optimizer.step()
        moved = [optimizer.state[w][name] for w, state in zip(new, kept, strict=True) for name in state]
        return [*new, *moved]

    given = list(weights.values()), [torch.empty_like(x) for x in weights.values()], kept
    table = {operator: parts for operator, parts in core_operators().items() if not known(operator)}
    graph = make_fx(torch.func.functionalize(run), decomposition_table=table)(*given).graph
    _drop_unread(graph)
    states = [(f"{w}.{name}", x) for w, state in zip(weights, kept, strict=True) for name, x in state.items()]
    _, structure = tree_flatten(kept)
    return Update(graph, states, lambda w, g, flat: run(w, g, tree_unflatten(list(flat), structure)))


def _begun(factory: Factory, weights: Sequence[Tensor]) -> list[dict[str, Any]]:
    """What the optimizer keeps of each weight after a first step."""
    parameters = [torch.nn.Parameter(torch.empty_like(x)) for x in weights]
    optimizer = _made(factory, parameters)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    return [dict(optimizer.state[p]) for p in parameters]


def _made(factory: Factory, parameters: list[Any]) -> torch.optim.Optimizer:
    optimizer = factory(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(
            f"optimizer: expected what makes an optimizer of parameters, as torch.optim.AdamW; it made "
            f"{type(optimizer).__name__}"
        )
    return optimizer


def _is_array(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_meta


def _number(x: Any) -> Any:
    """Of its own for every step that is traced: steps are counted in place."""
    return torch.tensor(x.item(), dtype=x.dtype) if isinstance(x, Tensor) and not x.is_meta else x


def _drop_unread(graph: Any) -> None:
    """Leave out numbers, which are written as such where they are read, and what is measured on the way."""
    for node in reversed(graph.nodes):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.erase_node(node)
