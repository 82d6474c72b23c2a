"""Plan -> a Python script that applies it to a module in PyTorch: FSDP2, tensor parallelism, checkpointing.

Source: torch 2.13, torch/distributed/fsdp/_fully_shard, torch/distributed/tensor/parallel.
"""

from collections.abc import Mapping
from importlib.resources import files
from string import Template

from planner.errors import Unsupported
from planner.evaluation.cuts import ranks_of
from planner.exporters.header import describe
from planner.exporters.placements import Layout, data_mesh, layer_prefix, layout_of
from planner.exporters.reductions import priced_type
from planner.exporters.script import refuse_context_without_shards, render_strings
from planner.exporters.stages import cuts_of, policies_of
from planner.exporters.tensor_parallel import Styles, embedding_styles, module_styles, reads_sequence_split
from planner.pipeline.generators import SCHEDULES
from planner.plans import NARROW, Plan

FILE, TARGET = "fsdp2_plan.py", "fsdp2"

DTYPES: Mapping[str, str] = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}

RECOMPUTE = ("none", "selective", "products", "alternate", "full")


def to_fsdp2(plan: Plan) -> dict[str, str]:
    """``fsdp2_plan.py`` for ``plan``.

    Raises ``Unsupported`` for what FSDP2 and torch's tensor-parallel styles cannot say: ZeRO 1, fp8, fp4, offload of
    one state alone, shardings inside modules, context parallelism of other than plain causal attention, expert beside
    tensor parallelism; and pipelines of models whose stages would share a parameter or need more than hidden states.
    """
    layout = layout_of(plan, TARGET, pipelines=True)
    check_fsdp(plan, TARGET)
    _check_context(layout)
    _check_experts(plan)
    other = sorted(policies_of(plan.plan) - set(RECOMPUTE))
    if other:
        raise Unsupported(f"target fsdp2 recomputes {', '.join(RECOMPUTE)}, not {other[0]!r}")
    template = Template(files("planner.exporters").joinpath("templates", FILE + ".template").read_text())
    return {FILE: template.substitute(_job(plan) | _pipeline(layout) | _model(layout))}


def check_fsdp(plan: Plan, target: str) -> None:
    """Raise ``Unsupported`` for what no FSDP2 target expresses."""
    p = plan.plan
    if p.zero_stage == 1:
        raise Unsupported(
            f"target {target} shards gradients with the optimizer states; plan again with --zero 2 or 3"
        )
    if plan.job.precision in NARROW:
        raise Unsupported(
            f"target {target} has no word for {plan.job.precision}; plan again with --precision bf16"
        )
    states = sorted(set(p.offload) - {"activations"})
    if len(states) == 1:
        raise Unsupported(
            f"target {target} offloads weights and optimizer together, not {states[0]} alone; "
            f"plan again with both or neither, or export to deepspeed"
        )


def _check_context(layout: Layout) -> None:
    """What `ContextAttention` of the script relies on."""
    plan = layout.plan
    context = plan.plan.context
    if context == 1:
        return
    refuse_context_without_shards(plan.plan, TARGET)
    data_mesh(plan.plan)
    if plan.job.seq_len % (2 * context):
        raise Unsupported(
            f"target {TARGET} deals sequences out in {2 * context} pieces, which do not divide {plan.job.seq_len}"
        )
    for block, _ in layout.graph.instances():
        for op in (op for op in block.ops if op.kind == "attention"):
            spans = [name for name in ("window", "chunk") if op.attributes.get(name)]
            if spans or op.weights or not op.attributes.get("causal"):
                raise Unsupported(
                    f"target {TARGET} splits sequences of plain causal attention only, not {block.name}.{op.name}; "
                    f"plan again with --context 1"
                )


def _check_experts(plan: Plan) -> None:
    """What `SpreadExperts` of the script relies on."""
    p = plan.plan
    if p.expert == 1:
        return
    if p.tensor > 1:
        raise Unsupported(
            f"target {TARGET} spreads experts over ranks that tensor parallelism does not split; plan again with "
            f"--tensor 1, or export to jax"
        )
    if p.zero_stage == 0:
        raise Unsupported(
            f"target {TARGET} shards states beside expert parallelism; plan again with --zero 3"
        )
    data_mesh(p)


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
        "reduce_dtype": "None" if job.precision == "fp32" else DTYPES[priced_type(plan)],
        "reshard": str(p.secondary_degree or p.zero_stage == 3),
        "recompute": _render_recompute(plan),
        "offload": str("weights" in p.offload),
    }


def _render_recompute(plan: Plan) -> str:
    """``RECOMPUTE`` of the script: the policy, or one for each stage where they differ."""
    policies = policies_of(plan.plan)
    if len(policies) == 1:
        return f'"{next(iter(policies))}"'
    return render_strings(stage.recompute or plan.plan.recompute for stage in plan.plan.stages)


def _model(layout: Layout) -> dict[str, str]:
    graph, split = layout.graph, layout.axes["tensor"] > 1
    sequence = split and _residual_is_split(layout)
    plans = _plans(layout) if split else {}
    mesh = _mesh(layout)
    loss = any("use_local_output=False" in style for style in plans.get("", {}).values())
    return {
        "mesh_names": render_strings(mesh),
        "mesh_shape": str(tuple(mesh.values())),
        "shared": render_strings(name for name in ("dp_shard", "ep", "cp") if name in mesh),
        "experts": _render_experts(layout),
        "layers": render_layers(layout),
        "tied": _render_pairs(_tied(layout)) if split and graph.tied else "()",
        "loss_parallel": str(loss),
        "split_sequence": str(sequence),
        "plans": _render_plans(plans),
    }


def _mesh(layout: Layout) -> dict[str, int]:
    """Sizes of the script's mesh, outermost first; axes of experts and context only where they split anything."""
    data = layout.data
    sizes = {
        "pp": layout.plan.plan.pipeline,
        "dp_replicate": data.replicate,
        "dp_shard": data.shard,
        "ep": data.expert,
        "cp": layout.axes["context"],
        "tp": layout.axes["tensor"],
    }
    return {name: size for name, size in sizes.items() if size > 1 or name not in ("ep", "cp")}


def _render_experts(layout: Layout) -> str:
    """``EXPERTS`` of the script: modules whose parameters the expert axis splits, relative to their layer."""
    found: dict[str, list[str]] = {}
    for parameter in layout.parameters:
        if any("expert" in dim.axes for dim in parameter.dims):
            prefix = layer_prefix(layout.graph.block[parameter.block])
            module = parameter.path.removeprefix(prefix + ".").rpartition(".")[0]
            if module not in found.setdefault(parameter.block, []):
                found[parameter.block].append(module)
    rows = "".join(f'"{kind}": {render_strings(modules)}, ' for kind, modules in found.items())
    return "{" + rows.removesuffix(", ") + "}"


def _pipeline(layout: Layout) -> dict[str, str]:
    """Stages by layer numbers, who runs them, and torch's schedule."""
    plan, graph = layout.plan, layout.graph
    before, after = _outside(layout, graph.first), _outside(layout, graph.last)
    cuts = cuts_of(plan)
    if plan.plan.pipeline > 1:
        _check_pipeline(layout, before)
    return {
        "stages": str(tuple(zip(cuts, cuts[1:], strict=False))),
        "ranks": str(ranks_of(plan.plan)),
        "schedule": SCHEDULES[plan.plan.schedule].torch_name or "",
        "split_backward": str(plan.plan.pipeline > 1 and SCHEDULES[plan.plan.schedule].splits_backward),
        "embeddings": str(before),
        "head": str(after),
    }


def _outside(layout: Layout, block: str | None) -> tuple[str, ...]:
    """Modules with parameters of the block before or after the layers."""
    weights = (t for t in layout.graph.block[block].tensors if t.role == "weight") if block else ()
    return tuple(dict.fromkeys(t.path.rpartition(".")[0] for t in weights))


def _check_pipeline(layout: Layout, before: tuple[str, ...]) -> None:
    plan, graph = layout.plan.plan, layout.graph
    known = [name for name, entry in SCHEDULES.items() if entry.torch_name]
    if plan.schedule not in known:
        raise Unsupported(f"target fsdp2 has no schedule {plan.schedule}, only {', '.join(known)}")
    if SCHEDULES[plan.schedule].splits_backward and plan.zero_stage == 3:
        raise Unsupported(
            f"target fsdp2 keeps weights gathered between the two backward passes of schedule {plan.schedule} (with "
            f"ZeRO 3 torch 2.13 computes wrong gradients of weights); plan again with --zero 2"
        )
    if graph.tied:
        raise Unsupported(
            "target fsdp2 cannot tie parameters of the first and the last stage; plan again with --pipeline 1"
        )
    prefixes = {layer_prefix(graph.block[name]) for name in graph.sequence}
    if len(prefixes) > 1 or len(before) > 1:
        raise Unsupported(
            "target fsdp2 cuts pipelines through one stack of layers between which only hidden states pass "
            "(one embedding, no learned positions); plan again with --pipeline 1"
        )


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


def render_layers(layout: Layout) -> str:
    """``LAYERS`` of a script: path, numbers and kind of the layers of each block."""
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
