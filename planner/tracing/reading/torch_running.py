"""A module that takes gradients in its ``forward``, which PyTorch's export loses track of: traced while it runs.

Such are penalties on gradients, forces of potentials, inner steps of meta-learning, and derivatives in equations.
Nothing is kept as one operator: attention is several, and recurrent layers are step after step.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._functorch import eager_transforms as TRANSFORMS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from planner.errors import InputError
from planner.tracing.reading.torch_functions import replaced

NOTE = "takes gradients in its forward pass: read as it runs, with attention as several operators"


class TakesGradient(Exception):
    """Raised where a module that is being exported takes a gradient."""


@contextmanager
def refused_gradients() -> Iterator[None]:
    """Raise `TakesGradient` where a module takes a gradient meanwhile."""
    own = torch.autograd._engine_run_backward

    def run(*given: Any, **how: Any) -> Any:
        if _of_module(sys._getframe(1)):
            raise TakesGradient
        return own(*given, **how)

    with replaced(torch.autograd, "_engine_run_backward", run), _without_backward():
        yield


def _of_module(frame: Any) -> bool:
    """Whether a module, or ``torch.func`` for it, takes a gradient: what exports do so themselves (``scan``)."""
    caller = ""
    while frame is not None:
        if frame.f_code is torch.autograd.grad.__code__:
            caller = frame.f_back.f_globals.get("__name__", "")
        frame = frame.f_back
    return caller == TRANSFORMS.__name__ or caller.partition(".")[0] != "torch"


@contextmanager
def _without_backward() -> Iterator[None]:
    """``InputError`` where gradients are added up in parameters."""

    def refuse(*given: Any, **how: Any) -> Any:
        raise InputError(
            "the module calls backward() in its forward pass, which leaves gradients in its parameters: take what is "
            "needed with torch.autograd.grad"
        )

    with replaced(torch.autograd, "backward", refuse):
        yield


def takes_gradient(error: BaseException) -> bool:
    """Whether that is why an export failed, or a derivative of ``torch.func``, whose levels an export mixes up."""
    trace, codes = error.__traceback__, set[Any]()
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    found = (TRANSFORMS.grad_and_value_impl, TRANSFORMS._vjp_with_argnums, TRANSFORMS._jvp_with_argnums)
    return isinstance(error, TakesGradient) or any(inspect.unwrap(f).__code__ in codes for f in found)


class Running:
    """A module as a function of its parameters, its other tensors, and its inputs."""

    def __init__(self, module: Any, inputs: Any) -> None:
        self.module, self.given = module, inputs
        learned = dict(module.named_parameters())
        trained = {n for n, p in learned.items() if p.requires_grad} or learned.keys()
        self.frozen = learned.keys() - trained
        self.parameters = {n: _empty(p) for n, p in learned.items() if n in trained}
        others = {n: p for n, p in learned.items() if n in self.frozen} | dict(module.named_buffers())
        self.states = {n: _empty(x) for n, x in others.items()}

    def outputs(self, weights: Any, states: Any, *inputs: Any) -> list[Any]:
        """The tensors that the module returns."""
        left = iter(inputs)
        given = tree_map(lambda x: next(left) if isinstance(x, torch.Tensor) else x, tuple(self.given))
        with _as_it_is():
            made = torch.func.functional_call(self.module, {**weights, **states}, given)
        return [x for x in torch.utils._pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]

    def differentiated(self, one: Callable[[Any], Any]) -> Callable[..., Any]:
        """Gradients, and the number that ``one`` finds among what the module returns."""

        def run(weights: Any, states: Any, *inputs: Any) -> list[Any]:
            leaves = {n: w.detach().requires_grad_() for n, w in weights.items()}
            value = one(self.outputs(leaves, states, *inputs))
            if not value.requires_grad:
                raise InputError("gradient=True: no gradient reaches a parameter of the module")
            return [*torch.autograd.grad(value, [*leaves.values()], allow_unused=True), value]

        return run


@contextmanager
def _as_it_is() -> Iterator[None]:
    """Tensors are made without storage, and nothing is one operator that has no second derivative."""

    def refuse(region: Any) -> None:
        raise InputError("the module takes gradients within torch.autocast, which is not followed together")

    with ExitStack() as stack:
        stack.enter_context(torch.device("meta"))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        stack.enter_context(_without_backward())
        stack.enter_context(replaced(torch.autocast, "__enter__", refuse))
        yield


def _empty(tensor: Any) -> Any:
    return torch.empty_like(tensor, device="meta", requires_grad=False)
