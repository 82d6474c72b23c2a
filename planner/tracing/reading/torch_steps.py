"""Recurrent layers of a traced module (``nn.LSTM``, ``nn.GRU``, ``nn.RNN``) as loops over time.

PyTorch exports one as it runs step by step; here the rows of all steps are multiplied first, as cuDNN does, and what
is left of a step is one pass of a loop.

Source of the arithmetic: the documentation of ``torch.nn.LSTM``, ``torch.nn.GRU`` and ``torch.nn.RNN``.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

torch.library.define(
    "meshwright::steps",
    "(Tensor rows, Tensor[] states, Tensor weight, Tensor? bias, str kind) -> (Tensor, Tensor[])",
)


def _made(
    rows: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None, kind: str
) -> tuple[Tensor, list[Tensor]]:
    """The first state after every step, and all after the last."""
    return rows.new_empty((rows.shape[0], *states[0].shape)), [torch.empty_like(s) for s in states]


torch.library.impl("meshwright::steps", "CompositeExplicitAutograd", _made)

States = tuple[Tensor, ...]


def _lstm(row: Tensor, of_state: Tensor, hidden: Tensor, cell: Tensor) -> States:
    enter, forget, new, leave = (row + of_state).chunk(4, -1)
    cell = torch.sigmoid(forget) * cell + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(leave) * torch.tanh(cell), cell


def _gru(row: Tensor, of_state: Tensor, hidden: Tensor) -> States:
    (reset, update, new), (of_reset, of_update, of_new) = row.chunk(3, -1), of_state.chunk(3, -1)
    new = torch.tanh(new + torch.sigmoid(reset + of_reset) * of_new)
    return ((hidden - new) * torch.sigmoid(update + of_update) + new,)


def _tanh(row: Tensor, of_state: Tensor, hidden: Tensor) -> States:
    return (torch.tanh(row + of_state),)


def _relu(row: Tensor, of_state: Tensor, hidden: Tensor) -> States:
    return (torch.relu(row + of_state),)


STEPS: Mapping[str, Callable[..., States]] = MappingProxyType(
    {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}
)
"""Layer -> what a step makes of its row and of its state, both multiplied by their weights, and of the states."""


def step(kind: str, row: Tensor, states: Sequence[Tensor], weight: Tensor, bias: Tensor | None) -> States:
    """The states after a step."""
    of_state = torch.nn.functional.linear(states[0], weight, bias)
    return STEPS[kind](row, of_state, *states)


class _Layers(NamedTuple):
    """A call of PyTorch's operator, whose arguments have the names that it has for them."""

    biases: bool
    layers: int
    dropout: float
    train: bool
    both_ways: bool
    batch_first: bool

    def run(
        self, kind: str, rows: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor]
    ) -> list[Tensor]:
        """Rows of the last layer, and the last states of all."""
        ways, own = 1 + self.both_ways, 4 if self.biases else 2
        rows = rows.transpose(0, 1) if self.batch_first else rows
        ends: list[list[Tensor]] = []
        for layer in range(self.layers):
            made = []
            for number in range(layer * ways, (layer + 1) * ways):
                into, again, *biases = weights[number * own : (number + 1) * own]
                bias, more = biases or (None, None)
                multiplied = torch.nn.functional.linear(rows, into, bias)
                out, end = torch.ops.meshwright.steps(
                    multiplied, [s[number] for s in states], again, more, kind
                )
                made.append(out)
                ends.append(end)
            rows = torch.cat(made, -1) if self.both_ways else made[0]
            if self.train and self.dropout and layer + 1 < self.layers:
                rows = torch.nn.functional.dropout(rows, self.dropout)
        rows = rows.transpose(0, 1) if self.batch_first else rows
        return [rows, *(torch.cat([end[None] for end in same]) for same in zip(*ends, strict=True))]


def _called(kind: str) -> Callable[..., Any]:
    def run(rows: Tensor, states: Any, weights: Sequence[Tensor], *how: Any) -> list[Tensor]:
        given = states if isinstance(states, list | tuple) else [states]
        return _Layers(*how).run(kind, rows, given, weights)

    return run


LAYERS: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {getattr(torch.ops.aten, kind).input: _called(kind) for kind in STEPS}
)
"""Operators of PyTorch, and what is called instead."""


def in_loops(node: Any) -> bool:
    """Whether a call is of such layers, without projections of their states."""
    if node.target not in LAYERS:
        return False
    weights, biases, layers, both_ways = node.args[2], node.args[3], node.args[4], node.args[7]
    arrays: int = (4 if biases else 2) * layers * (1 + both_ways)
    return len(weights) == arrays
