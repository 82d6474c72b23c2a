"""Where the points of a sweep are planned: in this process, in several, or on a Ray cluster.

An engine takes questions by key and yields each answer as it comes. A worker that is lost is replaced and its points
are asked again; a point that loses worker after worker ends the sweep, with everything else on disk.
"""

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stdout
from types import MappingProxyType
from typing import Any

from planner.analysis.questions import Question
from planner.errors import InputError, PlannerError
from planner.plans import Objective
from planner.sweep.answers import Answer, ask

Finished = Generator[tuple[str, Answer], None, None]
"""Answers by key, as they are finished."""

Engine = Callable[[Mapping[str, Question], Objective, int], Finished]
"""(questions by key, objective, workers) -> answers."""

RETRIES = 3
"""Times that lost workers are replaced without any point being finished in between."""


def here(questions: Mapping[str, Question], objective: Objective, jobs: int) -> Finished:
    """One after the other in this process."""
    for key, question in questions.items():
        yield key, ask(question, objective)


def processes(questions: Mapping[str, Question], objective: Objective, jobs: int) -> Finished:
    """In ``jobs`` processes of this machine."""
    if jobs == 1:
        yield from here(questions, objective, jobs)
        return
    left = dict(questions)
    lost = 0
    while left:
        try:
            for key, answer in _in_pool(left, objective, jobs):
                del left[key]
                lost = 0
                yield key, answer
        except BrokenProcessPool:
            lost += 1
            if lost > RETRIES:
                raise PlannerError(
                    f"workers were lost {lost} times in a row, killed or out of memory: use fewer --jobs"
                ) from None


def _in_pool(questions: Mapping[str, Question], objective: Objective, jobs: int) -> Finished:
    """One pool, until all is answered or a worker is lost; workers leave an interrupt to this process."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(
        min(jobs, len(questions)),
        multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        futures = {pool.submit(ask, question, objective): key for key, question in questions.items()}
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        # Whoever stops a sweep does not wait for the points that are being planned.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def on_ray(questions: Mapping[str, Question], objective: Objective, jobs: int) -> Finished:
    """On the Ray cluster that ``RAY_ADDRESS`` names, or on one of ``jobs`` workers that is started here.

    Raises ``InputError`` where Ray is not installed. Ray asks again what a lost worker was planning.
    """
    ray = _ray()
    started = not ray.is_initialized()
    if started:
        size = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": jobs, "include_dashboard": False}
        ray.init(logging_level="error", log_to_driver=False, **size)
    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(ask)
    # Ray tells of lost workers on stdout, which belongs to the answer.
    with redirect_stdout(sys.stderr):
        try:
            waiting = {remote.remote(question, objective): key for key, question in questions.items()}
            while waiting:
                (reference,), _ = ray.wait(list(waiting), num_returns=1)
                yield waiting.pop(reference), _fetched(ray, reference)
        finally:
            if started:
                ray.shutdown()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("--engine ray needs Ray: pip install 'meshwright[ray]'") from None
    return ray


def _fetched(ray: Any, reference: Any) -> Answer:
    try:
        answer: Answer = ray.get(reference)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError) as error:
        raise PlannerError(f"Ray lost the workers of one point {RETRIES + 1} times: {error}") from error
    return answer


ENGINES: Mapping[str, Engine] = MappingProxyType({"local": processes, "ray": on_ray})
"""By the names of ``--engine``."""
