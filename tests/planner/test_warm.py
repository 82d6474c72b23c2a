"""A script in a fork of a warm process does what it does in an interpreter of its own, and cannot harm the next."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from warm import LATE, run_warm

MODULES = ("decimal",)

SCRIPTS = {
    "prints": "import os, sys; print(sys.argv[1:], __name__, os.environ['COLOUR'], file=sys.stderr); print('done')",
    "changes what it imports": (
        "import decimal; assert decimal.getcontext().prec == 28; decimal.getcontext().prec = 5; import colours"
    ),
    "reads": "import sys; print(sys.stdin.read() == '')",
    "fails": "raise ValueError('no such colour')",
    "exits": "raise SystemExit(7)",
    "crashes": "import os; print('before', flush=True); os.abort()",
    "forks": "import os; child = os.fork(); print('one' if child else 'other', flush=True); child and os.wait()",
}


@pytest.fixture
def environment() -> Mapping[str, str]:
    return {**os.environ, "COLOUR": "red"}


def run(
    code: str, folder: Path, environment: Mapping[str, str], **options: float
) -> tuple[int, str, list[str]]:
    """Return code, output (lines of several processes in any order) and the last line of errors."""
    (folder / "script.py").write_text(code)
    (folder / "colours.py").write_text("print('neighbour')")
    arguments = [str(folder / "script.py"), "a b", "c"]
    done = run_warm(arguments, MODULES, environment, **options)
    return done.returncode, "".join(sorted(done.stdout)), done.stderr.splitlines()[-1:]


@pytest.mark.parametrize("case", SCRIPTS)
def test_scripts_end_as_in_an_interpreter_of_their_own(
    case: str, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    found = [run(SCRIPTS[case], tmp_path, environment) for _ in range(2)]
    command = [sys.executable, str(tmp_path / "script.py"), "a b", "c"]
    own = subprocess.run(
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    assert found == [(own.returncode, "".join(sorted(own.stdout)), own.stderr.splitlines()[-1:])] * 2


def test_modules_are_run_by_their_names(environment: Mapping[str, str]) -> None:
    done = run_warm(["-m", "json.tool", "--help"], MODULES, environment)
    assert (done.returncode, done.stdout[:6]) == (0, "usage:")


def test_what_does_not_end_is_ended(tmp_path: Path, environment: Mapping[str, str]) -> None:
    endless = (
        "import fcntl, os, time; held = open(f'{__file__}.lock', 'w'); fcntl.flock(held, fcntl.LOCK_EX); "
        "os.fork(); time.sleep(60)"
    )
    assert run("print('before')", tmp_path, environment)[0] == 0
    with pytest.raises(subprocess.TimeoutExpired):
        run(endless, tmp_path, environment, timeout_seconds=2)
    begun = time.monotonic()
    with (tmp_path / "script.py.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # which both processes hold as long as they live
    assert time.monotonic() - begun < 30
    assert run("print('after')", tmp_path, environment)[0] == 0


def test_modules_that_cannot_be_imported_are_said(environment: Mapping[str, str]) -> None:
    with pytest.raises(AssertionError, match="No module named 'no_such_module'"):
        run_warm(["-c"], ["no_such_module"], environment)


def test_scripts_share_a_process_whatever_is_read_late(
    tmp_path: Path, environment: Mapping[str, str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os; print(os.getppid(), os.environ.get('XLA_FLAGS'))")
    given: list[dict[str, str]] = [{"XLA_FLAGS": "--one"}, {"XLA_FLAGS": "--other"}, {}]
    bare = {name: value for name, value in environment.items() if name not in LATE}
    said = [run_warm([str(script)], MODULES, bare | late).stdout.split() for late in given]
    assert [flags for _, flags in said] == ["--one", "--other", "None"]
    assert len({process for process, _ in said}) == 1
