"""Memory of the case that was planned: all, what is temporary, and that without second runs: three numbers of bytes.

python check_second_runs.py sharded.json
"""

import os
import sys
from pathlib import Path

from planner.verification.with_program import FLAGS

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join(FLAGS).format(8)

import cases  # noqa: E402
import jax  # noqa: E402

from planner.tracing.applying.jax_apply import apply_shardings, input_shardings  # noqa: E402
from planner.tracing.sharded import ShardedProgram  # noqa: E402


def taken_bytes(sharded):
    """All, and what is temporary."""
    case = getattr(cases, sharded.program.source.rpartition(":")[2])
    step, *arguments = case() if callable(case) else case
    mesh = jax.make_mesh(tuple(sharded.mesh.values()), tuple(sharded.mesh))
    layouts = input_shardings(sharded, mesh, tuple(arguments))
    placed = jax.tree.map(
        lambda a, layout: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=layout), tuple(arguments), layouts
    )
    run = jax.jit(apply_shardings(step, sharded, mesh, tuple(arguments)))
    found = run.lower(*placed).compile().memory_analysis()
    temporary = found.temp_size_in_bytes
    return found.argument_size_in_bytes + found.output_size_in_bytes + temporary, temporary


if __name__ == "__main__":
    plan = ShardedProgram.model_validate_json(Path(sys.argv[1]).read_text())
    kept = plan.model_copy(update={"recomputed": (), "collected": {}})
    print(*taken_bytes(plan), taken_bytes(kept)[1])
