"""The order in which practitioners decide, as plans to price: each step costs more communication than the last."""

import math
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.units import format_bandwidth
from planner.errors import InputError
from planner.evaluation.evaluator import Evaluator
from planner.plans import Estimate, Job, Parallelism, Plan
from planner.search import faster_pipeline
from planner.search.space import SEARCHED_POLICIES, scale_up_size, tensor_degrees


class Step(NamedTuple):
    """A plan that was tried."""

    words: str
    estimate: Estimate
    usable_bytes: float
    """Device memory less the job's headroom."""

    @property
    def fits(self) -> bool:
        """Room is left for the headroom."""
        return self.estimate.fits and self.estimate.memory_bytes <= self.usable_bytes


class Decision(NamedTuple):
    """One question of the walk, what was tried for it, and what follows."""

    title: str
    tried: tuple[Step, ...]
    remark: str = ""


class Walk:
    """Prices the steps of one plan's model, cluster and job."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.cluster, self.job = plan, plan.cluster, plan.job
        self.evaluator = Evaluator(plan.model, plan.cluster, plan.job)
        self.domain = scale_up_size(plan.cluster)

    def step(self, words: str, choice: Parallelism, job: Job | None = None) -> Step:
        """Price ``choice``."""
        evaluator = self.evaluator if job is None else Evaluator(self.plan.model, self.cluster, job)
        usable = self.cluster.device.memory * (1 - self.job.memory_headroom)
        return Step(words, evaluator.estimate(choice), usable)

    def choice(self, data: int, recompute: str, zero: int, shard: int, **degrees: int) -> Parallelism:
        """A plan with micro-batches of one sequence and states sharded over ``shard`` neighbours."""
        names = {0: "NO_SHARD", 3: "FULL_SHARD" if shard == data else "HYBRID_SHARD"}
        return Parallelism.model_validate(
            {
                "data": data,
                **degrees,
                "num_microbatches": self.job.global_batch // data,
                "zero_stage": zero,
                "sharding": names[zero],
                "shard_degree": shard,
                "replicate_degree": data // shard,
                "recompute": recompute,
            }
        )

    def ranks(self, devices: int) -> int:
        """Most data-parallel ranks on ``devices`` that the batch can be dealt out to."""
        return math.gcd(self.job.global_batch, devices)

    def first_that_fits(self, words: str, data: int, zero: int, shard: int, **degrees: int) -> Step:
        """With no more recomputation than it takes; the lightest where nothing fits."""
        tried = (
            self.step(f"{words}, recompute {policy}", self.choice(data, policy, zero, shard, **degrees))
            for policy in SEARCHED_POLICIES
        )
        step = next(tried)
        while not step.fits and (lighter := next(tried, None)) is not None:
            step = lighter
        return step


def steps(plan: Plan) -> Iterator[Decision]:
    """The walk up to the chosen plan, which is the last step."""
    walk = Walk(plan)
    yield _one_device(walk)
    yield _memory_optimisations(walk)
    devices = plan.plan.num_devices
    if walk.domain > 1 and devices > 1:
        yield _one_domain(walk)
    if devices > walk.domain:
        yield _all_data_parallel(walk)
    if plan.job.adapter is None and devices > 1 and (split := _split_operators(walk)).tried:
        yield split
    if (faster := faster_pipeline(plan)) is not None:
        yield _cut_layers(walk, faster.plan)
    yield _chosen(walk)


def _one_device(walk: Walk) -> Decision:
    step = walk.step("States whole, nothing recomputed", walk.choice(1, "none", 0, 1))
    faster = step.estimate.step_time_s / walk.evaluator.estimate(walk.plan.plan).step_time_s
    remark = f"The plan below is {faster:,.1f} times as fast." if faster > 1 else ""
    return Decision(f"Does one {walk.cluster.device.name} do?", (step,), remark)


def _memory_optimisations(walk: Walk) -> Decision:
    full = walk.choice(1, "full", 0, 1)
    tried = [walk.step("Everything recomputed", full)]
    if walk.job.optimizer == "adamw":
        small = walk.job.model_copy(update={"optimizer": "adamw8bit"})
        tried.append(walk.step("with an 8-bit optimizer too", full, small))
    away = full.model_copy(update={"offload": ("optimizer",)})
    with suppress(InputError):  # hosts at an unknown distance and some optimizers have no price
        tried.append(walk.step("or with the optimizer on the host", away))
    return Decision("Do memory optimisations make it fit one device?", tuple(tried))


def _one_domain(walk: Walk) -> Decision:
    data = walk.ranks(min(walk.domain, walk.plan.plan.num_devices))
    step = walk.first_that_fits(f"ZeRO 3 over {data}", data, 3, data)
    return Decision(
        f"Does one scale-up domain do: {walk.domain} devices{_joined_by(walk.cluster, 0)}?", (step,)
    )


def _joined_by(cluster: ClusterSpec, tier: int) -> str:
    if cluster.torus is not None and tier == 0:
        return f" on a torus of {format_bandwidth(cluster.torus.bandwidth)} links"
    if tier >= len(cluster.links):
        return ""
    link = cluster.links[tier]
    return f" on {link.name}, {format_bandwidth(link.bandwidth)} each"


def _all_data_parallel(walk: Walk) -> Decision:
    data = walk.ranks(walk.plan.plan.num_devices)
    near = math.gcd(data, walk.domain)
    tried = [walk.first_that_fits(f"ZeRO 3 over all {data}", data, 3, data)]
    if 1 < near < data:
        words = f"Hybrid: ZeRO 3 over {near} near ranks, {data // near} replicas"
        tried.append(walk.first_that_fits(words, data, 3, near))
    slow = walk.cluster.links[-1] if walk.cluster.links else None
    remark = f"Beyond the domain: {slow.name}, {format_bandwidth(slow.bandwidth)} a device." if slow else ""
    return Decision("Does data parallelism alone do?", tuple(tried), remark)


def _split_operators(walk: Walk) -> Decision:
    """Tensor (or expert) parallelism as wide as the fast links, ZeRO 3 for the rest."""
    devices = walk.plan.plan.num_devices
    width = max(
        (t for t in tensor_degrees(walk.evaluator.graph, walk.cluster) if devices % t == 0), default=1
    )
    tried = []
    if width > 1:
        data = walk.ranks(devices // width)
        words = f"Tensor parallel {width}" + (f", ZeRO 3 over {data}" if data > 1 else "")
        tried.append(walk.first_that_fits(words, data, 3 if data > 1 else 0, data, tensor=width))
    experts = math.gcd(walk.evaluator.graph.dims.get("experts", 1), walk.ranks(devices), walk.domain)
    if experts > 1:
        data = walk.ranks(devices)
        words = f"Experts over {experts} ranks, ZeRO 3 over {data}"
        tried.append(walk.first_that_fits(words, data, 3, data, expert=experts))
    return Decision("Do operators split inside the fast links help?", tuple(tried))


def _cut_layers(walk: Walk, faster: Parallelism) -> Decision:
    """A pipeline that is not searched unasked, as the model is small for a node."""
    step = walk.step(_words(faster), faster)
    return Decision(f"Would stages joined by slow links help (--pipeline {faster.pipeline})?", (step,))


def _chosen(walk: Walk) -> Decision:
    choice = walk.plan.plan
    stages = f"Its {choice.pipeline} stages send only activations between them, so they may cross slow links."
    return Decision("The plan", (walk.step(_words(choice), choice),), stages if choice.pipeline > 1 else "")


def _words(choice: Parallelism) -> str:
    degrees = ", ".join(
        f"{name} {getattr(choice, name)}"
        for name in ("data", "tensor", "pipeline", "context", "expert")
        if getattr(choice, name) > 1
    )
    return f"{degrees or 'One device'}, ZeRO {choice.zero_stage}, micro-batch {choice.micro_batch}, " + (
        f"recompute {choice.recompute}"
    )
