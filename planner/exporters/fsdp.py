"""Plan -> a Python script that applies it to a module in PyTorch: FSDP2, tensor parallelism, checkpointing.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard, torch/distributed/tensor/parallel.
"""

from collections.abc import Mapping
from importlib.resources import files
from string import Template

from planner.errors import Unsupported
from planner.exporters.header import describe
from planner.exporters.placements import Layout, layer_prefix, layout_of, recompute_policy
from planner.exporters.tensor_parallel import Styles, embedding_styles, module_styles, reads_sequence_split
from planner.plans import Plan

FILE = "fsdp2_plan.py"

DTYPES: Mapping[str, str] = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}

RECOMPUTE = ("none", "selective", "full")


def to_fsdp2(plan: Plan) -> dict[str, str]:
    """``fsdp2_plan.py`` for ``plan``.

    Raises ``Unsupported`` for what FSDP2 and torch's tensor-parallel styles cannot say: pipelines, context
    and expert parallelism, ZeRO 1, fp8, offload of one state alone, and shardings inside modules.
    """
    layout = layout_of(plan, "fsdp2")
    check_fsdp(plan, "fsdp2")
    if plan.plan.context > 1:
        raise Unsupported("target fsdp2 does not export context parallelism; plan again with --context 1")
    if recompute_policy(plan) not in RECOMPUTE:
        raise Unsupported(f"target fsdp2 recomputes {', '.join(RECOMPUTE)}, not {recompute_policy(plan)!r}")
    template = Template(files("planner.exporters").joinpath("templates", FILE + ".template").read_text())
    return {FILE: template.substitute(_job(plan) | _model(layout))}


def check_fsdp(plan: Plan, target: str) -> None:
    """Raise ``Unsupported`` for what no FSDP2 target expresses."""
    p = plan.plan
    if p.expert > 1:
        raise Unsupported(
            f"target {target} has no expert parallelism; plan with --expert 1, or export to jax"
        )
    if p.zero_stage == 1:
        raise Unsupported(
            f"target {target} shards gradients with the optimizer states; plan again with --zero 2 or 3"
        )
    if plan.job.precision == "fp8":
        raise Unsupported(f"target {target} has no word for fp8; plan again with --precision bf16")
    states = sorted(set(p.offload) - {"activations"})
    if len(states) == 1:
        raise Unsupported(
            f"target {target} offloads weights and optimizer together, not {states[0]} alone; "
            f"plan again with both or neither"
        )


def _job(plan: Plan) -> dict[str, str]:
    p, job = plan.plan, plan.job
    if "activations" in p.offload:
        raise Unsupported("target fsdp2 does not offload activations")
    compute = DTYPES[job.precision]
    mixed = job.master_weights and job.precision != "fp32"
    return {
        "description": "\n".join(describe(plan)),
        "global_batch": str(job.global_batch),
        "micro_batch": str(p.micro_batch),
        "num_microbatches": str(p.num_microbatches),
        "seq_len": str(job.seq_len),
        "model_dtype": DTYPES["fp32"] if mixed else compute,
        "param_dtype": compute if mixed else "None",
        "reduce_dtype": "None" if job.precision == "fp32" else DTYPES[job.grad_dtype],
        "reshard": str(p.zero_stage == 3),
        "recompute": f'"{recompute_policy(plan)}"',
        "offload": str("weights" in p.offload),
    }


def _model(layout: Layout) -> dict[str, str]:
    graph, split = layout.graph, layout.axes["tensor"] > 1
    sequence = split and _residual_is_split(layout)
    plans = _plans(layout) if split else {}
    loss = any("use_local_output=False" in style for style in plans.get("", {}).values())
    return {
        "mesh_shape": str((layout.data.replicate, layout.data.shard, layout.axes["tensor"])),
        "layers": _render_layers(layout),
        "tied": _render_pairs(_tied(layout)) if split and graph.tied else "()",
        "loss_parallel": str(loss),
        "split_sequence": str(sequence),
        "plans": _render_plans(plans),
    }


def _plans(layout: Layout) -> dict[str, Styles]:
    """Tensor-parallel styles by kind of layer, and under "" of the modules around the layers."""
    graph = layout.graph
    if len({layer_prefix(graph.block[name]) for name in graph.sequence}) > 1:
        raise Unsupported("target fsdp2 splits only models of one stack of layers; plan with --tensor 1")
    plans: dict[str, Styles] = {"": {}}
    if graph.first is not None:
        plans[""] |= embedding_styles(layout, graph.block[graph.first])
    if graph.last is not None:
        plans[""] |= module_styles(layout, graph.block[graph.last])
    return plans | {name: module_styles(layout, graph.block[name]) for name in layout.layers}


def _residual_is_split(layout: Layout) -> bool:
    """Whether layers hand over hidden states split along the sequence; all must agree."""
    graph = layout.graph
    blocks = [graph.block[name] for name in (*layout.layers, *((graph.last,) if graph.last else ()))]
    found = {reads_sequence_split(layout, block) for block in blocks}
    if len(found) > 1:
        raise Unsupported(
            "target fsdp2 needs one layout of hidden states between layers; plan with --tensor 1"
        )
    return found.pop()


def _tied(layout: Layout) -> list[tuple[str, str]]:
    def path(name: str) -> str:
        block, tensor = name.split(".", 1)
        return layout.graph.block[block].tensor[tensor].path

    return [(path(first), path(second)) for first, second in layout.graph.tied]


def _render_layers(layout: Layout) -> str:
    rows = []
    for name, numbers in layout.layers.items():
        path = layer_prefix(layout.graph.block[name])
        whole = numbers == tuple(range(numbers[0], numbers[-1] + 1))
        count = f"range({numbers[0]}, {numbers[-1] + 1})" if whole else str(numbers)
        rows.append(f'    ("{path}", {count}, "{name}"),\n')
    return "(\n" + "".join(rows) + ")"


def _render_pairs(pairs: list[tuple[str, str]]) -> str:
    return "(" + "".join(f'("{first}", "{second}"),' for first, second in pairs) + ")"


def _render_plans(plans: Mapping[str, Styles]) -> str:
    lines = ["{\n"]
    for kind, styles in plans.items():
        lines.append(f'        "{kind}": {{\n')
        lines += [f'            "{module}": {style},\n' for module, style in styles.items()]
        lines.append("        },\n")
    return "".join(lines) + "    }" if plans else "{}"
