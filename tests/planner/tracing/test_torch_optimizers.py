"""Steps of PyTorch's optimizers in traced programs, beside the steps that they take."""

from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from planner.errors import InputError  # noqa: E402
from planner.tracing.program import Program  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.reading.torch_optimizers import update_of  # noqa: E402
from planner.tracing.solving.shard import shard  # noqa: E402
from planner.verification.programs.trace import trace  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

optim = torch.optim

OPTIMIZERS: dict[str, Any] = {
    "SGD": partial(optim.SGD, lr=0.1),
    "SGD with momentum": partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adadelta": optim.Adadelta,
    "Adagrad": optim.Adagrad,
    "Adam": optim.Adam,
    "Adam with the largest": partial(optim.Adam, amsgrad=True),
    "AdamW": optim.AdamW,
    "Adamax": optim.Adamax,
    "Muon": optim.Muon,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "RMSprop": partial(optim.RMSprop, momentum=0.9, centered=True),
    "Rprop": optim.Rprop,
}

SHAPES = {"first": (6, 4), "second": (4, 5)}


class Net(torch.nn.Module):  # type: ignore[misc]
    """Two layers and a loss, and one that is not used."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width, bias=False)
        self.idle = torch.nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu()).square().mean()


def net(width: int = 8, batch: int = 4) -> tuple[Any, Any]:
    with torch.device("meta"):
        return Net(width), torch.zeros(batch, width)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_is_the_one_that_pytorch_takes(name: str) -> None:
    """The second: of the first states are made."""
    make = OPTIMIZERS[name]
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES.values()]
    gradients = [[torch.randn(shape) for shape in SHAPES.values()] for _ in range(2)]
    optimizer = make(weights)
    moments = []
    for made in gradients:
        for weight, gradient in zip(weights, made, strict=True):
            weight.grad = gradient.clone()
        moments.append([w.detach().clone() for w in weights])
        kept = [arrays(optimizer.state[w]) for w in weights]
        optimizer.step()
    update = update_of(
        make, {n: torch.empty(shape, device="meta") for n, shape in SHAPES.items()}, lambda operator: True
    )
    for node in update.graph.nodes:
        node.kwargs = {name: "cpu" if name == "device" else x for name, x in node.kwargs.items()}
    graph = torch.fx.GraphModule(torch.nn.Module(), update.graph)
    assert [tuple(x.shape) for _, x in update.states] == [tuple(x.shape) for s in kept for x in s.values()]
    theirs = [x for w in weights for x in arrays(optimizer.state[w]).values()]
    torch.testing.assert_close(
        graph(moments[1], gradients[1], kept), [*(w.detach() for w in weights), *theirs]
    )


def arrays(state: dict[str, Any]) -> dict[str, Any]:
    """What an optimizer keeps of a weight, without how many steps it has taken."""
    return {name: x.clone() for name, x in state.items() if getattr(x, "ndim", 0)}


def tied(program: Program) -> set[str]:
    return {tie.target for tie in program.ties if tie.target in program.inputs}


def test_weights_and_states_lie_as_they_did() -> None:
    program = from_torch(*net(), optimizer=optim.AdamW)
    weights = {"first.weight", "first.bias", "second.weight"}
    states = {f"{w}.{name}" for w in weights for name in ("exp_avg", "exp_avg_sq")}
    assert {v.path for v in program.values if v.role == "parameter"} == weights
    assert {v.path for v in program.values if v.role == "frozen"} == {"idle.weight", "idle.bias"}
    assert tied(program) == weights | states
    assert len(program.results) == len(weights) + len(states) + 1


def test_states_are_split_rather_than_moved_alike_everywhere() -> None:
    """As ZeRO does; without the step there is nothing to save."""
    plans = [
        shard(from_torch(*net(4096, 8192), gradient=True, optimizer=optimizer), "dgx-h100:1", {"data": 8})
        for optimizer in (None, optim.AdamW)
    ]
    assert "second.weight.exp_avg" not in plans[0].inputs
    assert any(plans[1].inputs["second.weight.exp_avg"])
    assert (
        plans[1].seconds - plans[0].seconds
        < plans[1].baselines["data parallel"] - plans[0].baselines["data parallel"]
    )


def test_groups_have_options_of_their_own() -> None:
    def grouped(parameters: Any) -> Any:
        matrices = [p for p in parameters if p.ndim > 1]
        rest = [p for p in parameters if p.ndim < 2]
        return optim.SGD([{"params": matrices, "momentum": 0.9}, {"params": rest}])

    program = from_torch(*net(), optimizer=grouped)
    assert tied(program) - {"first.weight", "first.bias", "second.weight"} == {
        "first.weight.momentum_buffer",
        "second.weight.momentum_buffer",
    }


def test_gradients_may_be_clipped_before_a_step() -> None:
    """By a hook: the norm of all of them is one number that every weight reads."""

    def clipped(parameters: Any) -> Any:
        def clip(*call: Any) -> None:
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)

        optimizer = optim.SGD(parameters)
        optimizer.register_step_pre_hook(clip)
        return optimizer

    program = from_torch(*net(), optimizer=clipped)
    norms = [op for op in program.operations if op.name.startswith("update.") and op.reductions]
    assert len(norms) == 4  # of three weights, and of these
    assert tied(program) == {"first.weight", "first.bias", "second.weight"}


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        (optim.Adafactor, "may not look at values"),
        (optim.LBFGS, "may not look at values"),
        (lambda parameters: None, "expected what makes an optimizer of parameters"),
    ],
)
def test_what_cannot_be_followed_says_so(optimizer: Any, why: str) -> None:
    with pytest.raises(InputError, match=why):
        from_torch(*net(), optimizer=optimizer)


FILE = """
import torch

class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).mean()

def module():
    with torch.device("meta"):
        return Net(4, 4), torch.zeros(2, 4)

def function():
    return max, 1
"""


@pytest.fixture
def task(tmp_path: Any) -> dict[str, Any]:
    (tmp_path / "file.py").write_text(FILE)
    return {"function": f"{tmp_path}/file.py:module", "replicate_unknown": False, "trips": None}


def test_an_optimizer_is_named(task: dict[str, Any]) -> None:
    assert "weight.exp_avg" in trace(task | {"optimizer": "adamw"}).inputs
    with pytest.raises(InputError, match="--optimizer 'lion' is none of torch.optim: .*AdamW"):
        trace(task | {"optimizer": "lion"})


@pytest.mark.parametrize("option", ["gradient", "optimizer"])
def test_functions_have_no_options_of_modules(task: dict[str, Any], option: str) -> None:
    of_function = task["function"].replace(":module", ":function")
    with pytest.raises(InputError, match=f"is a function, which --{option} is not for"):
        trace(task | {"function": of_function, option: "AdamW"})
