"""Products of one value run as one where that saves time, and only where they are split alike."""

import itertools

import pytest

from cluster_specs.adjusted import in_training
from cluster_specs.catalog import load_cluster
from cost_models.matmul import matmul_seconds
from cost_models.roofline import stream_seconds
from planner.report.sharding import sharding_report
from planner.tracing.layouts import WHOLE
from planner.tracing.program import Operation, Program, Value
from planner.tracing.solving.concatenation import OWN
from planner.tracing.solving.nodes import JointOption
from planner.tracing.solving.options import Option
from planner.tracing.solving.setting import Setting, set_up
from planner.tracing.solving.shard import price_layouts, shard

CLUSTER = "dgx-h100:1"
DEVICE = in_training(load_cluster(CLUSTER).device)
ROWS, DEPTH = 8192, 4100
"""The depth does not divide by eight: it is not split."""


def projections(*widths: int, rows: int = ROWS, depth: int = DEPTH, dtypes: tuple[str, ...] = ()) -> Program:
    """``x [rows, depth]`` times a weight for each width."""
    types = dtypes or ("bfloat16",) * len(widths)
    values = [Value(name="x", shape=(rows, depth), dtype="bfloat16", role="input", path="x")]
    for k, (width, dtype) in enumerate(zip(widths, types, strict=True)):
        values.append(Value(name=f"w{k}", shape=(depth, width), dtype=dtype, role="parameter", path=f"w{k}"))
        values.append(Value(name=f"y{k}", shape=(rows, width), dtype="bfloat16"))
    return Program(
        name="projections",
        values=tuple(values),
        operations=tuple(
            Operation(
                name=f"y{k}",
                kind="product",
                primitive="dot",
                inputs=("x", f"w{k}"),
                outputs=(f"y{k}",),
                sizes=(rows, depth, width),
                reads=(((0,), (1,)), ((1,), (2,))),
                writes=(((0,), (2,)),),
            )
            for k, width in enumerate(widths)
        ),
        inputs=tuple(v.name for v in values if v.role != "intermediate"),
        outputs=tuple(f"y{k}" for k in range(len(widths))),
    )


def multiplied(columns: int) -> float:
    return matmul_seconds(ROWS, columns, DEPTH, DEVICE, "bf16").seconds


def test_queries_keys_and_values_are_priced_as_one_product_and_a_copy() -> None:
    """Grouped heads over eight devices, 512 and twice 128 columns on each, by the cost models' own words."""
    rules = {"^w": (None, "model")}
    setting = set_up(projections(4096, 1024, 1024), CLUSTER, {"model": 8})
    columns = (512, 128, 128)
    apart = sum(map(multiplied, columns))
    copy = stream_seconds(2 * 2 * DEPTH * sum(columns), DEVICE).seconds
    one = multiplied(sum(columns)) + copy
    assert one < apart
    (joint,) = setting.nodes.joints
    assert dict(zip(joint.patterns, joint.saved, strict=True))[OWN,] == pytest.approx(apart - one)
    arrival = setting.pricer.arrival("x", (WHOLE,))
    assert price_layouts(setting, rules).seconds == pytest.approx(arrival + one)


@pytest.mark.parametrize("cluster", [CLUSTER, "tpu-v5p:2x2x2"])
@pytest.mark.parametrize("odd", [0, 1], ids=["split in many ways", "not split at all"])
def test_products_of_many_sizes_take_together_what_each_takes_alone(cluster: str, odd: int) -> None:
    widths = (width + odd for width in (4096, 1024, 4096, 24, 2))
    program = projections(*widths, rows=ROWS + odd, depth=DEPTH + odd)
    setting = set_up(program, cluster, {"data": 2, "model": 4})
    first = len(setting.nodes.inputs)
    for op, options, seconds in zip(
        setting.nodes.operations,
        setting.problem.options[first:],
        setting.problem.seconds[first:],
        strict=False,
    ):
        alone = [setting.pricer.operation(op, o).seconds for o in options if isinstance(o, Option)]
        assert seconds.tolist() == pytest.approx(alone, rel=1e-12)
        assert (len(alone) == 1) == bool(odd)


def test_the_plan_says_what_runs_as_one() -> None:
    """Rows do not divide by eight either: heads are what is split."""
    program = projections(4096, 1024, 1024, rows=ROWS + 4)
    sharded, setting = shard(program, CLUSTER, {"model": 8}), set_up(program, CLUSTER, {"model": 8})
    assert sharded.together == (("y0", "y1", "y2"),)
    assert sharded.proven
    assert sharded.seconds < min(every(setting, together=False))
    assert "as one       y0, y1, y2" in sharding_report(sharded)


def every(setting: Setting, together: bool) -> list[float]:
    """Seconds of all choices, as the evaluator has them, with or without products that run as one."""
    found = []
    for choice in itertools.product(*setting.problem.options):
        if together or JointOption() in choice or not setting.nodes.joints:
            try:
                found.append(setting.estimate(choice).seconds)
            except (
                ValueError
            ):  # split otherwise than one another, or a copy that does not lie as its value does
                continue
    return found


@pytest.mark.parametrize("widths", [(1024, 1024), (4096, 1024), (8192, 512), (1024, 12)])
def test_brute_force_finds_nothing_better(widths: tuple[int, int]) -> None:
    program = projections(*widths)
    setting = set_up(program, CLUSTER, {"model": 8})
    best = min(every(setting, together=True))
    assert shard(program, CLUSTER, {"model": 8}).seconds == pytest.approx(best, rel=1e-6)


def test_what_is_split_otherwise_does_not_run_as_one() -> None:
    setting = set_up(projections(1024, 1024), CLUSTER, {"model": 8})
    by_rows, by_columns = (
        next(o for o in setting.problem.options[3] if o.split == split) for split in ((0,), (2,))
    )
    chosen = [o[0] for o in setting.problem.options]
    chosen[3], chosen[4], chosen[-1] = by_rows, by_columns, JointOption((OWN,))
    with pytest.raises(ValueError, match="y0 is not split as what it is to run as one with"):
        setting.estimate(chosen)


@pytest.mark.parametrize(
    "program",
    [
        projections(65536, 65536),  # each fills the device by itself, and the copy costs
        projections(1024, 1024, dtypes=("bfloat16", "float32")),
        projections(1024),
    ],
    ids=["large", "types", "alone"],
)
def test_nothing_runs_as_one_where_it_cannot_or_does_not_pay(program: Program) -> None:
    assert set_up(program, CLUSTER, {"model": 8}).nodes.joints == ()


def test_who_waits_for_another_is_not_run_with_it() -> None:
    """``x w`` and ``x (x w)`` read the same value, but one after the other."""
    size = 1024
    beside = projections(size, size, rows=size, depth=size)
    first, second = beside.operations
    after = second.model_copy(update={"inputs": ("x", "y0")})
    behind = beside.model_copy(update={"operations": (first, after)})
    joints = [set_up(program, CLUSTER, {"model": 8}).nodes.joints for program in (beside, behind)]
    assert [len(found) for found in joints] == [1, 0]
