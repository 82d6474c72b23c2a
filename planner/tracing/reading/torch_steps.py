"""Recurrent layers of a traced module (``nn.LSTM``, ``nn.GRU``, ``nn.RNN``) as loops over time, and their derivatives.

PyTorch exports one as it runs step by step; here the rows of all steps are multiplied first, as cuDNN does, and what
is left of a step is one pass of a loop. Backward, a loop makes the gradients of what was multiplied, and those of
all steps are multiplied to that of the weight.

Source of the arithmetic: the documentation of ``torch.nn.LSTM``, ``torch.nn.GRU`` and ``torch.nn.RNN``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, update_wrapper
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from planner.errors import InputError
from planner.tracing.reading.torch_functions import replaced

torch.library.define(
    "meshwright::steps",
    "(Tensor rows, Tensor[] states, Tensor weight, Tensor? bias, str kind, bool reverse) -> (Tensor[], Tensor[])",
)
torch.library.define(
    "meshwright::steps_backward",
    "(Tensor rows, Tensor[] states, Tensor[] kept, Tensor weight, str kind, bool reverse)"
    " -> (Tensor[], Tensor[])",
)

States = tuple[Tensor, ...]

Gradients = tuple[Tensor, Tensor, tuple[Tensor | None, ...]]
"""Of a row, of its product, and of the states apart from that."""


class Step(NamedTuple):
    """What a step does with its row and its state, both multiplied by their weights, and with the states."""

    forward: Callable[..., tuple[States, States]]
    """Row, product of the state, states -> states after it, and what the derivative reads."""
    backward: Callable[..., Gradients]
    """What was kept, gradients of the states after it -> gradients of the row, of the product and, apart from that, of
    the states before it."""
    kept: int
    """How many arrays the derivative reads."""


def _lstm(row: Tensor, product: Tensor, hidden: Tensor, cell: Tensor) -> tuple[States, States]:
    gates = (row + product).chunk(4, -1)
    enter, forget, new, leave = (
        *map(torch.sigmoid, gates[:2]),
        torch.tanh(gates[2]),
        torch.sigmoid(gates[3]),
    )
    after = forget * cell + enter * new
    shown = torch.tanh(after)
    return (leave * shown, after), (enter, forget, new, leave, shown, cell)


def _lstm_backward(kept: Sequence[Tensor], of_hidden: Tensor, of_cell: Tensor) -> Gradients:
    enter, forget, new, leave, shown, cell = kept
    of_cell = of_cell + of_hidden * leave * (1 - shown * shown)
    gates = (
        of_cell * new * enter * (1 - enter),
        of_cell * cell * forget * (1 - forget),
        of_cell * enter * (1 - new * new),
        of_hidden * shown * leave * (1 - leave),
    )
    both = torch.cat(gates, -1)
    return both, both, (None, of_cell * forget)


def _gru(row: Tensor, product: Tensor, hidden: Tensor) -> tuple[States, States]:
    (reset, update, new), (of_reset, of_update, of_new) = row.chunk(3, -1), product.chunk(3, -1)
    reset, update = torch.sigmoid(reset + of_reset), torch.sigmoid(update + of_update)
    new = torch.tanh(new + reset * of_new)
    change = hidden - new
    return (change * update + new,), (reset, update, new, of_new, change)


def _gru_backward(kept: Sequence[Tensor], of_hidden: Tensor) -> Gradients:
    reset, update, new, of_new, change = kept
    for_new = of_hidden * (1 - update) * (1 - new * new)
    gates = (for_new * of_new * reset * (1 - reset), of_hidden * change * update * (1 - update))
    return torch.cat((*gates, for_new), -1), torch.cat((*gates, for_new * reset), -1), (of_hidden * update,)


def _plain(function: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Step:
    """One function of the sum, whose derivative is said by what it makes."""

    def forward(row: Tensor, product: Tensor, hidden: Tensor) -> tuple[States, States]:
        after = function(row + product)
        return (after,), (after,)

    def backward(kept: Sequence[Tensor], of_hidden: Tensor) -> Gradients:
        both = of_hidden * slope(kept[0])
        return both, both, (None,)

    return Step(forward, backward, 1)


STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "lstm": Step(_lstm, _lstm_backward, 6),
        "gru": Step(_gru, _gru_backward, 5),
        "rnn_tanh": _plain(torch.tanh, lambda made: 1 - made * made),
        "rnn_relu": _plain(torch.relu, lambda made: made > 0),
    }
)
"""By layer."""


def step(
    kind: str, row: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None
) -> tuple[States, States]:
    """The states after a step, and what its derivative reads."""
    return STEPS[kind].forward(row, torch.nn.functional.linear(states[0], weight, bias), *states)


def step_backward(
    kind: str, row: Tensor, states: Sequence[Tensor], kept: Sequence[Tensor], weight: Tensor
) -> tuple[States, tuple[Tensor, Tensor]]:
    """Gradients of the states before a step, and of its row and of its product with the weight.

    ``states`` are those of the states after it, as later steps read them; ``row`` is what else reads the first.
    """
    of_row, of_product, apart = STEPS[kind].backward(kept, states[0] + row, *states[1:])
    through = of_product @ weight
    first = through if apart[0] is None else through + apart[0]
    return (first, *(x for x in apart[1:] if x is not None)), (of_row, of_product)


def _made(
    rows: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None, kind: str, reverse: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The first state after every step and what the derivative reads of it, and all states after the last."""
    all_steps = (rows.shape[0], *states[0].shape)
    made = [states[0].new_empty(all_steps) for _ in range(1 + STEPS[kind].kept)]
    return made, [torch.empty_like(s) for s in states]


def _made_backward(
    rows: Tensor,
    states: Sequence[Tensor],
    kept: Sequence[Tensor],
    weight: Tensor,
    kind: str,
    reverse: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Gradients of the rows and of the products of every step with the weight, and those of the first states."""
    shape = (*rows.shape[:-1], weight.shape[0])
    return [rows.new_empty(shape) for _ in range(2)], [torch.empty_like(s) for s in states]


torch.library.impl("meshwright::steps", "CompositeExplicitAutograd", _made)
torch.library.impl("meshwright::steps_backward", "CompositeExplicitAutograd", _made_backward)


class _Steps(torch.autograd.Function):  # type: ignore[misc]
    """All steps of a layer, with their derivative."""

    @staticmethod
    def forward(
        rows: Tensor, weight: Tensor, bias: Tensor | None, kind: str, reverse: bool, *states: Tensor
    ) -> Any:
        made, ends = torch.ops.meshwright.steps(rows, list(states), weight, bias, kind, reverse)
        return (*ends, *made)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, weight, _, ctx.kind, ctx.reverse, *states = inputs
        ctx.number = len(states)
        ctx.save_for_backward(weight, states[0], *output[len(states) :])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        weight, first, made, *kept = ctx.saved_tensors
        of_ends, of_made = gradients[: ctx.number], gradients[ctx.number]
        (of_rows, of_products), of_states = torch.ops.meshwright.steps_backward(
            of_made, list(of_ends), kept, weight, ctx.kind, not ctx.reverse
        )
        before = torch.cat((made[1:], first[None]) if ctx.reverse else (first[None], made[:-1]))
        of_weight = of_products.flatten(0, 1).T @ before.flatten(0, 1)
        of_bias = of_products.sum((0, 1)) if ctx.needs_input_grad[2] else None
        return (of_rows, of_weight, of_bias, None, None, *of_states)


class _Layers(NamedTuple):
    """A call of PyTorch's operator, whose arguments have the names that it has for them."""

    biases: bool
    layers: int
    dropout: float
    train: bool
    both_ways: bool
    batch_first: bool

    @property
    def ways(self) -> int:
        """How often each layer goes through the rows."""
        return 1 + self.both_ways

    @property
    def own(self) -> int:
        """Weights of one way of one layer."""
        return 4 if self.biases else 2

    def run(
        self, kind: str, rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        """Rows of the last layer, and the last states of all."""
        rows = rows.transpose(0, 1) if self.batch_first else rows
        ends: list[Sequence[Tensor]] = []
        for layer in range(self.layers):
            made = []
            for number in range(layer * self.ways, (layer + 1) * self.ways):
                into, again, *biases = weights[number * self.own : (number + 1) * self.own]
                bias, more = biases or (None, None)
                multiplied = torch.nn.functional.linear(rows, into, bias)
                own = (s[number] for s in states)
                found = _Steps.apply(multiplied, again, more, kind, number % self.ways == 1, *own)
                ends.append(found[: len(states)])
                made.append(found[len(states)])
            rows = torch.cat(made, -1) if self.both_ways else made[0]
            if self.train and self.dropout and layer + 1 < self.layers:
                rows = torch.nn.functional.dropout(rows, self.dropout)
        rows = rows.transpose(0, 1) if self.batch_first else rows
        return [rows, *(torch.cat([end[None] for end in same]) for same in zip(*ends, strict=True))]


def _called(
    rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], kind: str, *how: Any
) -> list[Tensor]:
    return _Layers(*how).run(kind, rows, states, weights)


def _shapes(
    rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], kind: str, *how: Any
) -> list[Tensor]:
    layers = _Layers(*how)
    rows = rows.transpose(0, 1) if layers.batch_first else rows
    made = rows.new_empty((*rows.shape[:-1], states[0].shape[-1] * layers.ways))
    made = made.transpose(0, 1) if layers.batch_first else made
    return [made, *(torch.empty_like(x) for x in states)]


torch.library.define(
    "meshwright::layers",
    "(Tensor rows, Tensor[] states, Tensor[] weights, str kind, bool biases, int layers, float dropout, bool train,"
    " bool both_ways, bool batch_first) -> Tensor[]",
)
torch.library.register_fake("meshwright::layers", _shapes)


@contextmanager
def kept_layers() -> Iterator[None]:
    """Recurrent layers become one operator each of what is exported meanwhile, but those that project their states."""
    with ExitStack() as stack:
        for kind in STEPS:
            own = getattr(torch._C._VariableFunctions, kind)
            call = update_wrapper(partial(_kept, own, kind), own)  # dynamo asks for its name
            for owner in (torch._VF, torch):
                stack.enter_context(replaced(owner, kind, call))
        stack.enter_context(replaced(torch._VF, "_pack_padded_sequence", _packed))
        yield


def _packed(*given: Any) -> Any:
    raise InputError(
        "pack_padded_sequence makes as many entries as values say: leave rows padded, and pick the last with gather"
    )


def _kept(own: Callable[..., Any], kind: str, *given: Any) -> Any:
    if not isinstance(given[3], bool):  # of packed rows: sizes of batches come second
        return own(*given)
    rows, states, weights, *how = given
    layers = _Layers(*how)
    if len(weights) != layers.own * layers.layers * layers.ways:  # with projections of states
        return own(*given)
    states = list(states) if kind == "lstm" else [states]
    return tuple(torch.ops.meshwright.layers(rows, states, list(weights), kind, *how))


def with_layers(module: Any) -> None:
    """Call them step after step, in such a way that their own derivative is traced."""
    for part in module.modules():
        for node in part.graph.nodes:
            if node.target is torch.ops.meshwright.layers.default:
                node.target = _called
        part.recompile()
