"""A plan's shardings for the parameters that a training script has, whatever they are called.

A leaf belongs to the plan's parameter whose path ends its own. Where none does (other libraries have other names),
it belongs to one that it fits by shape; among several that are split differently, to the one whose role its path
names (`ROLES`). What stays ambiguous is an error, never a guess.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from planner.api import AnyPlan, read_plan
from planner.errors import InputError
from planner.exporters.jax import FILE, to_jax
from planner.exporters.partition_specs import Entry, batch_spec, keyed_parameters, parameter_spec
from planner.exporters.placements import layout_of
from planner.graph import HEAD_DIMS, KV_HEAD_DIMS
from planner.plans import Plan

ROLES: tuple[frozenset[str], ...] = (
    frozenset({"q_proj", "query", "q", "wq"}),
    frozenset({"k_proj", "key", "k", "wk"}),
    frozenset({"v_proj", "value", "v", "wv"}),
    frozenset({"o_proj", "out", "o", "attn_out", "out_proj"}),
    frozenset({"gate_proj", "gate", "wi_0", "w1"}),
    frozenset({"up_proj", "up", "wi_1", "wi", "w3", "c_fc", "fc1"}),
    frozenset({"down_proj", "down", "w2", "fc2"}),
    frozenset({"embed_tokens", "embedding", "embed", "wte", "token_embedder", "token_embedding"}),
    frozenset({"lm_head", "head", "logits", "unembed", "logits_dense"}),
)
"""Names of one module in Hugging Face's models and in those of JAX libraries."""

LOGICAL: Mapping[str, str] = {
    "hidden": "embed",
    "ffn": "mlp",
    **dict.fromkeys(HEAD_DIMS, "heads"),
    **dict.fromkeys(KV_HEAD_DIMS, "kv_heads"),
    "head_dim": "head_dim",
    "vocab": "vocab",
    "experts": "expert",
    "expert_ffn": "expert_mlp",
}
"""Our dims of parameters -> flax's usual logical axes."""

_BOXES = ("value", "raw_value")
"""Last parts of the paths of leaves in flax's boxes."""


@dataclass(frozen=True)
class JaxShardings:
    """Shardings of one training step."""

    mesh: Any
    params: Any
    """As the parameters, a ``NamedSharding`` for every leaf."""
    batch: Any
    """Of token ids (batch, seq)."""
    module: ModuleType
    """The exported module (`planner.exporters.jax`), for ``constrain``, ``remat`` and its constants."""
    names: Mapping[str, str]
    """Path of a leaf -> the plan's name of it."""
    layout: str

    def states(self, tree: Any) -> Any:
        """As `params`, for optimizer states and gradients, whose paths end in those of parameters."""
        return self.module.state_shardings(self.mesh, tree, layout=self.layout, name=self._name)

    def _name(self, path: str) -> str:
        plain = _plain(path)
        endings = [known for known in self.names if plain == known or plain.endswith(f".{known}")]
        return self.names[max(endings, key=len)] if endings else path


def jax_shardings(plan: AnyPlan, params: Any, devices: Any = None, layout: str = "in_out") -> JaxShardings:
    """Shardings of ``plan`` for ``params``: any pytree of arrays or their shapes (flax linen, nnx, plain dicts).

    ``layout`` is "in_out" (JAX kernels) or "out_in" (weights as torch stores them); ``devices`` are all of JAX.

    Raises:
        InputError: a leaf that fits no parameter of the plan, or several that are split differently.
        Unsupported: JAX cannot express the plan.
    """
    module = module_of(read_plan(plan).plan)
    names = dict(_names(module, params, layout))
    mesh = module.make_mesh(devices)
    found = JaxShardings(mesh, None, module.batch_sharding(mesh), module, names, layout)
    shardings = module.param_shardings(mesh, params, layout=layout, name=found._name)
    return JaxShardings(mesh, shardings, found.batch, module, names, layout)


def module_of(plan: Plan) -> ModuleType:
    """The exported JAX module, loaded."""
    module = ModuleType("planned_jax_shardings")
    exec(compile(to_jax(plan)[FILE], FILE, "exec"), module.__dict__)
    return module


def logical_axis_rules(plan: AnyPlan) -> tuple[tuple[str, Entry | None], ...]:
    """Rules for ``flax.linen.logical_axis_rules``: logical axis -> mesh axes (None: whole).

    Where the plan splits a dim of several parameters in different ways, the way of most elements; a tree of
    shardings from `jax_shardings` has every way.
    """
    layout = layout_of(read_plan(plan).plan, "jax")
    votes: dict[str, dict[Entry, int]] = {}
    for _, parameter in keyed_parameters(layout):
        entries = parameter_spec(layout, parameter, sharded=layout.plan.plan.zero_stage == 3)
        size = 1
        for dim in parameter.dims:
            size *= dim.extent
        for dim, entry in zip(parameter.dims, entries, strict=True):
            if dim.name in LOGICAL:
                of_dim = votes.setdefault(LOGICAL[dim.name], {})
                of_dim[entry] = of_dim.get(entry, 0) + size
    batch, tokens = batch_spec(layout)
    rules = {"batch": batch, "length": tokens}
    rules |= {name: max(found, key=lambda entry: found[entry]) for name, found in votes.items()}
    return tuple((name, entry or None) for name, entry in rules.items())


def _plain(path: str) -> str:
    """A leaf's path without flax's box, and with layers' numbers apart (``layers_0`` as ``layers.0``)."""
    stem, _, last = path.rpartition(".")
    return re.sub(r"_(\d+)(?=\.|$)", r".\1", stem if last in _BOXES and stem else path)


def _names(module: Any, params: Any, layout: str) -> Iterator[tuple[str, str]]:
    import jax

    for key_path, leaf in jax.tree_util.tree_leaves_with_path(params):
        path = _plain(jax.tree_util.keystr(key_path, simple=True, separator="."))
        if leaf.shape:
            yield path, _name_of(module, path, leaf.shape, layout)


def _name_of(module: Any, path: str, shape: tuple[int, ...], layout: str) -> str:
    """The plan's name of a leaf, with its layer's number if it has one."""
    for key in module.PARAM_SPECS:
        if module.pattern(key).search(path):
            return path
    fitting = dict(_fitting(module, path, shape, layout))
    if not fitting:
        raise InputError(f"the plan has no parameter that {path} of shape {tuple(shape)} could be")
    if len(set(fitting.values())) > 1:
        words = set(re.split(r"[.\d]+", path))
        fitting = {key: spec for key, spec in fitting.items() if _roles(key) & words} or fitting
    if len(set(fitting.values())) > 1:
        raise InputError(
            f"{path} of shape {tuple(shape)} could be {' or '.join(fitting)}, which the plan splits differently; "
            f"name it as one of them"
        )
    number = re.search(r"(?:^|\.)(\d+)\.", path)
    layer = number.group(1) if number else "0"
    return re.sub(r"\{[^}]*\}", layer, next(iter(fitting)))


def _fitting(module: Any, path: str, shape: tuple[int, ...], layout: str) -> list[tuple[str, str]]:
    """Parameters of the plan that have this shape, or are stacked to it where none has; with their specs as text."""
    found: dict[int, list[tuple[str, str]]] = {}
    for key, spec in module.PARAM_SPECS.items():
        dims = module.PARAM_DIMS[key]
        apart = len(shape) - sum(map(len, dims))
        stacked = apart if apart >= 0 else len(shape) - len(dims)
        try:
            fitted = f"{module.fit(path, shape, key, spec, layout)} {module.STATE_SPECS[key]}"
        except ValueError:
            continue
        found.setdefault(stacked, []).append((key, fitted))
    return found[min(found)] if found else []


def _roles(key: str) -> frozenset[str]:
    """All names of the module that holds a parameter."""
    parts = set(key.split(".")[-2:])
    return frozenset().union(*(role for role in ROLES if role & parts)) | parts
