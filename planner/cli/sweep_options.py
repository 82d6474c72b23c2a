"""Options of sweeps: inputs with several values, what economics need, how the work is done."""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.catalogues import complete_models
from planner.cli.numbers import number_option
from planner.cli.options import FIELDS, AdapterOptions, from_options
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.analysis.economics import Terms
    from planner.sweep.ladders import Goal

TERMS, SWEPT, RUNNING = "Economics", "Job: one value or several, separated by commas", "Running"


def term(*names: str, help: str, **kwargs: Any) -> Any:
    """An option of economics."""
    return typer.Option(*names, help=help, rich_help_panel=TERMS, **kwargs)


def swept(*names: str, help: str, **kwargs: Any) -> Any:
    """An option with several values."""
    return typer.Option(*names, help=help, rich_help_panel=SWEPT, **kwargs)


def running(*names: str, help: str, **kwargs: Any) -> Any:
    """An option of how the work is done."""
    return typer.Option(*names, help=help, rich_help_panel=RUNNING, **kwargs)


@dataclass(frozen=True, slots=True)
class RunningOptions:
    """Where and how the searches run."""

    jobs: Annotated[int, running("--jobs", help="Processes of this machine.", min=1)] = 1
    engine: Annotated[str, running("--engine", help="local, or ray: the cluster of RAY_ADDRESS.")] = "local"
    resume: Annotated[
        Path | None, running("--resume", help="Keep finished points here, and plan only what it lacks.")
    ] = None

    def to_arguments(self) -> dict[str, Any]:
        """Keywords of ``sweep`` and ``size``."""
        return {"jobs": self.jobs, "engine": self.engine, "journal": self.resume}


@dataclass(frozen=True, slots=True)
class TermsOptions:
    """What economics need to know."""

    price: Annotated[
        float | None,
        term("--price", parser=number_option, help="Of a device for an hour, instead of list price."),
    ] = None
    price_kind: Annotated[str, term("--price-kind", help="on-demand, reserved or spot.")] = "on-demand"
    grid: Annotated[
        float | None, term("--grid", parser=number_option, help="Carbon of electricity, in kg CO2e/kWh.")
    ] = None
    pue: Annotated[
        float | None, term("--pue", parser=number_option, help="Energy of the facility over its computers.")
    ] = None
    device_mtbf: Annotated[
        str | None, term("--device-mtbf", help="Time between failures of one device: 79000h.")
    ] = None
    node_mtbf: Annotated[str | None, term("--node-mtbf", help="... of the rest of a node.")] = None
    checkpoint_time: Annotated[
        str | None, term("--checkpoint-time", help="Training stands still so long for one.")
    ] = None
    checkpoint_interval: Annotated[
        str | None, term("--checkpoint-interval", help="Between two; the best one by default.")
    ] = None
    restart_time: Annotated[
        str | None, term("--restart-time", help="From a failure to training again, warm-up included.")
    ] = None
    repair_time: Annotated[
        str | None, term("--repair-time", help="Until a failed node is back, where nobody replaces it.")
    ] = None
    spares: Annotated[int, term("--spares", help="Idle nodes that take over at once.")] = 0
    stragglers: Annotated[
        float, term("--stragglers", parser=number_option, help="Further share of time lost to slow devices.")
    ] = 0.0
    failures: Annotated[bool, term("--failures/--no-failures", help="Count failures and checkpoints.")] = True

    def to_terms(self, tokens: float) -> "Terms":
        """The `Terms`; ``InputError`` for what is no duration."""
        from planner.analysis.economics import Terms

        fields = {
            "tokens": tokens,
            "price_kind": self.price_kind,
            "price_per_device_hour": self.price,
            "grid_kg_per_kwh": self.grid,
            "facility_overhead": self.pue,
            "device_mtbf_s": _seconds(self.device_mtbf, "--device-mtbf"),
            "node_mtbf_s": _seconds(self.node_mtbf, "--node-mtbf"),
            "checkpoint_s": _seconds(self.checkpoint_time, "--checkpoint-time"),
            "checkpoint_interval_s": _seconds(self.checkpoint_interval, "--checkpoint-interval"),
            "restart_s": _seconds(self.restart_time, "--restart-time"),
            "repair_s": _seconds(self.repair_time, "--repair-time"),
            "spares": self.spares,
            "straggler_fraction": self.stragglers,
            "failures": self.failures,
        }
        return from_options(Terms, fields)


ADAPTER_OPTIONS = frozenset(field.name for field in fields(AdapterOptions))


@dataclass(frozen=True, slots=True)
class SweptJobOptions:
    """What is trained, each with one value or several."""

    seq_len: Annotated[
        str | None,
        swept("--seq-len", help="Tokens per sequence: 4096,8192. By default 8192, or what the model takes."),
    ] = None
    global_batch: Annotated[
        str | None, swept("--global-batch", "--batch", help="Sequences per optimizer step.")
    ] = None
    batch_tokens: Annotated[str | None, swept("--batch-tokens", help="The same in tokens.")] = None
    devices: Annotated[str | None, swept("--devices", help="Cluster sizes, instead of those named.")] = None
    precision: Annotated[str, swept("--precision", help="bf16, fp16, fp8, fp4, fp32.")] = "bf16"
    optimizer: Annotated[
        str, swept("--optimizer", help="adamw, adamw8bit, adamw_bnb_8bit, sgd, plain-sgd, adafactor, muon.")
    ] = "adamw"
    stack: Annotated[
        str | None,
        swept(
            "--stack", help="Software stacks; by default torch-fsdp2, on TPUs jax-xla, on Trainium neuronx."
        ),
    ] = None
    settings: Annotated[
        list[str] | None,
        swept(
            "--set",
            help="NAME=VALUES, any number of times: a field of the job or of the pins, compute, memory, "
            "memory-bandwidth, scale-up, network, latency, or a dotted path of the cluster; 2x doubles what is there.",
        ),
    ] = None

    @property
    def has_batch(self) -> bool:
        """The global batch is given, one way or the other."""
        return self.global_batch is not None or self.batch_tokens is not None

    def to_axes(self, models: Iterable[str]) -> dict[str, tuple[Any, ...]]:
        """Input -> values, in the order of the options; ``InputError`` for what cannot be read.

        Without a length, that of sequences which all ``models`` take.
        """
        from cluster_specs.changes import KNOBS

        named = {
            "devices": self.devices,
            "seq_len": self.seq_len or str(usual_length_of(models)),
            "global_batch": self.global_batch,
            "batch_tokens": self.batch_tokens,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "stack": self.stack,
        }
        axes = {name: values_of(text, name) for name, text in named.items() if text is not None}
        for setting in self.settings or ():
            name, equals, text = setting.partition("=")
            if not equals:
                raise InputError(f"--set {setting!r}: write it as NAME=VALUE,VALUE")
            field = name.strip().replace("-", "_")
            if field in ADAPTER_OPTIONS:
                raise InputError(f"--set {name}: all points train the same adapter; give --{name} by itself")
            known = name.strip() if name.strip() in KNOBS else FIELDS.get(field, field)
            axes[known] = values_of(text, f"--set {name}")
        return axes


USUAL_LENGTH = 8192
"""Tokens per sequence of Llama 3 before its context was lengthened (arXiv:2407.21783, section 3.2)."""


def usual_length_of(models: Iterable[str]) -> int:
    """Tokens per sequence where nobody says how many; what is no model is refused where it is planned."""
    from planner.models.catalog import usual_length
    from planner.tracing.lifting.reading import load_model

    lengths = [USUAL_LENGTH]
    for name in models:
        with suppress(InputError):
            lengths.append(usual_length(load_model(name.strip()), USUAL_LENGTH))
    return min(lengths)


def takes_images(name: str) -> bool:
    """Whether the model is fed images, which fix its length; False for what is no model."""
    from planner.models.catalog import sequence_length
    from planner.tracing.lifting.reading import load_model

    with suppress(InputError):
        return sequence_length(load_model(name)) is not None
    return False


@dataclass(frozen=True, slots=True)
class WantedOptions:
    """What has to be trained, and by when and for how much."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Shipped name or file; with --compute, the law may choose.",
            autocompletion=complete_models,
        ),
    ] = None
    tokens: Annotated[
        float | None,
        typer.Option(
            "--tokens", parser=number_option, help="To train on: 15e12. A ResNet's images have one each."
        ),
    ] = None
    samples: Annotated[
        float | None,
        typer.Option("--samples", parser=number_option, help="Images or sequences, instead of --tokens."),
    ] = None
    compute: Annotated[
        float | None,
        typer.Option("--compute", parser=number_option, help="FLOPs to spend, instead of --tokens."),
    ] = None
    law: Annotated[str, typer.Option("--law", help="Scaling law that divides --compute.")] = "chinchilla"
    deadline: Annotated[str | None, typer.Option("--deadline", help="90d, 6w, 2000h.")] = None
    budget: Annotated[
        float | None,
        typer.Option("--budget", parser=number_option, help="Money, in the currency of the prices."),
    ] = None

    def to_workload(self) -> tuple[str, float, tuple[str, ...]]:
        """Model, tokens or `samples`, and what was assumed for them; ``InputError`` where they do not follow."""
        amounts = {"tokens": self.tokens, "samples": self.samples, "compute": self.compute}
        given = {name: amount for name, amount in amounts.items() if amount is not None}
        if len(given) != 1:
            raise InputError("give one of --tokens, --samples (images or sequences) and --compute")
        ((name, amount),) = given.items()
        if name == "compute":
            from planner.analysis.budget import scaled

            return scaled(amount, self.law, self.model)
        if self.model is None:
            raise InputError("give --model, or --compute for the scaling law to choose one")
        if not 0 < amount < math.inf:
            raise InputError(f"--{name} {amount:g}: give a number above 0, such as 15e12")
        return self.model, amount, ()

    def to_goal(self) -> "Goal":
        """The `Goal`; ``InputError`` for what is no duration or no amount."""
        from planner.sweep.ladders import Goal

        deadline = _seconds(self.deadline, "--deadline")
        return from_options(Goal, {"deadline_s": deadline, "budget": self.budget})


def _seconds(text: str | None, option: str) -> float | None:
    from cluster_specs.units import parse_duration

    try:
        return None if text is None else parse_duration(text)
    except InputError as error:
        raise InputError(f"{option}: {error}") from error


WHOLE = frozenset({"devices", "seq_len", "global_batch", "batch_tokens"})


def values_of(text: str, name: str) -> tuple[Any, ...]:
    """The values between the commas; whole numbers where the input counts something."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InputError(f"{name}: {text!r} has an empty value between its commas")
    if name not in WHOLE:
        return tuple(_number(part) for part in parts)
    try:
        numbers = tuple(float(part) for part in parts)
    except ValueError:
        raise InputError(f"{name}: {text!r} is not a list of whole numbers such as 8,16,32") from None
    if any(not number.is_integer() or number < 1 for number in numbers):
        raise InputError(f"{name}: {text!r} is not a list of whole numbers above zero")
    return tuple(int(number) for number in numbers)


def _number(text: str) -> str | float:
    """A plain number as one; anything else, with units or without, as it is."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text
