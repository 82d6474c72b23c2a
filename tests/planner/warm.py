"""Scripts run as ``python`` runs them, in children of a process that has imported their frameworks already.

To import a framework takes seconds, to fork a process that has it none. Each script still has a process of its own.

    python warm.py transformers    # and then, on standard input, a line of JSON for each script
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

TIMEOUT_SECONDS = 300

QUICKER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
"""Flags of XLA: loops of CPU devices come from its older emitters, which takes a third of the time to compile, and no
program is parted for many threads. How arrays and collectives are laid out on devices was decided before.
"""

MODULES = {
    "torch": (
        "transformers.masking_utils",
        "torch.distributed._tools.fsdp2_mem_tracker",
        "torch.distributed.pipelining",
        "torch.distributed.tensor.parallel",
    ),
    "jax": ("jax.numpy", "planner.tracing.applying.jax_apply", "planner.tracing.reading.from_jax"),
}
"""What the programs of a framework import, as far as it takes long."""

LATE = ("NPROC", "XLA_FLAGS")
"""Variables that nothing reads before a script computes: scripts that differ in these alone share a process."""


class WarmProcess:
    """A process that has imported ``modules`` and forks for every script."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.errors = Path(self.folder.name) / "errors"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, __file__, *modules],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,  # so that all that a script started can be ended with it
            )

    def run(
        self, arguments: Sequence[str], late: Mapping[str, str], timeout_seconds: float
    ) -> subprocess.CompletedProcess[str]:
        """What ``python *arguments`` does, with variables of its own.

        Raises ``TimeoutExpired`` as `subprocess.run` does, and ``AssertionError`` if the process itself ends.
        """
        streams = [Path(self.folder.name) / name for name in ("stdout", "stderr")]
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):  # of a process that has ended, which gives no answer
            self.process.stdin.write(json.dumps([arguments, late, *map(str, streams)]).encode() + b"\n")
        if not select.select([self.process.stdout], [], [], timeout_seconds)[0]:
            raise subprocess.TimeoutExpired(arguments, timeout_seconds)
        code = self.process.stdout.readline()
        assert code, self.errors.read_text()
        return subprocess.CompletedProcess(arguments, int(code), *(file.read_text() for file in streams))

    def close(self) -> None:
        """End it, and what its scripts left."""
        with self.process:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.folder.cleanup()


class _Kept:
    """The process that the last script ran in: idle frameworks take memory, and scripts of one stand together."""

    def __init__(self) -> None:
        self.key: object = None
        self.process: WarmProcess | None = None
        atexit.register(self.close)

    def of(self, modules: Sequence[str], environment: Mapping[str, str]) -> WarmProcess:
        key = tuple(modules), dict(environment)
        if self.process is None or key != self.key:
            self.close()
            self.key, self.process = key, WarmProcess(modules, environment)
        return self.process

    def close(self) -> None:
        if self.process:
            self.process.close()
        self.process = None


_kept = _Kept()


def run_warm(
    arguments: Sequence[str],
    modules: Sequence[str],
    environment: Mapping[str, str],
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """What ``python *arguments`` does in ``environment``, where ``modules`` are imported beforehand."""
    late = {name: environment[name] for name in LATE if name in environment}
    own = {*LATE, "PYTEST_CURRENT_TEST"}
    process = _kept.of(modules, {name: value for name, value in environment.items() if name not in own})
    try:
        return process.run(arguments, late, timeout_seconds)
    except BaseException:
        _kept.close()  # a late answer would be taken for that of the next script
        raise


def serve(modules: Sequence[str]) -> None:
    """Fork for every line; the child leaves the loop, and ends as the script does."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for name in modules:
        importlib.import_module(name)
    assert threading.active_count() == 1, f"{threading.enumerate()} would not live in a forked process"
    gc.freeze()  # what is shared stays so
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answers.close()
            become(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def become(arguments: Sequence[str], late: Mapping[str, str], *streams: str) -> None:
    """Run a script or a module (``-m``), as the arguments of ``python`` say, with files for what it prints."""
    os.environ.update(late)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for descriptor, file in enumerate(streams, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    serve(sys.argv[1:])
