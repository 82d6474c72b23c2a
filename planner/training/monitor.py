"""Steps of a running job, measured beside what was predicted for them, as a row that `validate` reads."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_specs.catalog import load_cluster
from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Record
from cluster_specs.units import GIB
from planner.api import AnyPlan, judged
from planner.errors import InputError
from planner.models.catalog import load_model
from planner.models.model import Model
from planner.plans import Plan

WARM_UP = 2
"""First steps that do not count: they compile, allocate and fill caches."""


class Measured(Record):
    """What a job did, beside what its plan's estimate says."""

    steps: int
    """Steps that count."""
    step_time_s: float
    """Median of them."""
    predicted_step_time_s: float
    memory_bytes: float | None
    """Peak of this process's device, or of the process where the device is a CPU; None where nobody tells."""
    predicted_memory_bytes: float

    @property
    def step_time_error(self) -> float:
        """Predicted over measured, minus one."""
        return self.predicted_step_time_s / self.step_time_s - 1


class Monitor:
    """Measures the steps of a job that runs ``plan``.

    Use it so::

    monitor = Monitor(plan)
    for batch in batches:
        with monitor.step() as done:
            loss = train(batch)
            done(loss)            # waits for JAX arrays; torch is waited for anyway
    monitor.write("runs.jsonl")   # from one process
    """

    def __init__(self, plan: AnyPlan, warm_up: int = WARM_UP) -> None:
        self.plan = judged(plan)
        self._warm_up = warm_up
        self._seconds: list[float] = []

    @contextmanager
    def step(self) -> Iterator[Callable[[Any], None]]:
        """Time one optimizer step, all its micro-batches included; gives a function that waits for a result."""
        start = time.perf_counter()
        yield _wait
        _synchronise()
        self._seconds.append(time.perf_counter() - start)

    @property
    def measured(self) -> Measured:
        """What has been measured so far; ``InputError`` before any step counts."""
        counted = self._seconds[self._warm_up :]
        if not counted:
            raise InputError(
                f"nothing measured: {len(self._seconds)} steps, the first {self._warm_up} warm up"
            )
        estimate = self.plan.estimate
        assert estimate is not None
        return Measured(
            steps=len(counted),
            step_time_s=statistics.median(counted),
            predicted_step_time_s=estimate.step_time_s,
            memory_bytes=_peak_bytes(),
            predicted_memory_bytes=estimate.memory_bytes,
        )

    def write(self, path: str | Path) -> None:
        """Append the run to ``path`` as one JSON line, for ``meshwright validate`` and ``calibrate``.

        A model or cluster that is not a shipped one is written beside it.
        """
        target = Path(path).resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        row = self._row(target)
        with target.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")

    def _row(self, target: Path) -> dict[str, Any]:
        plan, measured = self.plan, self.measured
        p, job = plan.plan, plan.job
        results: dict[str, float] = {"step_time_s": measured.step_time_s}
        if measured.memory_bytes is not None:
            results["memory_gib_per_gpu"] = measured.memory_bytes / GIB
        return {
            "id": f"{plan.model.name}/{plan.cluster.name}/{time.strftime('%Y-%m-%dT%H:%M:%S')}",
            "source": f"planner.Monitor, median of {measured.steps} steps",
            "model": {**_model_reference(plan, target), "seq": job.seq_len},
            "hardware": {"cluster": _cluster_reference(plan.cluster, target)},
            "parallel": {
                "dp": p.data,
                "tp": p.tensor,
                "pp": p.pipeline,
                "cp": p.context,
                "ep": p.expert,
                "etp": 1 if p.experts_over_tensor else None,
                "vp": p.virtual_stages,
                "dp_shard": p.shard_degree,
                "zero_stage": p.zero_stage,
                "sharding": p.sharding,
                "sequence_parallel": p.sequence_parallel,
                "micro_batch": p.micro_batch,
                "global_batch": job.global_batch,
                "recompute": p.recompute,
                "schedule": p.schedule,
                "precision": job.precision,
                "grad_dtype": job.grad_dtype,
                "optim": job.optimizer,
                "attention": job.attention,
                "stack": job.stack,
            },
            "measured": results,
        }


def _model_reference(plan: Plan, target: Path) -> dict[str, str]:
    """The model by its shipped name, or as a file beside ``target``."""
    model: Model = plan.model
    try:
        if load_model(model.name) == model:
            return {"name": model.name}
    except InputError:
        pass
    data = (
        model.graph.model_dump(mode="json") if model.graph else {**model.config, "model_type": model.family}
    )
    file = target.with_name(f"{target.stem}.model.json")
    file.write_text(json.dumps(data))
    return {"config": str(file)}


def _cluster_reference(cluster: ClusterSpec, target: Path) -> str:
    """The cluster by its shipped name, or as a file beside ``target``."""
    try:
        if load_cluster(cluster.name) == cluster:
            return cluster.name
    except InputError:
        pass
    file = target.with_name(f"{target.stem}.cluster.json")
    file.write_text(cluster.model_dump_json())
    return str(file)


def _wait(result: Any) -> None:
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(result)


def _synchronise() -> None:
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()


def _peak_bytes() -> float | None:
    """Peak memory as the driver reports it, as near as the framework tells."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
        unused = torch.cuda.memory_reserved() - torch.cuda.max_memory_reserved()
        return float(total - free - unused)
    jax: Any = sys.modules.get("jax")
    if jax is not None and jax.devices()[0].platform != "cpu":
        peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        return None if peak is None else float(peak)
    return _peak_resident_bytes()


def _peak_resident_bytes() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)
