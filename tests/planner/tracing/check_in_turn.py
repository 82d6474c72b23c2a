"""Functions under the layouts of plans, one after another in one process: a path of a task a line, findings a line.

python check_in_turn.py < paths
"""

import json
import sys
import traceback

from planner.verification.programs.jax_sharded import main

if __name__ == "__main__":
    for line in sys.stdin:
        try:
            main(line.rstrip("\n"))
        except Exception:  # ends one test, and not those that follow
            print(json.dumps({"refused": traceback.format_exc()}))
        sys.stdout.flush()
