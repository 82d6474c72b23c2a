"""Run by ``test_ray``: a real local Ray cluster, one of whose workers is killed while it plans."""

import os
import signal
import sys
import time
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).parent))

from small import AXES, PINS

from planner.sweep import engines
from planner.sweep.answers import key_of
from planner.sweep.engines import here, on_ray
from planner.sweep.grid import cells


@ray.remote
class Seen:
    """Processes that were asked something, across workers."""

    def __init__(self) -> None:
        self.processes: list[int] = []

    def add(self, process: int) -> int:
        """How many there were before."""
        self.processes.append(process)
        return len(self.processes) - 1

    def all(self) -> list[int]:
        return self.processes


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    questions = {
        key_of(cell.question, "time"): cell.question
        for cell in cells({**AXES, "global_batch": (32, 64, 96, 128)}, PINS)
        if cell.question
    }
    expected = dict(here(questions, "time", 1))
    seen, original = Seen.remote(), engines.ask

    def ask(question, objective):  # type: ignore[no-untyped-def]
        if ray.get(seen.add.remote(os.getpid())) == 0:
            time.sleep(3600)  # the first to be asked never answers
        return original(question, objective)

    engines.ask = ask
    answers: dict[str, object] = {}
    for key, answer in on_ray(questions, "time", 2):
        if not answers:
            os.kill(ray.get(seen.all.remote())[0], signal.SIGKILL)
        answers[key] = answer
    attempts = len(ray.get(seen.all.remote()))
    assert answers == expected, "answers differ from those of one process"
    assert attempts > len(questions), "nothing was asked again"
    print(f"ok: {len(questions)} questions, {attempts} attempts")


if __name__ == "__main__":
    main()
