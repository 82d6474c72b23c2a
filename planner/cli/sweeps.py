"""``what-if`` and ``size``: many plans at once, and what they cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner.cli.catalogues import complete_clusters, complete_models
from planner.cli.files import print_json, write_files
from planner.cli.options import OutputOptions, PinOptions
from planner.cli.progress import Progress
from planner.cli.thresholds import check_thresholds
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.analysis.economics import Terms
    from planner.plans import Objective

TERMS, SWEPT, RUNNING = "Economics", "Job: one value or several, separated by commas", "Running"


def _term(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=TERMS, **kwargs)


def _swept(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=SWEPT, **kwargs)


def _running(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=RUNNING, **kwargs)


@dataclass(frozen=True, slots=True)
class TermsOptions:
    """What economics need to know."""

    price: Annotated[
        float | None, _term("--price", help="Of a device for an hour, instead of list price.")
    ] = None
    price_kind: Annotated[str, _term("--price-kind", help="on-demand, reserved or spot.")] = "on-demand"
    grid: Annotated[float | None, _term("--grid", help="Carbon of electricity [kg CO2e/kWh].")] = None
    pue: Annotated[float | None, _term("--pue", help="Energy of the facility over its computers.")] = None
    device_mtbf: Annotated[
        str | None, _term("--device-mtbf", help="Time between failures of one device: 79000h.")
    ] = None
    node_mtbf: Annotated[str | None, _term("--node-mtbf", help="... of the rest of a node.")] = None
    checkpoint_time: Annotated[
        str | None, _term("--checkpoint-time", help="Training stands still so long for one.")
    ] = None
    checkpoint_interval: Annotated[
        str | None, _term("--checkpoint-interval", help="Between two; the best one by default.")
    ] = None
    restart_time: Annotated[
        str | None, _term("--restart-time", help="From a failure to training again, warm-up included.")
    ] = None
    repair_time: Annotated[
        str | None, _term("--repair-time", help="Until a failed node is back, where nobody replaces it.")
    ] = None
    spares: Annotated[int, _term("--spares", help="Idle nodes that take over at once.")] = 0
    stragglers: Annotated[
        float, _term("--stragglers", help="Further share of time lost to slow devices.")
    ] = 0.0
    failures: Annotated[bool, _term("--failures/--no-failures", help="Count failures and checkpoints.")] = (
        True
    )

    def to_terms(self, tokens: float) -> "Terms":
        """The `Terms`; ``InputError`` for what is no duration."""
        from cluster_specs.record import validated
        from cluster_specs.units import parse_duration
        from planner.analysis.economics import Terms

        def seconds(text: str | None) -> float | None:
            return None if text is None else parse_duration(text)

        fields = {
            "tokens": tokens,
            "price_kind": self.price_kind,
            "price_per_device_hour": self.price,
            "grid_kg_per_kwh": self.grid,
            "facility_overhead": self.pue,
            "device_mtbf_s": seconds(self.device_mtbf),
            "node_mtbf_s": seconds(self.node_mtbf),
            "checkpoint_s": seconds(self.checkpoint_time),
            "checkpoint_interval_s": seconds(self.checkpoint_interval),
            "restart_s": seconds(self.restart_time),
            "repair_s": seconds(self.repair_time),
            "spares": self.spares,
            "straggler_fraction": self.stragglers,
            "failures": self.failures,
        }
        return validated(Terms, fields, "economics")


@dataclass(frozen=True, slots=True)
class SweptJobOptions:
    """What is trained, each with one value or several."""

    seq_len: Annotated[str, _swept("--seq-len", help="Tokens per sequence: 4096,8192.")]
    global_batch: Annotated[
        str | None, _swept("--global-batch", "--batch", help="Sequences per optimizer step.")
    ] = None
    batch_tokens: Annotated[str | None, _swept("--batch-tokens", help="The same in tokens.")] = None
    devices: Annotated[str | None, _swept("--devices", help="Cluster sizes, instead of those named.")] = None
    precision: Annotated[str, _swept("--precision", help="bf16, fp16, fp8, fp32.")] = "bf16"
    optimizer: Annotated[str, _swept("--optimizer", help="adamw, adamw8bit, sgd, adafactor, muon.")] = "adamw"
    stack: Annotated[str, _swept("--stack", help="Software stacks.")] = "torch-fsdp2"
    settings: Annotated[
        list[str] | None,
        _swept(
            "--set",
            help="NAME=VALUES, any number of times: a field of the job or of the pins, compute, memory, "
            "memory-bandwidth, scale-up, network, latency, or a dotted path of the cluster; 2x doubles what is there.",
        ),
    ] = None

    def to_axes(self) -> dict[str, tuple[Any, ...]]:
        """Input -> values, in the order of the options; ``InputError`` for what cannot be read."""
        named = {
            "devices": self.devices,
            "seq_len": self.seq_len,
            "global_batch": self.global_batch,
            "batch_tokens": self.batch_tokens,
            "precision": self.precision,
            "optimizer": self.optimizer,
            "stack": self.stack,
        }
        axes = {name: _values(text, name) for name, text in named.items() if text is not None}
        if "global_batch" not in axes and "batch_tokens" not in axes:
            raise InputError("give the global batch: --global-batch in sequences or --batch-tokens in tokens")
        for setting in self.settings or ():
            name, equals, text = setting.partition("=")
            if not equals:
                raise InputError(f"--set {setting!r}: write it as NAME=VALUE,VALUE")
            axes[name.strip()] = _values(text, f"--set {name}")
        return axes


WHOLE = frozenset({"devices", "seq_len", "global_batch", "batch_tokens"})


def _values(text: str, name: str) -> tuple[Any, ...]:
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
    if any(number != int(number) or number < 1 for number in numbers):
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


def what_if(
    models: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Shipped name or file; several by commas.", autocompletion=complete_models
        ),
    ],
    clusters: Annotated[
        list[str],
        typer.Argument(
            metavar="CLUSTER...",
            help="Kinds (with --devices), or name:nodes.",
            autocompletion=complete_clusters,
        ),
    ],
    job: SweptJobOptions,
    pins: PinOptions,
    terms: TermsOptions,
    output: OutputOptions,
    tokens: Annotated[float, _term("--tokens", help="To train on.")] = 1e12,
    objective: Annotated[str, typer.Option(help="What each plan minimises: time, cost or devices.")] = "time",
    threshold: Annotated[
        float, typer.Option(help="Scaling efficiency below which more devices stop paying.", min=0, max=1)
    ] = 0.9,
    path: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write the sweep: .json, .csv or .parquet; any number of times."),
    ] = None,
    jobs: Annotated[int, _running("--jobs", help="Processes of this machine.", min=1)] = 1,
    engine: Annotated[str, _running("--engine", help="local, or ray: the cluster of RAY_ADDRESS.")] = "local",
    resume: Annotated[
        Path | None, _running("--resume", help="Keep finished points here, and plan only what it lacks.")
    ] = None,
) -> None:
    """Sweep any inputs; every point is a full search for the best plan.

    meshwright what-if llama-3.1-70b dgx-h100 dgx-h200 --devices 64,128,256 --seq-len 8192 --batch 1024 --jobs 2
    """
    from planner.sweep.running import sweep
    from planner.sweep.tables import content

    axes = {"model": _values(models, "MODEL"), "cluster": tuple(clusters), **job.to_axes()}
    fixed = {name: value for name, value in pins.to_pins().model_dump().items() if value is not None}
    with Progress(output.quiet) as progress:
        answer = sweep(
            axes,
            terms.to_terms(tokens),
            fixed=fixed,
            objective=cast("Objective", objective),
            jobs=jobs,
            engine=engine,
            journal=resume,
            threshold=threshold,
            progress=lambda done, total: progress(f"{done:,} of {total:,} searches done"),
        )
    write_files({file: content(answer, file) for file in path or ()})
    dumped = answer.model_dump(mode="json", by_alias=True)
    if output.json:
        print_json(dumped)
    else:
        from planner.report.console import show
        from planner.report.sweeps import sweep_report

        show(sweep_report(answer))
    check_thresholds(dumped, output.fail_if or ())
