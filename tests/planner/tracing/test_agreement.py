"""Two representations, one price: the evaluator of programs and that of graphs agree where they say the same.

Both ask the same cost models of the same devices. A block that is traced, and the same block lifted to a graph, must
come to the same seconds for the same products, and to the same groups of devices for the same axes. Attention and
what runs between products differ by design: a program has what was written, a graph has kernels with names.
"""

from pathlib import Path

import pytest

from cluster_specs.catalog import load_cluster
from planner import Job, Program, load_model, plan
from planner.evaluation.evaluator import Evaluator
from planner.evaluation.operators import operator_costs
from planner.sharding.mesh import Mesh
from planner.tracing.layouts import NamedMesh
from planner.tracing.solving.options import options
from planner.tracing.solving.setting import Setting, set_up

LLAMA = Path(__file__).parents[2] / "data" / "program_llama.json"
CLUSTER = "dgx-h100:2"
BATCH, LENGTH = 2, 4096
"""As traced."""


@pytest.fixture(scope="module")
def setting() -> Setting:
    return set_up(Program.model_validate_json(LLAMA.read_text()), CLUSTER, {"device": 1})


def of_program(setting: Setting) -> float:
    """Seconds of all products with weights on one device."""
    value, total = setting.program.value, 0.0
    weights = {v.name for v in setting.program.values if v.role == "parameter"}
    for op in setting.program.operations:
        if op.kind == "boundary" and weights.intersection(op.inputs):
            weights |= set(op.outputs)
        if op.kind == "product" and weights.intersection(op.inputs):
            whole = options(op, [value[n].shape for n in op.outputs], setting.mesh)[-1]
            total += setting.pricer.operation(op, whole).compute
    return total


def test_products_take_the_same_time(setting: Setting) -> None:
    """Within 1 %: what reads the same value runs as one product in a graph."""
    job = {"global_batch": 16 * BATCH, "seq_len": LENGTH}
    pins = {"data": 16, "tensor": 1, "pipeline": 1, "context": 1, "micro_batch": BATCH}
    model = load_model(LLAMA)
    found = plan(model, CLUSTER, top=1, **job, **pins)
    evaluator = Evaluator(model, load_cluster(CLUSTER), Job.model_validate(job))
    costs = operator_costs(evaluator, found.plan)
    of_graph = sum(c.seconds * c.instances for c in costs if c.bound == "matmul")
    assert of_program(setting) == pytest.approx(of_graph, rel=0.01)


@pytest.mark.parametrize("axes", [("data",), ("tensor",), ("data", "tensor")])
def test_the_same_axes_are_the_same_links(axes: tuple[str, ...]) -> None:
    cluster = load_cluster(CLUSTER)
    named = NamedMesh(cluster, {"data": 4, "tensor": 4})
    numbers = [list(named.axes).index(a) for a in axes]
    assert named.group(numbers) == Mesh(cluster, {"tensor": 4, "data": 4}).group(axes)
