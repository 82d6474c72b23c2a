"""Plan -> a JAX module: mesh, partition specs of parameters, states and activations, remat policy."""

from collections.abc import Iterable, Mapping
from importlib.resources import files
from string import Template

from planner.errors import Unsupported
from planner.exporters.header import describe
from planner.exporters.partition_specs import (
    Entry,
    activation_specs,
    batch_spec,
    gathered_spec,
    keyed_parameters,
    mesh_sizes,
    parameter_spec,
    summed_spec,
)
from planner.exporters.placements import Layout, layout_of
from planner.exporters.script import policy_of, render_strings, render_tuple
from planner.graph import Block
from planner.operators import saved_tensors
from planner.plans import Plan

FILE = "jax_shardings.py"

REMAT: Mapping[str, tuple[str, str]] = {
    "none": ("None", "None"),
    "full": ('"block"', "jax.checkpoint_policies.nothing_saveable"),
    "attention": ('"attention"', "jax.checkpoint_policies.nothing_saveable"),
    "selective": (
        '"block"',
        "jax.checkpoint_policies.save_from_both_policies(\n"
        "    jax.checkpoint_policies.dots_with_no_batch_dims_saveable,\n"
        "    jax.checkpoint_policies.save_only_these_names($names),\n)",
    ),
    "products": ('"block"', "jax.checkpoint_policies.dots_with_no_batch_dims_saveable"),
    **dict.fromkeys(
        ("mlp", "projections", "heads", "latent", "alternate", "alternate_local", "all_but_attention"),
        ('"block"', "jax.checkpoint_policies.save_only_these_names($kept)"),
    ),
}
"""Recompute policy -> what to wrap, and JAX's policy, as code; ``$names`` are the results of attention, ``$kept`` all
that the policy keeps."""


def to_jax(plan: Plan) -> dict[str, str]:
    """``jax_shardings.py`` for ``plan``.

    Raises ``Unsupported`` for pipelines, offload of anything but the optimizer, dims that do not divide
    evenly, and recompute policies that JAX has no word for.
    """
    layout = layout_of(plan, "jax")
    template = Template(files("planner.exporters").joinpath("templates", FILE + ".template").read_text())
    parts = _job(plan) | _mesh(layout) | _parameters(layout) | _activations(layout) | _remat(layout)
    return {FILE: template.substitute(parts)}


def _job(plan: Plan) -> dict[str, str]:
    p = plan.plan
    refused = sorted(set(p.offload) - {"optimizer"})
    if refused:
        raise Unsupported(f"target jax does not offload {' and '.join(refused)}, only the optimizer")
    return {
        "description": "\n".join(describe(plan)),
        "global_batch": str(plan.job.global_batch),
        "micro_batch": str(p.micro_batch),
        "num_microbatches": str(p.num_microbatches),
        "seq_len": str(plan.job.seq_len),
        "shard_gradients": str(p.zero_stage >= 2),
        "state_memory": '"pinned_host"' if "optimizer" in p.offload else "None",
    }


def _mesh(layout: Layout) -> dict[str, str]:
    sizes = mesh_sizes(layout)
    return {
        "mesh_axes": render_strings(sizes),
        "mesh_shape": str(tuple(sizes.values())),
        "batch_spec": render_spec(batch_spec(layout)),
    }


def _parameters(layout: Layout) -> dict[str, str]:
    sizes: dict[str, str] = {}
    dims, params, states = {}, {}, {}
    zero, tables = layout.plan.plan.zero_stage, []
    for key, parameter in keyed_parameters(layout):
        sizes |= {dim.name: str(dim.extent) for dim in parameter.dims}
        dims[key] = render_tuple(render_strings(dim.name for dim in group) for group in parameter.groups)
        params[key] = render_spec(parameter_spec(layout, parameter, sharded=zero == 3))
        states[key] = render_spec(parameter_spec(layout, parameter, sharded=zero > 0))
        if parameter.is_table:
            tables.append(key)
    return {
        "sizes": _render_dict(sizes),
        "param_dims": _render_dict(dims),
        "param_specs": _render_dict(params),
        "state_specs": "PARAM_SPECS" if states == params else _render_dict(states),
        "tables": render_strings(tables),
    }


def _activations(layout: Layout) -> dict[str, str]:
    dims: dict[str, str] = {}
    specs: dict[str, dict[str, str]] = {"activation_specs": {}, "summed_specs": {}, "gathered_specs": {}}
    for block, _ in layout.graph.instances():
        for tensor, spec in activation_specs(layout, block):
            name = f"{block.name}.{tensor.name}"
            dims[name] = render_strings(tensor.dims)
            found = spec, summed_spec(layout, block, tensor), gathered_spec(layout, block, tensor)
            for rendered, way in zip(specs.values(), found, strict=True):
                if way is not None:
                    rendered[name] = render_spec(way)
    return {name: _render_dict(items) for name, items in {"activation_dims": dims, **specs}.items()}


def _remat(layout: Layout) -> dict[str, str]:
    policy = policy_of(layout.plan.plan)
    if policy not in REMAT:
        raise Unsupported(f"target jax has no remat policy for {policy!r}, only for {', '.join(REMAT)}")
    blocks = [block for block, _ in layout.graph.instances()]
    kernels = [(block, op) for block in blocks for op in block.ops if op.kind == "attention"]
    names = ", ".join(f'"{block.name}.{result}"' for block, op in kernels for result in op.outputs)
    kept = ", ".join(f'"{block.name}.{name}"' for block in blocks for name in made_and_saved(block, policy))
    scope, code = REMAT[policy]
    return {"remat_scope": scope, "remat_policy": Template(code).substitute(names=names, kept=kept)}


def made_and_saved(block: Block, policy: str) -> tuple[str, ...]:
    """Activations that ``policy`` keeps until the backward pass, of those that have names in the exported module."""
    made = {name for op in block.ops for name in op.outputs}
    return tuple(name for name in saved_tensors(block, policy) if name in made)


def render_spec(spec: Iterable[Entry]) -> str:
    """A ``PartitionSpec`` as one writes it: ``P(("data", "fsdp"), None)``."""
    return f"P({', '.join(_render_entry(entry) for entry in spec)})"


def _render_entry(entry: Entry) -> str:
    if not entry:
        return "None"
    return f'"{entry[0]}"' if len(entry) == 1 else render_strings(entry)


def _render_dict(items: Mapping[str, str]) -> str:
    lines = "".join(f'    "{key}": {value},\n' for key, value in items.items())
    return f"{{\n{lines}}}" if lines else "{}"
