"""Recurrent layers of PyTorch as loops over time, forward and backward, beside what PyTorch does."""

from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.program import Program, elements  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.reading.torch_steps import STEPS, step, step_backward  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

LENGTH, BATCH, WIDTH, STATE, LAYERS = 5, 3, 4, 6, 2

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


class Net(torch.nn.Module):  # type: ignore[misc]
    """Recurrent layers, and the mean of what they make."""

    def __init__(self, kind: str, **how: Any) -> None:
        super().__init__()
        self.layers = getattr(torch.nn, kind)(WIDTH, STATE, LAYERS, **how)

    def forward(self, x: Any) -> Any:
        return self.layers(x)[0].square().mean()


def read(kind: str, length: int = LENGTH, **how: Any) -> tuple[Any, Any, Program]:
    with torch.device("meta"):
        module, rows = Net(kind, **how), torch.zeros(length, BATCH, WIDTH)
    return module, rows, from_torch(module, rows, gradient=True)


def layer(kind: str) -> Any:
    name, _, function = kind.partition("_")
    how = {"nonlinearity": function} if function else {}
    return getattr(torch.nn, name.upper())(WIDTH, STATE, dtype=torch.float64, **how)


@pytest.mark.parametrize("kind", STEPS)
def test_steps_and_their_derivative_are_those_of_pytorch(kind: str) -> None:
    torch.manual_seed(0)
    ours = layer(kind)
    rows = torch.randn(LENGTH, BATCH, WIDTH, dtype=torch.float64, requires_grad=True)
    states = [torch.randn(1, BATCH, STATE, dtype=torch.float64, requires_grad=True)]
    states *= 1 if kind != "lstm" else 2
    made, ends = ours(rows, tuple(states) if len(states) > 1 else states[0])
    ends = ends if isinstance(ends, tuple) else (ends,)
    of_made, of_ends = torch.randn_like(made), [torch.randn_like(e) for e in ends]
    (made * of_made).sum().backward(retain_graph=True)
    weight, bias = ours.weight_hh_l0, ours.bias_hh_l0
    loss = (made * of_made).sum() + sum((e * g).sum() for e, g in zip(ends, of_ends, strict=True))
    theirs = torch.autograd.grad(loss, [rows, weight, states[0]])

    multiplied = torch.nn.functional.linear(rows, ours.weight_ih_l0, ours.bias_ih_l0)
    now: Sequence[Any] = [s[0] for s in states]
    kept, hidden = [], []
    for row in multiplied:
        hidden.append(now[0])
        now, needed = step(kind, row, now, weight, bias)
        assert len(needed) == STEPS[kind].kept
        kept.append(needed)
    torch.testing.assert_close(torch.stack([*hidden[1:], now[0]]), made)
    back: Sequence[Any] = [g[0] for g in of_ends]
    of_rows, of_products = [], []
    for place in reversed(range(LENGTH)):
        back, (of_row, of_product) = step_backward(kind, of_made[place], back, kept[place], weight)
        of_rows.insert(0, of_row)
        of_products.insert(0, of_product)
    torch.testing.assert_close(torch.stack(of_rows) @ ours.weight_ih_l0, theirs[0])
    torch.testing.assert_close(
        torch.einsum("tbg,tbh->gh", torch.stack(of_products), torch.stack(hidden)), theirs[1]
    )
    of_first = back[0] + back[1] if kind == "lstm" else back[0]  # the test begins both with the same
    torch.testing.assert_close(of_first, theirs[2][0])


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("both_ways", [False, True], ids=["one way", "both ways"])
def test_a_gradient_through_time_multiplies_as_often_as_pytorch(kind: str, both_ways: bool) -> None:
    """But that PyTorch leaves out the gradient of zeros that the first step begins with."""
    module, rows, program = read(kind, bidirectional=both_ways)
    products = [op for op in clean(program).operations if op.kind == "product"]
    ours = sum(
        2 * op.times * elements(n for f, n in enumerate(op.sizes) if f not in op.implied) for op in products
    )
    with FlopCounterMode(display=False) as counted:
        module(rows).backward()
    first = 2 * BATCH * GATES[kind] * STATE * STATE * LAYERS * (1 + both_ways)
    assert ours == counted.get_total_flops() + first


@pytest.mark.parametrize("kind", GATES)
def test_the_number_of_steps_costs_nothing_to_read(kind: str) -> None:
    short, long = (read(kind, length)[2] for length in (LENGTH, 100 * LENGTH))
    assert len(short.operations) == len(long.operations)
    assert {op.times for op in long.operations} == {1, 100 * LENGTH}


def test_the_first_dim_may_be_sequences() -> None:
    with torch.device("meta"):
        module, rows = Net("LSTM", batch_first=True, dropout=0.1), torch.zeros(BATCH, LENGTH, WIDTH)
    assert LENGTH in {op.times for op in from_torch(module, rows, gradient=True).operations}


def test_layers_that_project_their_states_are_read_step_by_step() -> None:
    _, _, program = read("LSTM", proj_size=2)
    assert {op.times for op in program.operations} == {1}


def test_packed_rows_are_refused() -> None:
    class Packed(Net):
        def forward(self, x: Any, lengths: Any) -> Any:
            return self.layers(torch.nn.utils.rnn.pack_padded_sequence(x, lengths))[1][0].mean()

    with pytest.raises(InputError, match="leave rows padded"):
        from_torch(Packed("LSTM"), torch.zeros(LENGTH, BATCH, WIDTH), torch.full((BATCH,), LENGTH))


@pytest.mark.parametrize("kept", [True, False])
def test_a_way_that_depends_on_weights_is_the_one_that_they_take(kept: bool) -> None:
    """PyTorch's own export leaves their values undefined."""

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers, self.more = torch.nn.GRU(WIDTH, STATE), torch.nn.Linear(STATE, STATE)
            torch.nn.init.constant_(self.more.weight, 1.0 if kept else -1.0)

        def forward(self, x: Any) -> Any:
            made = self.layers(x)[0]
            return (self.more(made) if self.more.weight.sum() > 0 else made).mean()

    program = from_torch(Net(), torch.ones(LENGTH, BATCH, WIDTH), gradient=True)
    assert {v.path for v in program.values if v.role == "frozen"} == (
        set() if kept else {"more.weight", "more.bias"}
    )
