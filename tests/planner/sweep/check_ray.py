"""Run by ``test_ray``: a real local Ray cluster, one of whose workers is killed while it plans."""

import os
import signal
import sys
import time
from pathlib import Path

import ray

sys.path.insert(0, str(Path(__file__).parent))

from small import AXES, PINS

from planner.sweep.answers import key_of
from planner.sweep.engines import here, on_ray
from planner.sweep.grid import cells


@ray.remote
class Seen:
    """Which process asked which question, across workers."""

    def __init__(self) -> None:
        self.processes: list[int] = []

    def add(self, process: int) -> None:
        self.processes.append(process)

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
    seen = Seen.remote()

    import planner.sweep.engines as engines

    original = engines.ask

    def slow_ask(question, objective):  # type: ignore[no-untyped-def]
        ray.get(seen.add.remote(os.getpid()))
        time.sleep(1.0)
        return original(question, objective)

    engines.ask = slow_ask
    answers: dict[str, object] = {}
    killed = None
    for key, answer in on_ray(questions, "time", 2):
        answers[key] = answer
        if killed is None:
            time.sleep(0.3)
            killed = ray.get(seen.all.remote())[-1]  # began last, so it is still planning
            os.kill(killed, signal.SIGKILL)
    processes = ray.get(seen.all.remote())
    assert answers == expected, "answers differ from those of one process"
    assert len(processes) > len(questions), "nothing was asked again"
    assert set(processes) - {killed}, "no other worker took over"
    print(f"ok: {len(questions)} questions, {len(processes)} attempts")


if __name__ == "__main__":
    main()
