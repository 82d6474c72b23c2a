"""Single changes that could make a plan fit, each tried for real: by the search, or by the evaluator.

A choice that the user left open was searched already, so only pinned choices, the job and the hardware are
changed. Degrees that depend on the changed one (data parallelism, above all) are released.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from cluster_specs.catalog import list_devices, what_if
from cluster_specs.errors import InputError
from cluster_specs.record import Record
from cluster_specs.units import GIB
from cost_models.memory import state_bytes, weight_bytes
from cost_models.quantization import quantized_bytes
from planner.analysis.limits import longest_sequence
from planner.analysis.questions import Progress, Question, fitting, known, priced
from planner.errors import Infeasible
from planner.evaluation.setting import trained_parameters
from planner.exporters.registry import chunks_loss
from planner.plans import Parallelism, Plan, Sharding
from planner.search.numbers import divisors
from planner.search.space import SEARCHED_POLICIES, scale_up_size

Kind = Literal["plan", "training", "hardware"]

KINDS: tuple[Kind, ...] = ("plan", "training", "hardware")
"""From the least change to the greatest: another plan, another training run, another machine."""

MORE_NODES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Multiples of the cluster that are tried."""

LARGE_PART = 0.1
"""Share of memory from which on what makes a component smaller is tried."""

SHARDING_LADDER: tuple[tuple[int, Sharding], ...] = (
    (0, "NO_SHARD"),
    (1, "NO_SHARD"),
    (2, "SHARD_GRAD_OP"),
    (3, "HYBRID_SHARD"),
    (3, "FULL_SHARD"),
)
"""(ZeRO stage, sharding), each with less memory than the one before."""


class Remedy(Record):
    """One change that makes the plan fit."""

    change: str
    """What to do, in words."""
    kind: Kind
    """What it changes: the plan only, what is trained, or the hardware."""
    memory_bytes: float
    step_time_s: float
    time_cost_fraction: float
    """Device-seconds per token over those of the plan that does not fit, minus one."""
    plan: Parallelism


class Change(NamedTuple):
    """A change to try: its words, and the question it leads to."""

    words: str
    kind: Kind
    question: Question


def remedies(question: Question, judged: Plan, progress: Progress | None = None) -> tuple[Remedy, ...]:
    """Changes after which ``judged`` fits with the job's headroom: least change first, then least time lost.

    Of each sort of change only the mildest that helps is listed.
    """
    tried = (_first_that_fits(ladder, judged, progress) for ladder in _ladders(question, judged))
    found = [remedy for remedy in tried if remedy is not None]
    shorter = _shorter_sequence(question, judged)
    found += [shorter] if shorter is not None else []
    return tuple(sorted(found, key=lambda r: (KINDS.index(r.kind), r.time_cost_fraction, r.change)))


def _first_that_fits(ladder: Iterator[Change], judged: Plan, progress: Progress | None) -> Remedy | None:
    for change in ladder:
        try:
            plan = fitting(change.question, progress)
        except (InputError, Infeasible):
            continue  # this rung does not exist for the model or the cluster
        if plan is not None and known(plan).fits_with(change.question.job.memory_headroom):
            return _remedy(change.words, change.kind, plan, judged)
    return None


def _remedy(words: str, kind: Kind, plan: Plan, judged: Plan) -> Remedy:
    estimate = known(plan)
    return Remedy(
        change=words,
        kind=kind,
        memory_bytes=estimate.memory_bytes,
        step_time_s=estimate.step_time_s,
        time_cost_fraction=known(judged).tokens_per_s_per_device / estimate.tokens_per_s_per_device - 1,
        plan=plan.plan,
    )


# --- ladders: sorts of change, mildest first ------------------------------------------------------------


def _ladders(question: Question, judged: Plan) -> Iterator[Iterator[Change]]:
    yield _recompute(question)
    yield _micro_batch(question)
    yield _sharding(question)
    for axis in ("tensor", "context", "pipeline"):
        yield _degree(question, axis)
    yield _optimizer(question)
    yield _base(question)
    yield _offload(question)
    yield _loss(question, judged)
    yield _more_nodes(question)
    yield _larger_device(question, known(judged).memory_bytes)


def _recompute(question: Question) -> Iterator[Change]:
    now = question.pins.recompute
    if now is None or now not in SEARCHED_POLICIES:
        return
    for policy in SEARCHED_POLICIES[SEARCHED_POLICIES.index(now) + 1 :]:
        yield Change(f"--recompute {policy} instead of {now}", "plan", question.pinned(recompute=policy))


def _micro_batch(question: Question) -> Iterator[Change]:
    """Sizes that cut the batch wherever the pinned one does."""
    now = question.pins.micro_batch
    for smaller in reversed(divisors(now or 1)[:-1]):
        yield Change(
            f"--micro-batch {smaller} instead of {now}", "plan", question.pinned(micro_batch=smaller)
        )


def _sharding(question: Question) -> Iterator[Change]:
    pins = question.pins
    if pins.zero_stage is None and pins.sharding is None:
        return
    allowed = [
        step
        for step, (zero, sharding) in enumerate(SHARDING_LADDER)
        if pins.zero_stage in (None, zero) and pins.sharding in (None, sharding)
    ]
    now = f"--sharding {pins.sharding}" if pins.zero_stage is None else f"--zero {pins.zero_stage}"
    one_domain = scale_up_size(question.cluster) >= question.cluster.num_devices
    for zero, sharding in SHARDING_LADDER[max(allowed, default=0) + 1 :]:
        if sharding == "HYBRID_SHARD" and one_domain:
            continue  # that is full sharding
        words = f"--zero {zero} --sharding {sharding} instead of {now}"
        yield Change(words, "plan", question.pinned(zero_stage=zero, sharding=sharding))


def _degree(question: Question, axis: str) -> Iterator[Change]:
    now = getattr(question.pins, axis)
    degree = 2 * (now or 0)
    while 0 < degree <= question.cluster.num_devices:
        words = f"--{axis} {degree} instead of {now}{_released(question)}"
        yield Change(words, "plan", question.pinned(**{axis: degree, "data": None}))
        degree *= 2


def _released(question: Question) -> str:
    """What is said of data parallelism where it was pinned, and has to follow another degree."""
    return "" if question.pins.data is None else ", --data left open"


def _optimizer(question: Question) -> Iterator[Change]:
    if question.job.optimizer == "adamw":
        changed = question.working(optimizer="adamw8bit")
        yield Change("--optimizer adamw8bit: states in 8 bits instead of 32", "training", changed)


def _base(question: Question) -> Iterator[Change]:
    adapter = question.job.adapter
    if adapter is not None and adapter.base != "nf4":
        changed = question.working(adapter=adapter.model_copy(update={"base": "nf4"}))
        yield Change("--base nf4: frozen weights in 4 bits, as QLoRA has them", "training", changed)


def _offload(question: Question) -> Iterator[Change]:
    now = question.pins.offload or ()
    if "optimizer" not in now:
        changed = question.pinned(offload=("optimizer", *now))
        yield Change("--offload optimizer: its states live and are updated on the host", "plan", changed)


def _loss(question: Question, judged: Plan) -> Iterator[Change]:
    """The logits in chunks, where they are a large part and some target that starts the stack can ask for that."""
    estimate = known(judged)
    large = estimate.memory.get("logits_and_loss", 0.0) >= LARGE_PART * estimate.memory_bytes
    if large and not question.job.fused_loss and chunks_loss(question.job.stack):
        changed = question.working(fused_loss=True)
        yield Change("--fused-loss: full logits never exist", "plan", changed)


def _more_nodes(question: Question) -> Iterator[Change]:
    cluster = question.cluster
    for times in MORE_NODES:
        if _least_states(question) > question.usable_bytes * cluster.num_devices * times:
            continue  # not even if every state were split evenly
        try:
            larger = what_if(cluster, {"nodes": cluster.nodes * times})
        except InputError:
            return  # a single torus has no network to join it to another
        words = f"{larger.num_devices} devices ({larger.nodes} nodes) instead of {cluster.num_devices}"
        words += _released(question)
        yield Change(words, "hardware", question._replace(cluster=larger).pinned(data=None))


def _least_states(question: Question) -> float:
    """Weights, gradients and optimizer states of one copy of the model [bytes]."""
    job, model, frozen = question.job, question.model, 0.0
    if job.adapter is not None:
        base = quantized_bytes(job.adapter.base).data if job.adapter.base else weight_bytes(job.precision)
        frozen = base * model.parameters
    states = state_bytes(
        trained_parameters(model, job),
        job.precision,
        job.optimizer,
        job.master_weights,
        job.grad_dtype,
        keeps_copy=False,
    )
    return states.total + frozen


def _larger_device(question: Question, needed: float) -> Iterator[Change]:
    """Devices of the same maker with enough memory for what the plan needs now, the smallest first."""
    now = question.cluster.device
    enough = [
        d
        for d in list_devices()
        if (d.vendor, d.kind) == (now.vendor, now.kind)
        and d.memory * (1 - question.job.memory_headroom) >= needed
    ]
    for device in sorted(enough, key=lambda d: (d.memory, d.name)):
        cluster = what_if(question.cluster, {"device": device.name})
        words = f"{device.name} ({device.memory / GIB:.0f} GiB) instead of {now.name}"
        yield Change(words, "hardware", question._replace(cluster=cluster))


def _shorter_sequence(question: Question, judged: Plan) -> Remedy | None:
    """The same plan at the longest sequence that it has room for."""
    length = longest_sequence(judged)
    if length is None or length >= question.job.seq_len:
        return None
    plan = priced(question.working(seq_len=length), judged.plan)
    return _remedy(f"--seq-len {length} instead of {question.job.seq_len}", "training", plan, judged)
