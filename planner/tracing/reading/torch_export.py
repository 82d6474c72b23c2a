"""A module as a graph of core operators that can be differentiated, and what was taken for granted on the way."""

import logging
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses import meta_utils
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.export.passes import move_to_device_pass
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound

from planner.errors import InputError
from planner.tracing.reading.torch_attention import with_attention
from planner.tracing.reading.torch_autocast import kept_autocast, with_casts
from planner.tracing.reading.torch_control import unfolded
from planner.tracing.reading.torch_functions import HOOKS, hooked, kept_functions, replaced, with_functions
from planner.tracing.reading.torch_libraries import with_derivatives
from planner.tracing.reading.torch_running import TakesGradient, refused_gradients, takes_gradient
from planner.tracing.reading.torch_steps import kept_layers, with_layers
from planner.tracing.reading.torch_stops import kept_stops

CHECKS = """
    _assert_async _assert_scalar _assert_tensor_metadata _functional_assert_async sym_constrain_range
    sym_constrain_range_for_size
"""
"""Operators that look at values and make nothing."""

WITHOUT_SIZE = (GuardOnDataDependentSymNode, PendingUnbackedSymbolNotFound, DynamicOutputShapeException)
"""What PyTorch raises where it would have to know how many entries something has."""

BY_EXAMPLE = "branches that depend on values: those that the example inputs take"


class Core(NamedTuple):
    """A module in core operators."""

    exported: Any
    """On tensors without storage."""
    notes: tuple[str, ...]
    """What was taken for granted."""
    constants: Mapping[str, Any]
    """Tensors that the module has written in it, as they were."""


def core_program(module: Any, inputs: Sequence[Any], trips: int | None, gradient: bool) -> Core:
    """The exported module; ``InputError`` where PyTorch cannot export it, `TakesGradient` where that is why.

    Recurrent layers are loops over time, or step after step where the way through the module depends on values. With
    ``gradient`` it keeps what says how it is differentiated.

    Which way a module takes where that depends on values is what its example inputs say, if they have values.
    """
    if torch._C._is_any_autocast_enabled():
        raise InputError(
            "torch.autocast around from_torch is not read: put the region into the module's forward"
        )
    keeping: AbstractContextManager[list[str]] = kept_functions() if gradient else nullcontext([])
    with keeping as notes, kept_stops() if gradient else nullcontext(), kept_autocast():
        exported = _exported(module, inputs, notes)
        if any(getattr(node.target, "__name__", "") == "_add_batch_dim" for node in exported.graph.nodes):
            exported = exported.run_decompositions({})  # torch.vmap becomes operators with one more dim
        notes += [HOOKS] if gradient and hooked(module) and HOOKS not in notes else []
        _check_names(module)
        _check_sizes(exported.graph_module)
        _drop_checks(exported.graph_module)
        constants = dict(exported.constants)
        try:
            exported = move_to_device_pass(exported, "meta")
        except RuntimeError as error:  # of a tensor that torch.func left behind
            raise refused("read", error) from error
        with_casts(exported.graph_module)
        try:
            exported = with_attention(exported)
        except NotImplementedError as error:
            raise refused("read", error) from error
        with_functions(exported.graph_module)
        with_layers(exported.graph_module)
    notes += unfolded(exported.graph_module, trips)
    return Core(with_derivatives(exported), tuple(notes), constants)


def _exported(module: Any, inputs: Sequence[Any], notes: list[str]) -> Any:
    """As PyTorch exports it; what is taken for granted is added to ``notes``."""
    try:
        with (
            kept_layers(),
            refused_gradients(),
            redirect_stderr(StringIO()),
        ):  # it prints the graph before it raises
            return torch.export.export(module, tuple(inputs))
    except InputError:
        raise
    except GuardOnDataDependentSymNode as error:
        if any(x.is_meta for x in (*module.parameters(), *module.buffers(), *tensors_of(inputs))):
            raise InputError(
                f"which way the module takes depends on values{_place(error)}; build it and its inputs on the CPU "
                "instead of on meta, and the way that these take is followed"
            ) from error
        notes.append(BY_EXAMPLE)
        return _followed(module, inputs)
    except Exception as error:
        if takes_gradient(error):
            raise TakesGradient from error
        raise refused("exported", error) from error


def refused(what: str, error: Exception) -> InputError:
    """The error for a module at which PyTorch stops: where that is, and the first line of what PyTorch says."""
    if isinstance(error, WITHOUT_SIZE):
        return _unsized("the module", _place(error))
    if "fake tensor in the exported program" in str(error):
        return InputError(
            "the module uses .data of a tensor, of which PyTorch's export loses track: detach() or torch.no_grad() "
            "does the same"
        )
    if "FlexAttention" in str(error):
        return InputError(
            f"PyTorch exports flex_attention on a GPU only{_place(error)}: scaled_dot_product_attention stands for it"
        )
    said = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return InputError(f"the module cannot be {what} by PyTorch{_place(error)}: {said}")


def _place(error: Exception) -> str:
    """The innermost line that is neither PyTorch's nor Python's nor ours."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
    python = str(Path(traceback.__file__).parent)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        theirs = not frame.filename.startswith(python) or "-packages" in frame.filename
        if theirs and not frame.filename.startswith(ours):
            return f" ({Path(frame.filename).name}, line {frame.lineno}: {frame.line})"
    return ""


def tensors_of(given: Any) -> list[Any]:
    """Of arguments, in order, however they are nested."""
    return [x for x in torch.utils._pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]


def _followed(module: Any, inputs: Sequence[Any]) -> Any:
    """Exported along the way that the inputs take; random numbers are the same each time.

    PyTorch 2.13 leaves values of parameters undefined there (``_safe_copy`` in ``torch/_subclasses/meta_utils.py`` does
    nothing for them); these are copied too.
    """
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of each branch; the program has a note
    try:
        with torch.random.fork_rng(devices=()), replaced(meta_utils, "_safe_copy", _copy):
            torch.manual_seed(0)
            return torch.export.draft_export(module, tuple(inputs))
    except InputError:
        raise
    except Exception as error:
        raise refused("exported", error) from error
    finally:
        logger.setLevel(level)


def _copy(to: Any, values: Any) -> None:
    """Of a parameter too; what is no plain tensor otherwise has no values to copy, as in PyTorch's own."""
    if values is not None and type(values.detach()) is torch.Tensor:
        to.copy_(values.detach())


def _check_names(module: Any) -> None:
    """``InputError`` where the graph of the module has a use of its own for what it calls something (``graph``)."""
    for name, _ in (*module.named_parameters(), *module.named_buffers()):
        if hasattr(torch.fx.GraphModule, name.partition(".")[0]):
            raise InputError(
                f"PyTorch cannot export a module that has something named {name!r}: call it otherwise"
            )


def _check_sizes(module: Any) -> None:
    """``InputError`` for the first operator that makes as many entries as values say."""
    for node in module.graph.nodes:
        for made in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if any(not isinstance(n, int) for n in getattr(made, "shape", ())):
                lines = [line.strip() for line in str(node.meta.get("stack_trace") or "").splitlines()]
                raise _unsized(node.name, f" ({lines[-1] if lines else node.target})")


def _unsized(what: str, place: str) -> InputError:
    return InputError(
        f"{what} makes as many entries as values say{place}, and what has no size cannot be planned: pick a fixed "
        "number (topk, scatter, where)"
    )


def _drop_checks(module: Any) -> None:
    """Leave out what only looks at values, of which there are none, and what is made for that only."""
    for part in module.modules():
        looked_at = set[Any]()
        for node in reversed(part.graph.nodes):
            name = str(getattr(node.target, "_schema", "")).partition("(")[0].partition("::")[2]
            unread = node in looked_at and not node.users and node.op == "call_function"
            if unread or name.partition(".")[0] in CHECKS.split():
                looked_at.update(node.all_input_nodes)
                part.graph.erase_node(node)
        part.recompile()
