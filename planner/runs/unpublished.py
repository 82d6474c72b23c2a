"""What a run that ran must have had, where its source does not say: the least change under which it fits, and the
version of its software that its peak memory tells.

Only fields that were not published are touched, and every change is listed with the run's other assumptions.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from cluster_specs.units import GIB
from planner.errors import InputError, PlannerError
from planner.plans import Estimate, Plan
from planner.runs.flop_rates import counts_second_forward
from planner.runs.origins import LEANER
from planner.runs.record import RunFile
from planner.runs.vocabulary import UNSAID

TOLD = "as its memory tells"
"""Why a version was chosen."""

COUNTED = "as its FLOPs count"
"""Why layers are taken to be recomputed."""

TOLD_APART = 1.2
"""Ratio of two versions' memory from which a printed peak tells one from the other: most predictions are nearer."""

NEARER = 3.0
"""Times that the printed peak is to be nearer to one of them than to the other, in its logarithm."""


class Choice(NamedTuple):
    """A plan with some open fields chosen otherwise."""

    plan: Plan
    fields: Mapping[str, str]
    """Field -> the value chosen."""
    why: str = "fits only so"

    def assumed(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """The run's assumptions ``before``, with the chosen fields in place of the usual ones."""
        others = [text for text in before if text.partition("=")[0] not in self.fields]
        return (*others, *(f"{field}={value} ({self.why})" for field, value in self.fields.items()))


class Open(NamedTuple):
    """A field that a source may leave open, and a leaner value than the usual one."""

    field: str
    value: str
    is_open: Callable[[RunFile, Plan], bool]
    part: str
    changes: Callable[[Plan], Mapping[str, Any]]
    """Fields of the plan's ``part`` -> their leaner values."""


def _no_recompute(run: RunFile, plan: Plan) -> bool:
    return run.parallel.recompute in UNSAID and plan.plan.recompute == "none"


def _partly_recomputed(run: RunFile, plan: Plan) -> bool:
    return run.parallel.recompute in UNSAID and plan.plan.recompute != "full"


def _no_master_type(run: RunFile, plan: Plan) -> bool:
    parallel = run.parallel
    return parallel.master_dtype is None and parallel.mp_mode is None and plan.job.master_weights


def _no_gradient_type(run: RunFile, plan: Plan) -> bool:
    parallel = run.parallel
    published = parallel.grad_dtype or parallel.reduce_dtype or parallel.mp_mode
    return published is None and plan.job.grad_dtype == "fp32"


def _doubtful_micro_batch(run: RunFile, plan: Plan) -> bool:
    """A micro-batch that can be halved, where notes say that it is another source's or assumed, or where the printed
    steps of accumulation are those of half of it.
    """
    noted = r"(micro-?batch|mbs)\b[^.;]*\b(taken from|from|inferred|assumed)\b"
    borrowed = re.search(noted, run.notes or "", re.IGNORECASE) is not None
    accumulated = (run.parallel.model_extra or {}).get("grad_accum_printed")
    doubtful = borrowed or accumulated == 2 * plan.plan.num_microbatches
    return doubtful and plan.plan.micro_batch % 2 == 0


def _halved(plan: Plan) -> Mapping[str, Any]:
    parallel = plan.plan
    return {"micro_batch": parallel.micro_batch // 2, "num_microbatches": 2 * parallel.num_microbatches}


def _no_loss(run: RunFile, plan: Plan) -> bool:
    return run.parallel.fused_loss is None and not plan.job.fused_loss


def _custom_remat(run: RunFile, plan: Plan) -> bool:
    """MaxText's ``custom`` says for each tensor whether it stays, goes to the host or is made again."""
    parallel = run.parallel
    return parallel.recompute == "custom" and parallel.act_offload is None and not plan.plan.offload


def _checkpoints(run: RunFile, plan: Plan) -> bool:
    """Where layers are recomputed whole, what is kept may be on the host.

    Source: deepspeed.ai, Azure post of July 2022 ("activation and optimizer states" in main memory).
    """
    return run.parallel.act_offload is None and plan.plan.recompute == "full" and not plan.plan.offload


def _fsdp_activations(run: RunFile, plan: Plan) -> bool:
    """Megatron FSDP's recipes send layers' activations to the host rather than compute them again.

    Source: NVIDIA-NeMo/Megatron-Bridge@v0.2.0 scripts/performance/configs/llama3/workload_base_configs.py: each that
    sets ``use_megatron_fsdp`` sets ``cpu_offloading_num_layers``, to 5 to 40 of 80.
    """
    parallel = run.parallel
    unsaid = (
        parallel.recompute in UNSAID and parallel.act_offload is None and parallel.cpu_offload_layers is None
    )
    on_host = plan.cluster.device.host_bandwidth is not None
    return parallel.sharding == "Megatron-FSDP" and unsaid and on_host


def _always(**changes: Any) -> Callable[[Plan], Mapping[str, Any]]:
    return lambda plan: changes


def _recompute(policy: str, is_open: Callable[[RunFile, Plan], bool]) -> Open:
    return Open("recompute", policy, is_open, "plan", _always(recompute=policy))


def _job(field: str, value: str, is_open: Callable[[RunFile, Plan], bool], **changes: Any) -> Open:
    return Open(field, value, is_open, "job", _always(**changes))


ON_HOST: Mapping[str, Any] = MappingProxyType({"offload": ("activations",)})

HALF = "half of what is said"

SHARES_ON_HOST = (0.25, 0.5, 0.75, 1.0)
"""Of the activations: from few layers' to all."""

OPEN = (
    _job("grad_dtype", "bf16", _no_gradient_type, grad_dtype="bf16"),
    _job("fused_loss", "true", _no_loss, fused_loss=True),
    Open("micro_batch", HALF, _doubtful_micro_batch, "plan", _halved),
    Open("act_offload", "true", _custom_remat, "plan", _always(**ON_HOST)),
    *(
        Open(
            "act_offload_fraction",
            str(share),
            _fsdp_activations,
            "plan",
            _always(**ON_HOST, offload_share=share),
        )
        for share in SHARES_ON_HOST
    ),
    _recompute("selective", _no_recompute),
    _job("master_dtype", "bf16", _no_master_type, master_weights=False, grad_dtype="bf16"),
    _recompute("full", _partly_recomputed),
    Open("act_offload", "true", _checkpoints, "plan", _always(**ON_HOST)),
)
"""From what changes a run least to what changes it most. Attention is no part of it: unfused ones are those of origins
from before there were fused ones (`planner.runs.origins`).
"""


def leaner_choices(run: RunFile, plan: Plan) -> Iterator[Choice]:
    """``plan`` with each open field chosen leaner, one at a time, then with more and more of them."""
    usual = Choice(plan, MappingProxyType({}))
    steps = [step for step in OPEN if step.is_open(run, plan)]
    yield from (_apply(usual, step) for step in steps)
    yield from list(accumulate(steps, _apply, initial=usual))[2:]


def _apply(choice: Choice, step: Open) -> Choice:
    part = getattr(choice.plan, step.part).model_copy(update=dict(step.changes(choice.plan)))
    plan = choice.plan.model_copy(update={step.part: part})
    return Choice(plan, {**choice.fields, step.field: step.value})


class Told(NamedTuple):
    """A run as it is judged."""

    plan: Plan
    estimate: Estimate
    assumed: tuple[str, ...]

    def chosen(self, choice: Choice, estimate: Estimate) -> Self:
        """The run with ``choice`` in place of what was assumed."""
        return type(self)(choice.plan, estimate, choice.assumed(self.assumed))


def as_it_fits(run: RunFile, told: Told, evaluate: Callable[[Plan], Estimate]) -> Told:
    """A run that ran, with what its source leaves open chosen so that it fits; as it is where no choice does.

    A choice that has no price, such as offload to a host at an unknown distance, is none.
    """
    if told.estimate.fits:
        return told
    for choice in leaner_choices(run, told.plan):
        with suppress(InputError, PlannerError):
            found = evaluate(choice.plan)
            if found.fits:
                return told.chosen(choice, found)
    return told


def as_its_flops_tell(
    run: RunFile, told: Told, seconds: float | None, evaluate: Callable[[Plan], Estimate]
) -> Told:
    """A run whose source does not say what it recomputed: all layers, where its rate over ``seconds`` counts them."""
    gpus = run.hardware.n_gpus or told.plan.cluster.num_devices / (run.hardware.devices_per_chip or 1)
    unsaid = _partly_recomputed(run, told.plan)
    if seconds is None or not unsaid or not counts_second_forward(run, told.plan, seconds, gpus):
        return told
    parallel = told.plan.plan.model_copy(update={"recompute": "full"})
    full = Choice(told.plan.model_copy(update={"plan": parallel}), {"recompute": "full"}, COUNTED)
    return told.chosen(full, evaluate(full.plan))


def as_its_memory_tells(run: RunFile, told: Told, evaluate: Callable[[Plan], Estimate]) -> Told:
    """A run whose software may have had either of two versions, with the one that its printed peak memory tells."""
    stack = LEANER.get(told.plan.job.stack) if run.parallel.stack is None else None
    printed = run.measured.memory_gib_per_gpu if run.measured else None
    if stack is None or not printed:
        return told
    job = told.plan.job.model_copy(update={"stack": stack})
    other = Choice(told.plan.model_copy(update={"job": job}), {"stack": stack}, TOLD)
    found, measured = evaluate(other.plan), printed * GIB / (run.hardware.devices_per_chip or 1)
    if memory_tells(measured, told.estimate.memory_bytes, found.memory_bytes):
        return told.chosen(other, found)
    return told


def memory_tells(measured: float, usual: float, leaner: float) -> bool:
    """Whether a ``measured`` peak tells that a run needed the ``leaner`` memory of two rather than the ``usual``."""
    off_usual, off_leaner = (abs(math.log(measured / predicted)) for predicted in (usual, leaner))
    return usual > TOLD_APART * leaner and NEARER * off_leaner < off_usual
