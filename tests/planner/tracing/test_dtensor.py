"""Modules of PyTorch under the layouts of plans: numbers beside those of one device, collectives beside the priced."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.distributed.device_mesh import init_device_mesh  # noqa: E402

from cluster_specs.catalog import load_cluster, what_if  # noqa: E402
from cluster_specs.cluster import ClusterSpec  # noqa: E402
from planner.errors import InputError  # noqa: E402
from planner.tracing.applying.dtensor.apply import apply_layouts  # noqa: E402
from planner.tracing.applying.dtensor.runner import Runner  # noqa: E402
from planner.tracing.reading.from_torch import from_torch  # noqa: E402
from planner.tracing.sharded import ShardedProgram  # noqa: E402
from planner.tracing.solving.shard import shard  # noqa: E402
from planner.verification.programs.functions import load_function  # noqa: E402
from planner.verification.programs.torch_sharded import check, world  # noqa: E402
from planner.verification.with_program import CompiledUse, differences  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]

FILE = Path(__file__).parent / "torch_programs.py"


def slow_computer() -> ClusterSpec:
    """One on which it pays to split even small arrays."""
    cluster = load_cluster("dgx-h100:1")
    flops = cluster.device.peak_flops_per_second
    return what_if(
        cluster,
        {
            **{f"device.peak_flops_per_second.{name}": value / 2e4 for name, value in flops.items()},
            "device.memory_bandwidth": cluster.device.memory_bandwidth / 2e3,
            "device.kernel_launch": 1e-9,
            "links.nvlink.latency": 1e-9,
        },
    )


def sharded_of(name: str, mesh: dict[str, int], gradient: bool = True, **how: Any) -> ShardedProgram:
    program = from_torch(*load_function(f"{FILE}:{name}"), gradient=gradient)
    return shard(program, slow_computer(), mesh, seconds=60, **how)


def checked(tmp_path: Path, sharded: ShardedProgram, name: str) -> dict[str, Any]:
    file = tmp_path / "sharded.json"
    file.write_text(sharded.to_json())
    task = {"exported": str(file), "function": f"{FILE}:{name}", "devices": 8, "most_bytes": 8e9}
    return check(task)


def apart(sharded: ShardedProgram, found: dict[str, Any]) -> list[str]:
    uses = [CompiledUse(axes=(), seconds=0.0, **use) for use in found["compiled"]]
    return [d.operator for d in differences(sharded.collectives, uses)]


def runs_as_planned(tmp_path: Path, name: str, mesh: dict[str, int], limit: float = 1e-5) -> ShardedProgram:
    """The plan of a module that makes one device's numbers and exchanges what is priced."""
    sharded = sharded_of(name, mesh)
    found = checked(tmp_path, sharded, name)
    assert found["alike"] == {}
    assert max(o["error"] for o in found["outputs"]) < limit
    assert apart(sharded, found) == []
    return sharded


CASES = {
    "a language model": ("two_blocks", {"data": 2, "model": 4}, 3),
    "on three axes": ("two_blocks", {"a": 2, "b": 2, "c": 2}, 3),
    "images": ("image", {"data": 4, "model": 2}, 3),
    "images by given statistics": ("settled", {"data": 4, "model": 2}, 3),
    "a vocabulary in parts": ("words", {"data": 2, "model": 4}, 3),
    "views of views, and a bilinear layer": ("asked", {"a": 2, "b": 2, "c": 2}, 10),
    "experts": ("mixture", {"data": 2, "expert": 4}, 3),
}


@pytest.mark.parametrize("case", CASES)
def test_a_module_makes_the_same_numbers_and_exchanges_what_is_priced(tmp_path: Path, case: str) -> None:
    name, mesh, exchanges = CASES[case]
    sharded = runs_as_planned(tmp_path, name, mesh, 1e-4)
    assert len(sharded.collectives) >= exchanges


def test_norms_of_fp64_are_made_in_fp64(tmp_path: Path) -> None:
    """But for gradients that cancel, of biases before norms."""
    found = checked(tmp_path, sharded_of("precise", {"data": 4, "model": 2}), "precise")
    errors = {o["name"]: o["error"] for o in found["outputs"] if abs(o["expected"]) > 1e-9}
    assert "loss" in errors
    assert len(errors) > 4
    assert max(errors.values()) < 1e-12


@pytest.mark.parametrize("mesh", [{"data": 8}, {"data": 2, "model": 4}], ids=["one axis", "two axes"])
@pytest.mark.parametrize("name", ["large", "signal", "dilated"])
def test_neighbours_exchange_what_windows_reach_over(tmp_path: Path, name: str, mesh: dict[str, int]) -> None:
    """Of an image in parts, forward and backward: strides, groups, patches that begin before it."""
    sharded = runs_as_planned(tmp_path, name, mesh)
    sent = {use.operator for use in sharded.collectives if use.collective == "send"}
    assert {"convolution.product", "convolution_backward:0", "convolution_backward_1:1"} <= sent
    assert sum("backward" in operator for operator in sent) >= 2


@pytest.mark.parametrize("name", ["square", "pooled"])
def test_an_image_lies_in_parts_in_two_dims(tmp_path: Path, name: str) -> None:
    """Gradients of filters are summed over both at once; parts that are alike send nothing."""
    sharded = runs_as_planned(tmp_path, name, {"a": 2, "b": 2, "c": 2})
    filters = [o for o in sharded.operators if o.name.endswith(":1") and len({*o.split.values()}) == 2]
    summed = [c.operator for c in sharded.collectives if c.collective == "all_reduce"]
    assert filters
    assert all(summed.count(o.name) == 1 for o in filters)


def test_channels_are_split_where_parts_would_be_shorter_than_their_borders(tmp_path: Path) -> None:
    runs_as_planned(tmp_path, "short_signal", {"data": 2, "model": 4})


def test_what_is_recomputed_is_run_a_second_time(tmp_path: Path) -> None:
    free = sharded_of("two_blocks", {"data": 8})
    sharded = sharded_of("two_blocks", {"data": 8}, memory_limit=0.5 * free.memory_bytes)
    assert sharded.proven
    assert sharded.recomputed
    found = checked(tmp_path, sharded, "two_blocks")
    assert max(o["error"] for o in found["outputs"]) < 1e-4
    assert apart(sharded, found) == []


def test_a_module_without_a_loss_returns_what_it_does(tmp_path: Path) -> None:
    sharded = sharded_of("scores", {"data": 8}, gradient=False)
    found = checked(tmp_path, sharded, "scores")
    assert [o["name"] for o in found["outputs"]] == ["output 0", "output 1"]
    assert max(o["error"] for o in found["outputs"]) < 1e-4


def test_queries_in_parts_see_only_what_comes_before(tmp_path: Path) -> None:
    """Each device has the scores of its own positions under the mask."""
    sharded = sharded_of("language", {"data": 8})
    attention = next(op for op in sharded.program.operations if op.attention is not None)
    assert attention.attention is not None
    (rows,) = (f for f in attention.attention.queries if attention.sizes[f] == 32)
    operators = tuple(
        op.model_copy(update=_by_rows(op, attention, rows)) if op.name == attention.name else op
        for op in sharded.operators
    )
    found = checked(tmp_path, sharded.model_copy(update={"operators": operators}), "language")
    assert max(o["error"] for o in found["outputs"]) < 1e-4


def _by_rows(op: Any, attention: Any, rows: int) -> dict[str, Any]:
    def lies(dims: Any) -> Any:
        return tuple(("data",) if rows in dim else () for dim in dims)

    return {
        "split": {"data": rows},
        "ring": (),
        "reads": tuple(map(lies, attention.reads)),
        "writes": tuple(map(lies, attention.writes)),
    }


def test_wrong_layouts_are_found_out(tmp_path: Path) -> None:
    """An operator that is not split as was priced exchanges something else."""
    sharded = sharded_of("language", {"data": 8})
    name = next(c.operator for c in sharded.collectives if c.collective in ("all_reduce", "reduce_scatter"))
    split = next(o.split for o in sharded.operators if o.name == name)
    kept = tuple(o.model_copy(update={"split": {}}) if o.name == name else o for o in sharded.operators)
    found = checked(tmp_path, sharded.model_copy(update={"operators": kept}), name="language")
    assert split
    assert name in apart(sharded, found)


def test_a_sum_that_is_left_out_makes_other_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharded = sharded_of("language", {"data": 8})
    monkeypatch.setattr(Runner, "_addends", lambda self, site, dims: self.placements(site.lies(dims)))
    found = checked(tmp_path, sharded, "language")
    assert max(o["error"] for o in found["outputs"]) > 1e-2


def test_dropout_is_not_compared(tmp_path: Path) -> None:
    sharded = sharded_of("dropped", {"data": 8})
    found = checked(tmp_path, sharded, "dropped")
    assert "outputs" not in found
    assert "dropout" in found["unlike"]


def test_attention_drops_the_same_scores_in_its_backward_pass() -> None:
    """On one device, from the same state of its numbers."""
    module, x = load_function(f"{FILE}:noisy")
    program = from_torch(module, x, gradient=True)
    sharded = shard(program, slow_computer(), {"data": 1}, seconds=60)
    torch.manual_seed(1)
    module(x).backward()
    expected = module.layer.weight.grad.clone()
    with world({"data": 1}):
        mesh = init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
        step = apply_layouts(module, sharded, mesh, x, gradient=True)
        torch.manual_seed(1)
        step(x)
    torch.testing.assert_close(module.layer.weight.grad.full_tensor(), expected)


def test_another_module_than_was_planned_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not the module that was planned"):
        checked(tmp_path, sharded_of("language", {"data": 4}), "image")


@pytest.mark.parametrize(
    ("name", "mesh", "split"),
    [("few_rows", {"data": 8}, "bags"), ("many_rows", {"data": 2, "model": 4}, "rows")],
)
def test_rows_are_added_up_by_bag(tmp_path: Path, name: str, mesh: dict[str, int], split: str) -> None:
    """Means and weighed sums, where bags or where rows of the table are split."""
    sharded = runs_as_planned(tmp_path, name, mesh)
    read = next(op for op in sharded.program.operations if op.name == "_embedding_bag:0")
    own = {"bags": read.writes[0][0], "rows": read.reads[0][0]}[split]
    assert set(next(s for s in sharded.operators if s.name == read.name).split.values()) == set(own)


def test_places_of_rows_are_gathered_where_bags_begin_anywhere(tmp_path: Path) -> None:
    """Plans take bags to have equally many."""
    sharded = sharded_of("uneven_bags", {"data": 8})
    found = checked(tmp_path, sharded, "uneven_bags")
    assert found["alike"] == {}
    assert max(o["error"] for o in found["outputs"]) < 1e-5
    assert apart(sharded, found) == ["_embedding_bag:0"]
    assert {u["collective"] for u in found["compiled"] if u["operator"] == "_embedding_bag:0"} == {
        "all_gather"
    }


RECURRENT = [
    ("lstm", {"data": 2, "model": 4}),
    ("gru", {"data": 8}),
    ("gru", {"a": 2, "b": 2, "c": 2}),
    ("rnn", {"data": 2, "model": 4}),
]


@pytest.mark.parametrize(("name", "mesh"), RECURRENT, ids=[f"{n} on {len(m)}" for n, m in RECURRENT])
def test_recurrent_layers_run_step_after_step(tmp_path: Path, name: str, mesh: dict[str, int]) -> None:
    """Forward and backward; what each step exchanges is counted as often as there are steps."""
    sharded = runs_as_planned(tmp_path, name, mesh)
    assert any("steps" in use.operator for use in sharded.collectives)


def test_no_second_run_is_inside_of_a_recurrent_layer(tmp_path: Path) -> None:
    sharded = sharded_of("gru", {"data": 8})
    again = next(s for s in sharded.operators if s.name.startswith("steps/"))
    with pytest.raises(InputError, match="steps: second runs inside of a recurrent layer are not run"):
        checked(tmp_path, sharded.model_copy(update={"recomputed": (again,)}), "gru")


def test_an_optimizer_is_a_part_of_it(tmp_path: Path) -> None:
    """New weights and states are PyTorch's own."""
    module, *inputs = load_function(f"{FILE}:language")
    program = from_torch(module, *inputs, optimizer=torch.optim.AdamW)
    program = program.model_copy(update={"traced_with": {"optimizer": "AdamW"}})
    sharded = shard(program, slow_computer(), {"data": 8}, seconds=60)
    found = checked(tmp_path, sharded, "language")
    names = [o["name"] for o in found["outputs"]]
    assert {"new words.weight", "new words.weight.exp_avg", "loss"} <= set(names)
    assert max(o["error"] for o in found["outputs"]) < 1e-4
    assert apart(sharded, found) == []


def test_layouts_are_counted_on_the_whole_mesh(tmp_path: Path) -> None:
    """A plan for 64 devices is followed as it is, and run on eight."""
    program = from_torch(*load_function(f"{FILE}:mixture"), gradient=True)
    cluster = what_if(slow_computer(), {"nodes": 8})
    sharded = shard(program, cluster, {"data": 8, "expert": 8}, seconds=60)
    found = checked(tmp_path, sharded, "mixture")
    assert math.prod(found["mesh"].values()) == 8
    assert max(o["error"] for o in found["outputs"]) < 1e-4
    assert apart(sharded, found) == []


@pytest.mark.parametrize(
    ("name", "optimizer", "collective"),
    [("language", torch.optim.AdamW, "all_reduce"), ("picture", None, "send")],
)
def test_a_script_trains_under_a_plan(tmp_path: Path, name: str, optimizer: Any, collective: str) -> None:
    """On processes that send messages: two steps of ``torch.optim`` end where those of one process do.

    A plan may have the step of an optimizer; the script takes its own.
    """
    file = tmp_path / "sharded.json"
    program = from_torch(*load_function(f"{FILE}:{name}"), gradient=True, optimizer=optimizer)
    sharded = shard(program, slow_computer(), {"data": 2, "model": 2}, seconds=60)
    assert collective in {use.collective for use in sharded.collectives}
    file.write_text(sharded.to_json())
    script = Path(__file__).parent / "check_training.py"
    command = [sys.executable, "-W", "ignore", str(script), str(file), name]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["found"] == pytest.approx(found["losses"], rel=1e-5)
    assert found["found"][0] > found["found"][1]
    assert found["apart"] < 1e-5
    assert found["split"] > 0 or name == "picture"


def test_a_mesh_of_other_axes_is_refused() -> None:
    module, *inputs = load_function(f"{FILE}:mixture")
    sharded = sharded_of("mixture", {"data": 8})
    with world({"rows": 8}):
        mesh = init_device_mesh("cpu", (8,), mesh_dim_names=("rows",))
        with pytest.raises(InputError, match=r"the mesh is \{'rows': 8\}, the plan is for \{'data': 8\}"):
            apply_layouts(module, sharded, mesh, *inputs, gradient=True)
