"""What has a derivative in PyTorch and what has none: gradients of traced modules beside those of autograd."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch_layers import Module, compared  # noqa: E402

from planner.errors import InputError  # noqa: E402
from planner.tracing.cleaning.passes import clean  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.reading.torch_export import core_program  # noqa: E402
from planner.tracing.reading.torch_functions import AS_GIVEN, HOOKS  # noqa: E402
from planner.tracing.reading.torch_lifted import traced  # noqa: E402
from planner.tracing.solving.shard import shard  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

Function = torch.autograd.Function


class Rounded(Function):  # type: ignore[misc]
    """Its gradient passes as if nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


class Reversed(Function):  # type: ignore[misc]
    """The input itself, whose gradient is turned round; with a context of its own."""

    @staticmethod
    def forward(x: Any, rate: float) -> Any:
        return x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _, ctx.rate = inputs

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return -ctx.rate * gradient, None


class Product(Function):  # type: ignore[misc]
    """A product that keeps an attribute, and makes something else beside it; the weight has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, weights: Any) -> Any:
        ctx.weight = weights[0]
        ctx.save_for_backward(x)
        return x @ weights[0], None, x.argmax(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Any, nothing: Any, places: Any) -> Any:
        (x,) = ctx.saved_tensors
        assert nothing is None
        assert ctx.needs_input_grad == (True, False)
        return gradient @ ctx.weight.T + 0 * x, None


class Loss(Function):  # type: ignore[misc]
    """A loss that makes its gradients forward, chunk by chunk, so as to keep no scores."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        gradients, total = torch.zeros_like(x), torch.zeros(())
        at = torch.arange(2, device=x.device)
        for rows, gradient in zip(x.chunk(2), gradients.chunk(2), strict=True):
            scores = rows @ weight.T
            total += F.nll_loss(scores.log_softmax(-1), at, reduction="sum")
            gradient.copy_((scores.softmax(-1) - (at[:, None] == torch.arange(8)).float()) @ weight)
        ctx.save_for_backward(gradients)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * ctx.saved_tensors[0], None


rounded = Rounded.apply


def unwatched(m: Any, x: Any) -> Any:
    made = m.first(x)
    with torch.no_grad():
        goal = m.second(made)
    return made - goal


def detached(m: Any, x: Any) -> Any:
    made = m.first(x)
    return made - m.second(made).detach()


def under_autocast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = m.first(x)
        with torch.no_grad():
            goal = m.second(made)
    return made - goal


def rounded_under_autocast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return rounded(m.first(x))


@torch.no_grad()
def goal_of(m: Any, made: Any) -> Any:
    return m.second(made)


def decorated_under_autocast(m: Any, x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = m.first(x)
        return made - goal_of(m, made)


def around_autocast(m: Any, x: Any) -> Any:
    made = m.first(x)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        goal = m.second(made)
    return made - goal


@torch.no_grad()
def watched_again(m: Any, x: Any) -> Any:
    made = m.first(x)
    with torch.enable_grad():
        return m.second(made)


def statistics(m: Any, x: Any) -> Any:
    made = m.first(x)
    with torch.no_grad():
        m.shift.mul_(0.9).add_(made.mean(0))
    return m.second(made) - m.shift


def weights_kept(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.shift.copy_(m.first.bias)
    return m.second(m.first(x)) - m.shift


def weights_in_place(m: Any, x: Any) -> Any:
    with torch.no_grad():
        m.second.weight.copy_(F.normalize(m.second.weight))
    return m.second(m.first(x))


def local(m: Any, x: Any) -> Any:
    class Local(Rounded):
        pass

    return m.second(Local.apply(m.first(x)))


def inferred(m: Any, x: Any) -> Any:
    made = m.first(x)
    with torch.inference_mode():
        goal = m.second(made)
    return made - goal.clone()


def detached_in_place(m: Any, x: Any) -> Any:
    return m.first(x) - m.second(x).detach_()


STOPS: dict[str, Callable[..., Any]] = {
    "no_grad": unwatched,
    "no_grad under autocast": under_autocast,
    "decorated under autocast": decorated_under_autocast,
    "autocast under no_grad": around_autocast,
    "inference_mode": inferred,
    "detach in place": detached_in_place,
    "detach": detached,
    "enable_grad": watched_again,
    "statistics": statistics,
    "weights in place": weights_in_place,
    "weights kept": weights_kept,
    "function": lambda m, x: m.second(rounded(m.first(x))),
    "function of a function": lambda m, x: m.second(Reversed.apply(Rounded.apply(m.first(x)), 0.5)),
    "function with attributes": lambda m, x: Product.apply(m.first(x), [m.second.weight])[0],
    "function with a loss": lambda m, x: Loss.apply(m.first(x), m.second.weight),
    "function without a use": lambda m, x: (Rounded.apply(m.second(x)), m.first(x))[1],
    "local function": local,
    "checkpoint": lambda m, x: checkpoint(m.second, m.first(x), use_reentrant=False),
    "checkpoint of before": lambda m, x: checkpoint(m.second, m.first(x), use_reentrant=True),
}


@pytest.mark.parametrize("name", STOPS)
def test_gradients_are_those_of_autograd(name: str) -> None:
    torch.manual_seed(0)
    module, x = Module(STOPS[name]), torch.randn(4, 8)
    exported = core_program(module, (x,), None, gradient=True).exported
    rough = {"rtol": 0.05, "atol": 0.02} if "autocast" in name else {}  # the CPU rounds elsewhere
    compared(module, x, traced(exported, module, (x,), gradient=True), **rough)


class Dirty(Rounded):
    """In place."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.round_()


class Calling(Rounded):
    """Computed again backward, as libraries write it that do without PyTorch's checkpoints."""

    @staticmethod
    def forward(ctx: Any, x: Any, run: Any) -> Any:
        return run(x)


def hooked(m: Any, x: Any) -> Any:
    made = m.first(x)
    made.register_hook(lambda gradient: 2 * gradient)
    return m.second(made)


REFUSED: dict[str, Callable[..., Any]] = {
    r"Dirty \(torch.autograd.Function\) writes in place": lambda m, x: Dirty.apply(m.first(x)),
    r"Calling \(torch.autograd.Function\) calls a function": lambda m, x: Calling.apply(m.first(x), m.second),
    "no gradient reaches a parameter": lambda m, x: m.first(x).detach(),
}


@pytest.mark.parametrize("said", REFUSED)
def test_what_cannot_be_differentiated_is_refused(said: str) -> None:
    with pytest.raises(InputError, match=said):
        from_torch(Module(REFUSED[said]), torch.zeros(4, 8), gradient=True)


def test_what_is_taken_for_granted_is_noted() -> None:
    program = from_torch(Module(STOPS["checkpoint"]), torch.zeros(4, 8), gradient=True)
    assert any("a second time" in note for note in program.applied)
    program = from_torch(Module(hooked), torch.zeros(4, 8), gradient=True)
    assert HOOKS in program.applied
    program = from_torch(Module(rounded_under_autocast), torch.zeros(4, 8), gradient=True)
    assert AS_GIVEN in program.applied
    module = Module(detached)
    module.first.weight.register_hook(lambda gradient: 2 * gradient)
    program = from_torch(module, torch.zeros(4, 8), gradient=True)
    assert HOOKS in program.applied
    program = from_torch(Module(detached), torch.zeros(4, 8), gradient=True)
    assert not {HOOKS, AS_GIVEN} & {*program.applied}
    assert "no gradient reaches second.weight: taken as frozen" in program.applied
    assert [t.target for t in program.ties] == ["first.weight", "first.bias"]


class Biased(torch.nn.Module):
    """Self-attention of two sequences of 24 with four heads, whose scores a parameter of this shape is added to."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.rows, self.bias = torch.nn.Linear(32, 32), torch.nn.Parameter(torch.zeros(shape))

    def forward(self, x: Any) -> Any:
        heads = self.rows(x).unflatten(-1, (4, 8)).transpose(1, 2)
        return F.scaled_dot_product_attention(heads, heads, heads, self.bias).mean()


@pytest.mark.parametrize(
    ("shape", "over"),
    [((4, 24, 24), {2}), ((24, 24), {2, 4}), ((4, 1, 24), {2, 24}), ((2, 4, 24, 24), set())],
)
def test_what_scores_are_biased_by_has_a_gradient(shape: tuple[int, ...], over: set[int]) -> None:
    """It has the shape of the bias, and is a sum over the loops that this lacks; keys' are sums over queries."""
    with torch.device("meta"):
        module, x = Biased(shape), torch.zeros(2, 24, 32)
    program = clean(from_torch(module, x, gradient=True))
    (op,) = (o for o in program.operations if o.attention is not None and o.attention.backward)
    assert program.value[op.outputs[3]].shape == shape
    assert [t.target for t in program.ties if t.source == op.outputs[3]] == ["bias"]
    assert [{op.sizes[f] for f in r.over} for r in op.reductions] == [{24}, {24}, *([over] if over else [])]
    assert shard(program, "dgx-h100:1", {"data": 2, "model": 4}).proven


STRETCHED = {
    "matrices": ((24, 8), (24, 8), (24, 8)),
    "one batch of keys": ((2, 4, 24, 8), (1, 4, 24, 8), (1, 4, 24, 8)),
    "one head of values": ((2, 4, 24, 8), (2, 4, 24, 8), (2, 1, 24, 8)),
    "keys without batch": ((2, 4, 24, 8), (4, 24, 8), (4, 24, 8)),
    "one query for all": ((1, 1, 24, 8), (2, 4, 24, 8), (2, 4, 24, 8)),
}


@pytest.mark.parametrize("name", STRETCHED)
def test_operands_of_attention_are_stretched_to_each_other(name: str) -> None:
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.zeros(()))

        def forward(self, *arrays: Any) -> Any:
            return F.scaled_dot_product_attention(*(self.scale * x for x in arrays)).mean()

    arrays = [torch.zeros(s) for s in STRETCHED[name]]
    want = F.scaled_dot_product_attention(*arrays)
    program = from_torch(Attention(), *arrays, gradient=True)
    forward, backward = (op for op in program.operations if op.attention is not None)
    assert program.value[forward.outputs[0]].shape == want.shape
    assert [program.value[n].shape for n in backward.outputs] == [x.shape for x in arrays]
