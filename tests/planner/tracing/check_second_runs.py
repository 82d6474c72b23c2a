"""Memory of the function that was planned: all, what is temporary, and that without second runs: numbers of bytes.

python check_second_runs.py sharded.json
"""

import json
import sys
from pathlib import Path

from planner.tracing.sharded import ShardedProgram
from planner.verification.programs.functions import load_function
from planner.verification.programs.jax_sharded import compile_sharded


def taken_bytes(sharded):
    """All, and what is temporary."""
    step, *arguments = load_function(sharded.program.source)
    found = compile_sharded(step, arguments, sharded).memory_analysis()
    temporary = found.temp_size_in_bytes
    return found.argument_size_in_bytes + found.output_size_in_bytes + temporary, temporary


if __name__ == "__main__":
    plan = ShardedProgram.model_validate_json(Path(sys.argv[1]).read_text())
    kept = plan.model_copy(update={"recomputed": (), "collected": {}})
    print(json.dumps([*taken_bytes(plan), taken_bytes(kept)[1]]))
