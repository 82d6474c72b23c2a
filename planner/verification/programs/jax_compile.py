"""Compile a full training step under exported shardings for a TPU slice that need not be there.

    python -m planner.verification.programs.jax_compile task.json

Prints, as JSON, the compiler's memory for one device and its collectives, or why it refuses the program.
"""

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from planner.verification.programs.hlo import collectives
from planner.verification.programs.jax_graph import Attention, NoProgram, plain_attention
from planner.verification.programs.jax_step import Task, load, shapes, sharded_step, start_state

_USED = re.compile(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG]) hbm")
_TEMPORARIES = re.compile(r"HLO temporaries \(([\d.]+)([KMG])\) exceeds available HBM \(([\d.]+)([KMG])\)")
LAYERS = r"jvp\(\)+/while/body"
"""Scope of the loop over layers, and of its transpose."""

WRITES = ("--xla_jf_dump_hlo_text=true", "--xla_jf_dump_category_filter=program")
INTO = "--xla_jf_dump_to="
"""Flags by which libtpu writes the text of what it has compiled, and nothing else, into a folder."""

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30}


def main(path: str) -> None:
    """Run the task in ``path``."""
    task = json.loads(Path(path).read_text())
    written = Path(path).parent / "written"
    os.environ["LIBTPU_INIT_ARGS"] = " ".join(
        (os.environ.get("LIBTPU_INIT_ARGS", ""), *WRITES, f"{INTO}{written}")
    )
    try:
        found = compile_step(task, written)
    except NoProgram as error:
        found = {"unsupported": str(error)}
    print(json.dumps(found))


def compile_step(task: Task, written: Path) -> dict[str, Any]:
    """Memory and collectives of the compiled step: most that is alive, and what is assigned, with holes between.

    ``written`` is the folder into which libtpu writes its program.
    """
    exported = load(task["exported"])
    mesh = exported.make_mesh(_devices(task))
    attention = plain_attention if task["attention"] == "plain" else fused_attention(exported, mesh)
    step, shardings = sharded_step(task, exported, mesh, attention)
    arguments = _arguments(task, exported)
    versions = {"jax": jax.__version__, "libtpu": _libtpu()}
    try:
        compiled = step.lower(*arguments).compile()
    except jax.errors.JaxRuntimeError as error:
        return {
            "versions": versions,
            "refused": _memory_refusal(error, _argument_bytes(arguments, shardings)),
        }
    stats = compiled.memory_analysis()
    outside = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    assigned = outside + stats.temp_size_in_bytes  # the peak of small steps counts on-chip memory too
    return {
        "versions": versions,
        "arguments_bytes": stats.argument_size_in_bytes,
        "temporary_bytes": stats.temp_size_in_bytes,
        "peak_bytes": min(stats.peak_memory_in_bytes, assigned),
        "assigned_bytes": assigned,
        **_collectives(_text(compiled, written), mesh.size),
    }


def _text(compiled: Any, written: Path) -> str | None:
    """The program; libtpu 0.0.52 cannot print that of some slices, but has written it already."""
    try:
        return str(compiled.as_text())
    except jax.errors.JaxRuntimeError:
        programs = sorted(written.glob("*-TLP-hlo.txt"), key=lambda file: file.stat().st_size)
        return programs[-1].read_text() if programs else None


def _collectives(text: str | None, devices: int) -> dict[str, Any]:
    """By kind, in all and of layers alone; None where libtpu neither prints its program nor writes it."""
    if text is None:
        return {"collectives": None, "of_layers": None}
    found = {"collectives": collectives(text, devices), "of_layers": collectives(text, devices, LAYERS)}
    return {place: {kind: total._asdict() for kind, total in by.items()} for place, by in found.items()}


def _devices(task: Task) -> Any:
    """Of slices that need not be there."""
    options: dict[str, Any] = {"num_slices": task["slices"]} if task["slices"] > 1 else {}
    if task["chip_config"]:
        options["chip_config_name"] = task["chip_config"]
    return topologies.get_topology_desc(platform="tpu", topology_name=task["topology"], **options).devices


def _arguments(task: Task, exported: Any) -> Any:
    tree = shapes(task)
    state = jax.eval_shape(partial(start_state, task["optimizer"]), tree)
    micro = exported.NUM_MICROBATCHES
    data = {
        name: jax.ShapeDtypeStruct(
            (micro, exported.GLOBAL_BATCH // micro, *spec["sizes"][1:]),
            jnp.int32 if spec["dtype"] == "int32" else jnp.dtype(task["dtype"]),
        )
        for name, spec in task["data"].items()
    }
    return tree, state, data


def _libtpu() -> str:
    from importlib.metadata import version

    return version("libtpu")


def _memory_refusal(error: Exception, arguments_bytes: float) -> dict[str, Any]:
    """What the compiler says where a program does not fit: bytes that it needs and has. Other errors are raised."""
    all_used, temporaries = _USED.search(str(error)), _TEMPORARIES.search(str(error))
    found = all_used or temporaries
    if found is None:
        raise error
    used, unit, limit, limit_unit = found.groups()
    peak = float(used) * _UNITS[unit] + (0 if all_used else arguments_bytes)
    return {"peak_bytes": peak, "limit_bytes": float(limit) * _UNITS[limit_unit]}


def _argument_bytes(arguments: Any, shardings: Any) -> Any:
    """Of what one device holds of a step's arguments."""
    pairs = zip(jax.tree.leaves(arguments), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(s.shard_shape(a.shape)) * a.dtype.itemsize for a, s in pairs)


def fused_attention(exported: Any, mesh: Any) -> Attention:
    """Splash attention on each device's own heads and queries; keys and values of a split sequence are gathered."""

    def attend(q: Any, k: Any, v: Any, attributes: Mapping[str, Any], name: str) -> Any:
        batch, tokens, heads = exported.ACTIVATION_SPECS[name][:3]
        if q.shape[-1] != v.shape[-1]:
            return plain_attention(q, k, v, attributes, name)
        degree = _degree(mesh, heads)
        if k.shape[2] % degree:
            k, v = (jnp.repeat(t, degree // math.gcd(degree, t.shape[2]), axis=2) for t in (k, v))
        kernel = splash.make_splash_mha(
            mask=masks.MultiHeadMask([_mask(q, k, attributes)] * (q.shape[2] // degree)),
            head_shards=1,
            q_seq_shards=_degree(mesh, tokens),
            residual_checkpoint_name=name,
        )
        kernel_specs = kernel.manual_sharding_spec(NamedSharding(mesh, P(None, tokens)))
        own, gathered = P(batch, tokens, heads, None), P(batch, None, heads, None)
        specs = {"in_specs": (kernel_specs, own, gathered, gathered), "out_specs": own}
        return jax.shard_map(_splash, mesh=mesh, check_vma=False, **specs)(kernel, q, k, v)

    return attend


def _degree(mesh: Any, entry: Any) -> int:
    axes = entry if isinstance(entry, tuple) else (entry,) if entry else ()
    return math.prod(mesh.shape[a] for a in axes)


def _mask(q: Any, k: Any, attributes: Mapping[str, Any]) -> Any:
    """Which keys each query sees, over the whole sequence."""
    shape = (q.shape[1], k.shape[1])
    window, causal = attributes.get("window"), attributes["causal"]
    if window:
        mask: Any = masks.LocalMask(shape, (window - 1, 0) if causal else (window // 2, window // 2), 0)
    else:
        mask = masks.CausalMask(shape) if causal else masks.FullMask(shape)
    if attributes.get("chunk"):
        mask = mask & masks.ChunkedCausalMask(shape, attributes["chunk"])
    return mask


def _splash(kernel: Any, q: Any, k: Any, v: Any) -> Any:
    q, k, v = (t.transpose(0, 2, 1, 3) for t in (q / math.sqrt(q.shape[-1]), k, v))
    return jax.vmap(kernel)(q.astype(k.dtype), k, v).transpose(0, 2, 1, 3)


if __name__ == "__main__":
    main(sys.argv[1])
