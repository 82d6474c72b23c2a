"""``torch.autograd.Function`` in an exported module: one operator, until it is called with its own derivative.

``torch.export`` alone follows what a function makes and forgets its ``backward``; nor does it know what
``torch.utils.checkpoint`` computes a second time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.autograd import Function
from torch.utils._pytree import tree_leaves, tree_map

from planner.errors import InputError

torch.library.define("meshwright::function", "(Tensor[] tensors, int number) -> Tensor[]")

CHECKPOINTS = "torch.utils.checkpoint: run once, not a second time for the gradient"
HOOKS = "hooks on gradients (register_hook, register_full_backward_hook): not followed"

AS_GIVEN = "torch.autograd.Function inside of torch.autocast: nothing in it is cast"


class _Context(SimpleNamespace):
    """What ``forward`` leaves for ``backward``, in place of PyTorch's."""

    def __init__(self, function: Any) -> None:
        super().__init__(function=function, saved_tensors=())

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Nothing: ``backward`` reads no gradient of these."""

    def set_materialize_grads(self, value: bool) -> None:
        """Nothing: there are zeros where there is no gradient."""

    def mark_dirty(self, *tensors: Tensor) -> None:
        raise InputError(f"{_named(self.function)} writes in place (mark_dirty), which is not followed")


def _named(function: Any) -> str:
    return f"gradient=True: {function.__name__} (torch.autograd.Function)"


class _Call:
    """One call of a function that a module defines."""

    def __init__(self, function: Any, forward: Callable[..., Any], given: Sequence[Any]) -> None:
        self.function, self.forward = function, forward
        self.separate = function.setup_context is not Function.setup_context
        self.given = tuple(given if self.separate else given[1:])  # else its context comes first
        self.made: Any = None

    def run(self, context: _Context, tensors: Sequence[Tensor]) -> Any:
        """What it makes of other tensors in place of those that it was given, and where these are."""
        given = _with(self.given, tensors)
        with _beside(tensors):
            if not self.separate:
                return self.forward(context, *given)
            made = self.forward(*given)
            self.function.setup_context(context, given, made)
            return made

    def gradients(self, context: _Context, needed: Sequence[bool], gradients: Sequence[Any]) -> list[Any]:
        """Of every tensor that it was given, from those of every tensor that it makes."""
        made, needs = _with(self.made, gradients), _with(self.given, needed)
        context.needs_input_grad = tuple(
            isinstance(x, Tensor) and flag for x, flag in zip(self.given, needs, strict=True)
        )
        with _beside(gradients):
            found = self.function.backward(context, *(made if isinstance(made, tuple) else (made,)))
        found = found if isinstance(found, tuple | list) else (found,)
        pairs = zip(self.given, found, strict=False)
        return [g if isinstance(x, Tensor) else None for x, g in pairs for _ in _tensors(x)]


_CALLS: list[_Call] = []
"""Of the module that is being exported, by number."""


def _shapes(tensors: list[Tensor], number: int) -> list[Tensor]:
    call = _CALLS[number]
    call.made = call.run(_Context(call.function), tensors)
    return [torch.empty_like(x) for x in _tensors(call.made)]


torch.library.register_fake("meshwright::function", _shapes)


@contextmanager
def kept_functions() -> Iterator[list[str]]:
    """Calls of functions become operators of what is exported meanwhile; gives notes on what is left out."""
    notes: list[str] = []
    checkpoint, hook = torch.utils.checkpoint, Tensor.register_hook

    def note(words: str) -> None:
        notes.extend({words} - {*notes})

    def at_once(function: Any, preserve: bool, *given: Any) -> Any:
        note(CHECKPOINTS)
        return function(*given)

    def around(*given: Any, **how: Any) -> Iterator[None]:
        note(CHECKPOINTS)
        yield

    def looked(tensor: Tensor, run: Any) -> Any:
        note(HOOKS)
        return hook(tensor, run)

    with ExitStack() as stack:

        def keep(function: Any, /, **how: Any) -> None:
            own = function.forward
            if isinstance(own, partial) and own.func is _record:  # inherited, and kept already
                own = own.args[2]
            stack.enter_context(
                replaced(function, "forward", staticmethod(partial(_record, note, function, own)))
            )

        stack.callback(_CALLS.clear)
        stack.enter_context(replaced(checkpoint.CheckpointFunction, "apply", staticmethod(at_once)))
        stack.enter_context(replaced(checkpoint, "_checkpoint_without_reentrant_generator", around))
        stack.enter_context(replaced(Tensor, "register_hook", looked))
        stack.enter_context(replaced(Function, "__init_subclass__", classmethod(keep)))
        for function in dict.fromkeys(_defined(Function)):
            keep(function)
        yield notes


def hooked(module: Any) -> bool:
    """Whether gradients of its parts or its parameters are looked at, or changed, as they are made."""
    parts = [x for part in module.modules() for x in (part._backward_hooks, part._backward_pre_hooks)]
    return any([*parts, *(p._backward_hooks for p in module.parameters())])


def with_functions(module: Any) -> None:
    """Call each function in such a way that its own derivative is traced."""
    for part in module.modules():
        for node in part.graph.nodes:
            if node.target is torch.ops.meshwright.function.default:
                node.target = _differentiable(_CALLS[node.args[1]])
        part.recompile()


def _record(note: Callable[[str], None], function: Any, forward: Callable[..., Any], *given: Any) -> Any:
    if torch._C._is_any_autocast_enabled():
        note(AS_GIVEN)
    call = _Call(function, forward, given)
    if any(callable(x) and not isinstance(x, Tensor) for x in tree_leaves(call.given)):
        raise InputError(
            f"{_named(function)} calls a function that it is given, which is not followed; "
            "torch.utils.checkpoint is"
        )
    _CALLS.append(call)
    made = torch.ops.meshwright.function(_tensors(call.given), len(_CALLS) - 1)
    return _with(call.made, made)


def _differentiable(call: _Call) -> Callable[..., Any]:
    def run(tensors: Sequence[Tensor], number: int) -> list[Tensor]:
        context = _Context(call.function)

        class Operator(Function):  # type: ignore[misc]
            """The function and its derivative."""

            @staticmethod
            def forward(*tensors: Tensor) -> Any:
                with torch.no_grad():
                    return tuple(x.view_as(x) for x in _tensors(call.run(context, tensors)))

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                pass

            @staticmethod
            def backward(ctx: Any, *gradients: Any) -> Any:
                with torch.no_grad():
                    return tuple(call.gradients(context, ctx.needs_input_grad, gradients))

        return list(Operator.apply(*tensors))

    return run


def _defined(base: Any) -> list[Any]:
    """Functions that are not PyTorch's own, what derives from others before these."""
    found = [f for below in base.__subclasses__() for f in (*_defined(below), below)]
    return [f for f in found if f.__module__.partition(".")[0] != "torch"]


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _beside(tensors: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """Where these are is what is made."""
    return torch.device(tensors[0].device) if tensors else nullcontext()


def _with(tree: Any, tensors: Sequence[Any]) -> Any:
    """``tree`` with others in place of its tensors."""
    others = iter(tensors)
    return tree_map(lambda x: next(others) if isinstance(x, Tensor) else x, tree)


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner`` with another attribute of this name meanwhile."""
    own = vars(owner).get(name)  # none where it is inherited
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
