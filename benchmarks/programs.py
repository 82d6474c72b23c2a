"""How long layouts for programs traced from JAX take: import, clean-up, tables, solver, and the gap that is left.

    python benchmarks/programs.py [--seconds 60] [--times 5]

CPU milliseconds of one core, each the least of so many runs, as other work on a machine can double them, but for
``first``: tables and solution in the first run of a row, for which no price of a collective is known yet. ``nodes`` are
inputs, operators and copies after clean-up, which is a part of the tables' time; ``decide`` is how many of them are
left to decide once repeated blocks share their choice.
"""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from planner.intra_op.narrowing import solve_narrowed
from planner.tracing.cleaning.passes import clean
from planner.tracing.reading.from_jax import from_jax
from planner.tracing.solving.setting import set_up

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "planner" / "tracing"))

BLOCK_MESHES = (
    ("dgx-h100:1", {"model": 8}),
    ("dgx-h100:8", {"data": 8, "model": 8}),
    ("dgx-h100:128", {"data": 128, "model": 8}),
    ("dgx-h100:1", {"pod": 2, "data": 2, "model": 2}),
    ("dgx-h100:8", {"pod": 4, "data": 4, "model": 4}),
    ("dgx-h100:128", {"pod": 16, "data": 8, "model": 8}),
    ("dgx-h100:512", {"pod": 32, "data": 16, "model": 8}),
    ("dgx-h100:512", {"pod": 64, "data": 16, "model": 4}),
    ("dgx-h100:128", {"model": 1024}),
    ("dgx-h100:2", {"data": 3, "model": 5}),
    ("dgx-h100:512", {"data": 512, "model": 8}),
    ("dgx-h100:6", {"pod": 6, "data": 4, "model": 2}),
    ("dgx-h100:16", {"pod": 2, "data": 4, "model": 16}),
    ("dgx-h100:64", {"pod": 8, "data": 8, "model": 8}),
    ("dgx-h100:64", {"pod": 2, "data": 16, "model": 16}),
    ("dgx-h100:256", {"pod": 256, "data": 4, "model": 2}),
    ("tpu-v5p:4x4x8", {"x": 4, "y": 4, "z": 8}),
    ("tpu-v5p:8x8x8", {"x": 8, "y": 8, "z": 8}),
    ("tpu-v5p:8x8x16", {"x": 8, "y": 8, "z": 16}),
)
"""Of one to three axes: few devices and many, powers of two and others, within nodes and across them, in a torus."""

THREE_AXES = (BLOCK_MESHES[3], BLOCK_MESHES[5], BLOCK_MESHES[7], BLOCK_MESHES[13], BLOCK_MESHES[14])
"""Of which messages close some at once, and some leave a gap to parts and hubs."""


ONE_BLOCK = "one block, forward and backward"


class Row(NamedTuple):
    name: str
    case: Any
    cluster: str
    mesh: dict[str, int]
    fold: bool | None = None


def cases() -> Iterator[Row]:
    import jax_layers
    from jax_models import MODELS

    one = jax_layers.block(jax_layers.Sizes(1, 4096, 32, 8, 14336, 128256, 256, 4096, "bfloat16"))
    for cluster, mesh in BLOCK_MESHES:
        yield Row(ONE_BLOCK, one, cluster, mesh)
    wide = jax_layers.Sizes(1, 1024, 16, 16, 4096, 32768, 512, 1024, "bfloat16")
    for name in ("gpt", "mixtral", "t5", "vit", "resnet", "unet", "dlrm"):
        for cluster, mesh in THREE_AXES:
            yield Row(f"{name}, one layer", MODELS[name](wide), cluster, mesh)
    large = jax_layers.Sizes(126, 16384, 128, 8, 53248, 128256, 512, 8192, "bfloat16")
    yield Row("405B, layers in a scan", MODELS["llama"](large), "dgx-h100:128", {"data": 128, "model": 8})
    deep = jax_layers.Sizes(9, 4096, 32, 32, 16384, 32768, 256, 1024, "bfloat16")
    for fold in (True, False):
        yield Row(
            "2,000 operators",
            MODELS["t5"](deep._replace(layers=4)),
            "dgx-h100:8",
            {"data": 8, "model": 8},
            fold,
        )


def measure(row: Row, seconds: float, times: int) -> list[str]:
    runs = [run(row, seconds) for _ in range(times)]
    spans = [f"{1000 * min(run.spans[phase] for run in runs):,.0f}" for phase in range(len(PHASES))]
    mesh, first = " x ".join(map(str, row.mesh.values())), f"{1000 * runs[0].spans[-1]:,.0f}"
    return [row.name, mesh, *map(str, runs[0].counts), *spans, first, runs[0].gap]


class Run(NamedTuple):
    counts: tuple[int, int, int]
    """Operators, nodes, and nodes to decide."""
    spans: tuple[float, ...]
    """By phase [s]."""
    gap: str


def run(row: Row, seconds: float) -> Run:
    clock = [time.process_time()]
    program = from_jax(row.case.step, *row.case.arguments)
    clock.append(time.process_time())
    clean(program)
    clock.append(time.process_time())
    setting = set_up(program, row.cluster, row.mesh, fold=row.fold)
    clock.append(time.process_time())
    answer = solve_narrowed(setting.problem.network(math.inf), time.monotonic() + seconds)
    clock.append(time.process_time())
    trace, cleaning, tables, solution = (after - before for before, after in itertools.pairwise(clock))
    gap = 0.0 if answer.lower_bound > answer.cost - 1 else 1 - answer.lower_bound / answer.cost
    counts = (len(program.operations), len(setting.problem.options), len(set(setting.problem.group)))
    return Run(counts, (trace, tables, cleaning, solution, tables + solution), f"{gap:.2%}")


PHASES = ("trace", "tables", "clean-up", "solve", "tables + solve")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="wall time for each solution")
    parser.add_argument("--times", type=int, default=5, help="runs of each, of which the fastest counts")
    options = parser.parse_args()
    table = Table("program", "mesh", "operators", "nodes", "decide", *PHASES, "first", "gap")
    for row in cases():
        table.add_row(*measure(row, options.seconds, options.times))
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
