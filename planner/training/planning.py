"""A plan for the model and the devices that a training script has, applied in place."""

import functools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

from cluster_specs.cluster import ClusterSpec
from planner import api
from planner.api import AnyModel, load_model
from planner.errors import InputError, Unsupported
from planner.exporters.fsdp import FILE, to_fsdp2
from planner.exporters.jax import to_jax
from planner.models.model import Model
from planner.plans import Optimizer, Plan
from planner.training.devices import Framework, detect
from planner.training.jax_trees import JaxShardings, jax_shardings

NEAREST = 20
"""Plans that are looked through for one that can be applied in place."""

AnyOptimizer = str | Callable[..., Any]


@dataclass(frozen=True)
class Planned:
    """A plan that is in force."""

    plan: Plan
    """Applied with torch: the model's modules are sharded. With JAX: see `shardings`."""
    module: ModuleType | None = None
    """torch: the exported script (`planner.exporters.fsdp`), for its constants and ``loss_context``."""
    mesh: Any = None
    """Device mesh of the framework."""
    optimizer: Any = None
    """torch: the optimizer over the sharded parameters, where one was given to be made."""
    shardings: JaxShardings | None = None
    """JAX: shardings of parameters, states and batch."""


def plan_for(
    model: Any,
    *,
    optimizer: AnyOptimizer = "adamw",
    cluster: ClusterSpec | str | Literal["auto"] = "auto",
    global_batch: int,
    seq_len: int,
    describe: "AnyModel | None" = None,
    **options: Any,
) -> Planned:
    """Plan the training of ``model`` on the devices at hand, and apply the plan in place.

    ``model`` is a torch module (in every process, with the same weights, after ``init_process_group``) or a pytree of
    JAX parameters. What it is, is read from its Hugging Face ``config``, or said by ``describe`` (a name, a file or a
    `Model`). A torch module is priced as it is, eager or compiled (`stack_of`). ``optimizer`` is a name, or a function
    from parameters to a torch optimizer, which is called afterwards. ``cluster`` "auto" is what the framework shows;
    ``options`` are fields of `Job` and `Pins`.

    Raises:
        InputError: the model or the devices are unknown, or processes are missing.
        Infeasible: nothing that can be applied in place fits.
    """
    framework = _framework(model)
    described = _described(model, describe)
    spec = detect(framework) if cluster == "auto" else cluster
    made = {"global_batch": global_batch, "seq_len": seq_len, "optimizer": optimizer_name(optimizer)}
    stack = "jax-xla" if framework == "jax" else stack_of(model)
    asked = {"pipeline": 1, "stack": stack, **made, **options}
    if framework == "torch":
        asked = {"context": 1, "expert": 1, **asked}
    found = api.plan(described, spec, top=NEAREST, **asked)
    if framework == "jax":
        chosen = _first(found, to_jax)
        shardings = jax_shardings(chosen, model)
        return Planned(chosen, mesh=shardings.mesh, shardings=shardings)
    return _apply(_first(found, to_fsdp2), model, optimizer)


def _apply(plan: Plan, model: Any, optimizer: AnyOptimizer) -> Planned:
    import torch.distributed as dist

    processes = dist.get_world_size() if dist.is_initialized() else 1
    if processes != plan.plan.num_devices:
        raise InputError(
            f"the plan needs {plan.plan.num_devices} processes, {processes} are here: start them with torchrun, and "
            f"call torch.distributed.init_process_group before plan_for"
        )
    module = ModuleType("planned_fsdp2")
    exec(compile(to_fsdp2(plan)[FILE], FILE, "exec"), module.__dict__)
    mesh = module.apply(model, device_type=next(model.parameters()).device.type) if processes > 1 else None
    made = None if isinstance(optimizer, str) else optimizer(model.parameters())
    return Planned(plan, module, mesh, made)


def stack_of(model: Any) -> str:
    """The software stack that a torch module trains with: compiled only if it is already, as nobody does it here.

    ``Module.compile`` leaves a compiled call, ``torch.compile`` a module around the one that it is given (torch 2.13
    torch/nn/modules/module.py, torch/_dynamo/eval_frame.py).
    """
    marks = ("_compiled_call_impl", "_orig_mod")
    if any(getattr(module, mark, None) is not None for module in model.modules() for mark in marks):
        return "torch-fsdp2"
    return "transformers-fsdp2" if type(model).__module__.startswith("transformers.") else "torch-eager"


def _first(found: Plan, export: Callable[[Plan], Any]) -> Plan:
    """The fastest of the plans found that ``export`` can express; the first refusal where there is none."""
    refusal: Unsupported | None = None
    for candidate in _candidates(found):
        try:
            export(candidate)
        except Unsupported as error:
            refusal = refusal or error
        else:
            return candidate
    assert refusal is not None
    raise refusal


def _candidates(found: Plan) -> Iterator[Plan]:
    yield found
    for other in found.alternatives:
        yield found.model_copy(
            update={"plan": other.plan, "estimate": other.estimate, "alternatives": (), "optimality": None}
        )


def _framework(model: Any) -> Framework:
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return "torch"
    if "jax" in sys.modules:
        return "jax"
    raise InputError(f"a model is a torch module or a pytree of JAX arrays, not a {type(model).__name__}")


def _described(model: Any, describe: "AnyModel | None") -> Model:
    if isinstance(describe, Model):
        return describe
    if describe is not None:
        return load_model(describe)
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "to_dict"):
        raise InputError("the model has no Hugging Face config: say what it is with describe=")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / type(model).__name__ / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config.to_dict(), default=str))
        return load_model(path)


def optimizer_name(optimizer: AnyOptimizer) -> str:
    """Our name of an optimizer: given as such, or by the class (or partial of one) that makes it."""
    inner: Any = optimizer
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = inner if isinstance(inner, str) else getattr(inner, "__name__", "")
    if name.lower() not in get_args(Optimizer):
        raise InputError(f"optimizer {name or inner!r} is unknown; known: {', '.join(get_args(Optimizer))}")
    return str(name.lower())
