"""Plans under which functions are compiled, one after another in one process: a check and the path of its task a line.

python check_in_turn.py < lines
"""

import json
import sys
import traceback
from pathlib import Path

from planner.tracing.sharded import ShardedProgram
from planner.verification.programs import jax_sharded
from planner.verification.programs.functions import load_function


def second_runs(path):
    """Memory: all, what is temporary, and that without second runs [B]."""
    task = json.loads(Path(path).read_text())
    plan = ShardedProgram.model_validate_json(Path(task["exported"]).read_text())
    kept = plan.model_copy(update={"recomputed": (), "collected": {}})
    print(json.dumps([*taken_bytes(plan), taken_bytes(kept)[1]]))


def taken_bytes(sharded):
    """All, and what is temporary."""
    step, *arguments = load_function(sharded.program.source)
    found = jax_sharded.compile_sharded(step, arguments, sharded).memory_analysis()
    temporary = found.temp_size_in_bytes
    return found.argument_size_in_bytes + found.output_size_in_bytes + temporary, temporary


CHECKS = {"jax_sharded": jax_sharded.main, "second_runs": second_runs}

if __name__ == "__main__":
    for line in sys.stdin:
        check, _, path = line.rstrip("\n").partition(" ")
        try:
            CHECKS[check](path)
        except Exception:  # ends one test, and not those that follow
            print(json.dumps({"refused": traceback.format_exc()}))
        sys.stdout.flush()
