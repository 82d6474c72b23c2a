"""Options that several commands share, as dataclasses.

`planner.cli.flattening` turns such a dataclass into the options of a command and hands it over filled, so that every
command is a function of a few things and an option is defined once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from planner.cli.numbers import share_option, whole_number, whole_option
from planner.cli.thresholds import check_names, read_condition
from planner.errors import InputError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from cluster_specs.record import Record
    from planner.models.adapters import Adapter
    from planner.models.model import Model
    from planner.plans import Job, Pins

JOB, PINS, OUTPUT = "Job", "Pins: parts of the plan to fix", "Output"

PINNED_TO_ONE = ("data", "tensor", "pipeline", "context", "expert")
"""Axes that ``--no-...`` pins to degree 1."""


def _job(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=JOB, **kwargs)


def _pin(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=PINS, **kwargs)


def _output(*names: str, help: str, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=OUTPUT, **kwargs)


SPELLED: Mapping[str, str] = MappingProxyType(
    {
        "memory_headroom": "headroom",
        "zero_stage": "zero",
        "price_per_device_hour": "price",
        "grid_kg_per_kwh": "grid",
        "facility_overhead": "pue",
        "device_mtbf_s": "device-mtbf",
        "node_mtbf_s": "node-mtbf",
        "checkpoint_s": "checkpoint-time",
        "checkpoint_interval_s": "checkpoint-interval",
        "restart_s": "restart-time",
        "repair_s": "repair-time",
        "straggler_fraction": "stragglers",
        "deadline_s": "deadline",
        "r": "lora",
        "target_modules": "lora-targets",
    }
)
"""Fields whose option is called otherwise."""

FIELDS: Mapping[str, str] = MappingProxyType(
    {option.replace("-", "_"): field for field, option in SPELLED.items()}
)
"""The other way round, as `--set` takes both."""


R = TypeVar("R", bound="Record")


def from_options(kind: type[R], fields: Mapping[str, Any]) -> R:
    """A record from options; ``InputError`` names the option whose value is wrong."""
    from pydantic import ValidationError

    from cluster_specs.record import located_problem

    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        field, problem = located_problem(error)
        name, *_ = field.split(".")
        raise InputError(f"--{SPELLED.get(name, name).replace('_', '-')}: {problem}") from error


AS_GIVEN = (
    *("precision", "autocast", "optimizer", "master_weights", "grad_dtype", "reduce_dtype", "attention"),
    *("cuda_graphs", "fused_loss", "step_in_backward", "context_exchange", "token_exchange", "document_len"),
    "expert_imbalance",
)
"""Options that are fields of a `Job`."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What is trained."""

    global_batch: Annotated[
        str, _job("--global-batch", help="Sequences per optimizer step.", metavar="INTEGER")
    ]
    seq_len: Annotated[
        int | None,
        _job(
            "--seq-len",
            help="Tokens per sequence; not for models of images, which fix it.",
            parser=whole_option,
            metavar="INTEGER",
        ),
    ] = None
    tokens: Annotated[bool, _job("--tokens", help="--global-batch counts tokens, not sequences.")] = False
    precision: Annotated[str, _job("--precision", help="bf16, fp16, fp8, fp4 or fp32.")] = "bf16"
    autocast: Annotated[
        bool,
        _job(
            "--autocast", help="Weights stay in fp32, gathered too; torch.autocast lowers what products read."
        ),
    ] = False
    optimizer: Annotated[
        str, _job("--optimizer", help="adamw, adamw8bit, adamw_bnb_8bit, sgd, plain-sgd, adafactor, muon.")
    ] = "adamw"
    master_weights: Annotated[
        bool, _job("--master-weights/--no-master-weights", help="Keep fp32 copies of the weights.")
    ] = True
    grad_dtype: Annotated[str, _job("--grad-dtype", help="Type of gradient sums: fp32 or bf16.")] = "fp32"
    reduce_dtype: Annotated[
        str | None, _job("--reduce-dtype", help="Type in which gradients travel: fp32 or bf16; as the stack.")
    ] = None
    attention: Annotated[
        str,
        _job(
            "--attention",
            help="flash (of the stack), flash-1 or flash-2 (of that version), native (of the device), plain.",
        ),
    ] = "flash"
    cuda_graphs: Annotated[
        bool, _job("--cuda-graphs", help="Whole steps are replayed from captured graphs.")
    ] = False
    fused_loss: Annotated[bool, _job("--fused-loss", help="Never hold full logits.")] = False
    step_in_backward: Annotated[
        bool,
        _job(
            "--step-in-backward",
            help="Each weight is stepped once its gradient is there, which is then freed.",
        ),
    ] = False
    context_exchange: Annotated[
        str | None,
        _job("--context-exchange", help="Keys and values: all_gather, ring, gathered_ring or all_to_all."),
    ] = None
    token_exchange: Annotated[
        str, _job("--token-exchange", help="Tokens to experts: all_to_all, all_gather, deepep or hybridep.")
    ] = "all_to_all"
    document_len: Annotated[
        int | None,
        _job("--document-len", help="Tokens of a document, where sequences are packed with several."),
    ] = None
    expert_imbalance: Annotated[
        float, _job("--expert-imbalance", help="Tokens of the fullest expert-parallel rank over their mean.")
    ] = 1.0
    stack: Annotated[
        str | None,
        _job(
            "--stack",
            help="Software whose habits count; torch-fsdp2, on TPUs jax-xla, on Trainium neuronx. `meshwright targets` "
            "names that of exported files.",
        ),
    ] = None
    headroom: Annotated[
        float,
        _job(
            "--headroom",
            help="Share of device memory to leave free: 0.05 or 5%.",
            parser=share_option,
            metavar="SHARE",
        ),
    ] = 0.05

    def to_job(self, model: "Model", cluster: str, adapter: "Adapter | None" = None) -> "Job":
        """The `Job` that trains ``model``, or an ``adapter``; what else it says is usual on the devices of ``cluster``.

        Raises ``InputError`` where a token batch is no whole number of sequences, or their length is needed.
        """
        from cluster_specs.catalog import load_cluster
        from planner.evaluation.setting import usual_job
        from planner.plans import Job

        usual = usual_job(model, load_cluster(cluster).device)
        seq_len = self.seq_len if self.seq_len is not None else usual.get("seq_len")
        if seq_len is None:
            raise InputError(
                f"--seq-len: {model.name} takes sequences of many lengths; say how many tokens one has"
            )
        return from_options(
            Job,
            {
                "stack": self.stack or usual["stack"],
                "global_batch": self._sequences(seq_len),
                "seq_len": seq_len,
                **{name: getattr(self, name) for name in AS_GIVEN},
                "memory_headroom": self.headroom,
                "adapter": adapter,
            },
        )

    def _sequences(self, seq_len: int) -> int:
        batch = whole_number("--global-batch", self.global_batch)
        if not self.tokens or seq_len <= 0:
            return batch
        sequences, rest = divmod(batch, seq_len)
        if rest or sequences <= 0:
            near = max(1, round(batch / seq_len)) * seq_len
            raise InputError(
                f"a batch of {batch} tokens is no whole number of sequences of {seq_len}: "
                f"the nearest is {near}"
            )
        return sequences


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What is trained in place of a model's own weights."""

    lora: Annotated[int | None, _job("--lora", help="Train adapters of this rank; all else is frozen.")] = (
        None
    )
    lora_targets: Annotated[
        str | None, _job("--lora-targets", help="Adapted modules: q_proj,v_proj, or all-linear.")
    ] = None
    lora_dropout: Annotated[
        float | None, _job("--lora-dropout", help="Share of an adapter's inputs that is dropped.")
    ] = None
    base: Annotated[
        str | None, _job("--base", help="Stored type of frozen weights: nf4 (QLoRA), int8, fp8 or bf16.")
    ] = None

    def to_adapter(self) -> "Adapter | None":
        """The `Adapter`, where there is one; ``InputError`` for options that mean nothing without a rank."""
        from planner.models.adapters import Adapter

        fields = {"target_modules": self.lora_targets, "lora_dropout": self.lora_dropout, "base": self.base}
        given = {name: value for name, value in fields.items() if value is not None}
        if self.lora is None and given:
            option = SPELLED.get(next(iter(given)), next(iter(given)))
            raise InputError(
                f"--{option.replace('_', '-')} is about adapters: give their rank too, --lora 16"
            )
        return None if self.lora is None else from_options(Adapter, {"r": self.lora, **given})


@dataclass(frozen=True, slots=True)
class PinOptions:
    """Parts of the plan that the user fixes."""

    data: Annotated[int | None, _pin("--data", help="Data-parallel ranks in all.")] = None
    tensor: Annotated[int | None, _pin("--tensor", help="Tensor-parallel degree.")] = None
    pipeline: Annotated[int | None, _pin("--pipeline", help="Pipeline stages (devices).")] = None
    context: Annotated[int | None, _pin("--context", help="Context-parallel degree.")] = None
    expert: Annotated[
        int | None, _pin("--expert", help="Expert-parallel degree; divides --data (x --context).")
    ] = None
    no_data: Annotated[bool, _pin("--no-data", help="As --data 1.")] = False
    no_tensor: Annotated[bool, _pin("--no-tensor", help="As --tensor 1.")] = False
    no_pipeline: Annotated[bool, _pin("--no-pipeline", help="As --pipeline 1.")] = False
    no_context: Annotated[bool, _pin("--no-context", help="As --context 1.")] = False
    no_expert: Annotated[bool, _pin("--no-expert", help="As --expert 1.")] = False
    virtual_stages: Annotated[int | None, _pin("--virtual-stages", help="Stages per pipeline device.")] = None
    micro_batch: Annotated[int | None, _pin("--micro-batch", help="Sequences per micro-batch and rank.")] = (
        None
    )
    zero: Annotated[int | None, _pin("--zero", help="ZeRO stage, 0 to 3.")] = None
    sharding: Annotated[
        str | None, _pin("--sharding", help="FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or NO_SHARD.")
    ] = None
    recompute: Annotated[
        str | None,
        _pin("--recompute", help="none, selective, attention or full; one for each stage: full,none."),
    ] = None
    schedule: Annotated[
        str | None,
        _pin(
            "--schedule",
            help="Pipeline schedule (`meshwright schedules`), FILE.csv, FILE.py:FUNCTION, or automatic.",
        ),
    ] = None
    offload: Annotated[
        list[str] | None, _pin("--offload", help="Keep on the host: optimizer, weights, activations or none.")
    ] = None
    unequal_stages: Annotated[
        bool, _pin("--unequal-stages", help="Stages may differ in devices, mesh and recomputation.")
    ] = False

    def to_pins(self, global_batch: int | None = None) -> "Pins":
        """The `Pins`; ``InputError`` where ``--no-...`` contradicts a degree.

        ``global_batch`` says how many micro-batches there are, for a schedule that a function makes.
        """
        from planner.plans import Pins

        degrees = {axis: self._degree(axis) for axis in PINNED_TO_ONE}
        return from_options(
            Pins,
            {
                **degrees,
                "virtual_stages": self.virtual_stages,
                "micro_batch": self.micro_batch,
                "zero_stage": self.zero,
                "sharding": self.sharding,
                "recompute": self.recompute,
                "schedule": self._schedule(global_batch),
                "offload": self._offload(),
                "unequal_stages": self.unequal_stages or None,
            },
        )

    def _schedule(self, global_batch: int | None) -> str | None:
        if self.schedule is None:
            return None
        from planner.runs.schedules import numbers_of, own_schedule

        degrees = (self.pipeline, self.virtual_stages, self.data, self.micro_batch)
        return own_schedule(self.schedule, lambda: numbers_of(*degrees, global_batch))

    def _offload(self) -> tuple[str, ...] | None:
        if self.offload is None:
            return None
        from planner.search.pins import OFFLOADED

        named = tuple(name for name in self.offload if name != "none")
        if unknown := [name for name in named if name not in OFFLOADED]:
            raise InputError(f"--offload {unknown[0]!r}: use {', '.join(OFFLOADED)} or none")
        if named and len(named) < len(self.offload):
            raise InputError(f"--offload none contradicts --offload {named[0]}: leave out one of them")
        return named

    def _degree(self, axis: str) -> int | None:
        degree: int | None = getattr(self, axis)
        if not getattr(self, f"no_{axis}"):
            return degree
        if degree not in (None, 1):
            raise InputError(f"--no-{axis} contradicts --{axis} {degree}: leave out one of them")
        return 1


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """How the answer is given."""

    json: Annotated[
        bool, _output("--json", help="Print the documented JSON, and nothing else, on stdout.")
    ] = False
    quiet: Annotated[bool, _output("--quiet", "-q", help="No progress and no warnings on stderr.")] = False
    fail_if: Annotated[
        list[str] | None,
        _output(
            "--fail-if",
            help="Exit with 4 if this holds, such as 'step_time_s > 10' or 'memory_bytes > 70 GiB'.",
        ),
    ] = None

    def __post_init__(self) -> None:
        """Refuse conditions that cannot be read before anything is searched for."""
        for text in self.fail_if or ():
            read_condition(text)

    def expect(self, kind: "type[BaseModel]", *also: str) -> None:
        """Refuse conditions on what an answer of ``kind``, with the names ``also`` beside its own, does not have."""
        check_names(kind, self.fail_if or (), also)


ScheduleOption = Annotated[
    str | None,
    typer.Option(
        "--schedule", help="Another pipeline schedule: a name, FILE.csv, FILE.py:FUNCTION, or automatic."
    ),
]
