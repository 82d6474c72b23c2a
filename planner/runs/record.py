"""The run format as records: one measured or hand-written training run.

Every section knows the fields that Meshwright reads; those that only inform a reader are listed in
`INFORMATIVE`. Anything else is unknown: refused in a file that someone wrote (a typing error must not pass in
silence), reported as ignored in a row of published measurements.
"""

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from cluster_specs.errors import InputError
from cluster_specs.record import first_problem
from planner.errors import UnknownName
from planner.models.adapters import Adapter
from planner.models.measured import RUN_FIELDS

INFORMATIVE: Mapping[str, frozenset[str]] = {
    "model": frozenset({"params_b", "active_params_b", "attn_note"}),
    "hardware": frozenset({"gpu_mem_gb", "peak_tflops_16bit", "peak_tflops_fp8"}),
    "parallel": frozenset(
        [
            "note",
            "dp_inferred",
            "dp_printed",
            "grad_accum_printed",
            "fp8_recipe",
            "mp_mode",
            "zero_group",
            "vocab_method",
            "layers_per_virtual_stage",
            "cpu_offload_layers",
            "megatron_fsdp",
            "root_reshard_after_forward",
            "norm",
            "rope",
            "loss",
            "param_dtype",
            "clip",
        ]
    ),
    "measured": frozenset({"hfu", "derived", "memory_model_gib"}),
}
"""Fields that describe a published run to its reader and change nothing in the plan."""


def _none_of_zero(value: Any) -> Any:
    return None if value == 0 and not isinstance(value, bool) else value


def _none_of_nothing(value: Any) -> Any:
    """Zero, NaN, infinity, true or false in place of a measurement say that there is none."""
    number = isinstance(value, float | int)
    return None if number and (isinstance(value, bool) or value == 0 or not math.isfinite(value)) else value


def _share(value: Any) -> Any:
    """A utilisation; per cent would be taken for a run a hundred times as fast."""
    found = _none_of_nothing(value)
    if isinstance(found, float | int) and not 0 < found <= 1:
        raise ValueError("must be a share of the peak, above 0 and at most 1 (0.4, not 40)")
    return found


def _none_of_rest(value: Any) -> Any:
    return None if value == -1 else _none_of_zero(value)


def _none_of_share(value: Any) -> Any:
    return None if isinstance(value, float) and 0 < value < 1 else value


def _text(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list) else value


def _stage_number(value: Any) -> Any:
    """A stage written as ``ZeRO-3`` or ``stage3``."""
    named = (
        re.fullmatch(r"(zero|stage)[ _-]?(stage)?[ _-]?([0-3])", value, re.IGNORECASE)
        if isinstance(value, str)
        else None
    )
    return int(named[3]) if named else value


def _number(value: Any) -> Any:
    """A whole number written as text."""
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]+", value) else value


def _recompute_text(value: Any) -> Any:
    if value in (0, 1) and isinstance(value, int):
        return "full" if value else "none"
    return f"selective:{'+'.join(map(str, value))}" if isinstance(value, list) and value else value


Degree = Annotated[int | None, Field(gt=0), BeforeValidator(_none_of_zero)]
"""A degree that configurations switch off with 0."""

Shard = Annotated[int | None, Field(gt=0), BeforeValidator(_none_of_rest)]
"""A degree of sharding; torchtitan writes -1 for all ranks that are left."""

Figure = Annotated[float | None, Field(gt=0), BeforeValidator(_none_of_nothing)]
"""A measurement, where there is one."""


class Section(BaseModel):
    """One table of a run; keys that it does not know are kept apart in ``model_extra``."""

    model_config = ConfigDict(
        frozen=True, extra="allow", use_attribute_docstrings=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _blanks_are_absent(cls, fields: Any) -> Any:
        """Tables that were once CSV have empty texts where nothing was published."""
        return {k: v for k, v in fields.items() if v != ""} if isinstance(fields, Mapping) else fields


class ModelSection(Section):
    """What is trained: a shipped ``name``, a ``config`` path, or sizes (handed on as they are)."""

    name: str | None = None
    config: str | None = None
    """Path of a Hugging Face config.json or its folder, relative to the run file."""
    seq: int | None = Field(default=None, gt=0)
    """Tokens per sequence."""
    max_predictions_per_seq: int | None = Field(default=None, gt=0)
    """Tokens of each that an encoder's head predicts; None: all, or as the configuration says."""
    dropout: float | None = Field(default=None, ge=0, lt=1)
    """In place of every share that the model drops; None: as the configuration says."""
    attention_dropout: float | None = Field(default=None, ge=0, lt=1)
    """The same of attention's probabilities alone, where that is another; None: as ``dropout``."""
    layers: int | None = Field(default=None, gt=0)
    hidden: int | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _sizes_are_numbers(cls, fields: Any) -> Any:
        """Sizes from tables of text; a model's name stays one."""
        texts = ("name", "config")
        if not isinstance(fields, Mapping):
            return fields
        return {key: value if key in texts else _number(value) for key, value in fields.items()}

    @property
    def by_sizes(self) -> bool:
        """Whether sizes say what the model is, not a name or a file, beside which they are not read."""
        return self.config is None and (self.layers is not None or self.hidden is not None)


class HardwareSection(Section):
    """Where it runs: a ``cluster`` by name or path, or a device and how many."""

    cluster: str | None = None
    gpu: str | None = None
    n_gpus: int | None = Field(default=None, gt=0)
    gpus_per_node: int | None = Field(default=None, gt=0)
    intra_link: str | None = None
    inter_link: str | None = None
    slices: int | None = Field(default=None, gt=0)
    devices_per_chip: int | None = Field(default=None, gt=0)
    """Devices that a framework sees per printed "GPU": 2 where degrees count TPU cores."""
    topology: str | None = None
    """Torus shape of a slice: ``4x4x8``."""


class ParallelSection(Section):
    """How it is split, in the words of the source."""

    dp: int | None = Field(default=None, gt=0)
    """All data-parallel ranks."""
    tp: int | None = Field(default=None, gt=0)
    pp: int | None = Field(default=None, gt=0)
    cp: Degree = None
    ep: Degree = None
    etp: int | None = Field(default=None, gt=0)
    """Tensor degree inside an expert: 1 where the expert ranks include the tensor ranks."""
    moe_dispatcher: str | None = None
    """How tokens reach experts: ``alltoall``, ``deepep``, ``hybridep``."""
    expert_routing: str | None = None
    """``balanced`` or ``consecutive``: which experts a router that is balanced by force gives to tokens."""
    moe_capacity_factor: Annotated[float | None, Field(gt=0), BeforeValidator(_none_of_rest)] = None
    """Tokens of an expert over their mean, beyond which they are dropped and up to which it is padded; -1: none are."""
    moe_a2a_overlap: bool | None = None
    """The exchange runs beside the computation of another micro-batch."""
    vp: Annotated[int | str | None, BeforeValidator(_none_of_zero)] = None
    pp_layout: str | None = None
    """Layers of each stage as Megatron writes them: ``Et*4|(t*4|)*14tmL``."""
    dp_shard: Shard = None
    dp_replicate: Shard = None
    fsdp_degree: Shard = None
    sequence_parallel: bool | None = None
    zero_stage: Annotated[int | None, Field(ge=0, le=3), BeforeValidator(_stage_number)] = None
    sharding: str | None = None
    micro_batch: Annotated[int | None, Field(gt=0), BeforeValidator(_none_of_share)] = None
    """Sequences of a data rank at once; a part of one, as programs print for each device, says no such number."""
    global_batch: int | None = Field(default=None, gt=0)
    """Sequences per optimizer step."""
    grad_accum: int | None = Field(default=None, gt=0)
    num_microbatches: int | None = Field(default=None, gt=0)
    recompute: Annotated[str | None, BeforeValidator(_recompute_text)] = None
    """A policy in words; true is ``full``, false ``none``, a list what ``selective`` recomputes."""
    schedule: str | None = None
    precision: str | None = None
    autocast: bool = False
    """Weights stay in fp32, and PyTorch's autocast lowers what products read."""
    grad_dtype: str | None = None
    reduce_dtype: str | None = None
    master_dtype: str | None = None
    mp_mode: str | None = None
    optim: str | None = None
    attention: str | None = None
    attn: str | None = None
    stack: str | None = None
    compile: bool | None = None
    """Whether blocks and loss are compiled, of PyTorch's stacks."""
    narrow_weight_gathers: bool = False
    """As `Job.narrow_weight_gathers` (torchao's ``enable_fsdp_float8_all_gather``)."""
    narrow_attention: str | None = None
    """Scales of attention in 8 bits, as in `Job.narrow_attention` (Transformer Engine's ``fp8_dpa``)."""
    narrow_gate_inputs: bool = False
    """What gated activations read is kept in 8 bits (Megatron Core's ``activation_func_fp8_input_store``)."""
    step_in_backward: bool = False
    """Each weight is stepped once its gradient is there (torchtitan's ``early_step_in_backward``)."""
    async_tp: bool | None = None
    """Whether PyTorch gathers and sums over tensor ranks beside products."""
    reshard_after_forward: Any = None
    """PyTorch's word: layers' weights are freed after the forward, kept, or kept in parts by so many ranks."""
    loss_parallel: bool | None = None
    """False: every tensor rank has the logits of all words, gathered from the parts that each makes."""
    wrap: str | None = None
    """``titan``: embedding, blocks and head are units of FSDP, as torchtitan wraps them; ``block``: blocks are."""
    fused_loss: bool | None = None
    mlp_tiles: int = Field(default=1, gt=0)
    """Parts of a sequence over which feed-forward layers go one after the other."""
    document_len: int | None = Field(default=None, gt=0)
    """Tokens of a document where sequences are packed with several that do not see each other."""
    cuda_graph: str | None = None
    """What is replayed from captured graphs: ``full_iteration``, or an implementation and the parts of layers
    (``transformer_engine/[attn, moe_router]``)."""
    zero_group: int | None = None
    act_offload: bool | None = None
    act_offload_fraction: float | None = Field(default=None, ge=0, le=1)
    cpu_offload_optimizer: bool | None = None
    cpu_offload_weights: bool | None = None
    """Weights live on the host with their gradients and states (FSDP2's ``CPUOffloadPolicy``, ZeRO-Offload's
    parameters), so that the host steps them."""
    cpu_offload_layers: int | None = None


class MeasuredSection(Section):
    """What was printed about the run."""

    step_time_s: Figure = None
    tokens_per_s: Figure = None
    tokens_per_s_per_gpu: Figure = None
    tflops_per_gpu: Any = None
    mfu: Annotated[Any, BeforeValidator(_share)] = None
    memory_gib_per_gpu: Figure = None
    memory_kind: Literal["used", "reserved"] | None = None
    """Whether that is what the driver reports, or what the allocator has reserved; None: as the source prints."""
    tensor_gib_per_gpu: Figure = None
    tensor_rank: Literal["first", "fullest"] = "fullest"
    """Pipeline rank whose live tensors were printed: a log of rank 0 counts those of the first."""
    ok: bool | None = None
    """False: crashed, usually out of memory."""


class RunFile(BaseModel):
    """One run: model, hardware, parallelism and, where it was measured, the result."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        use_attribute_docstrings=True,
        protected_namespaces=(),
        coerce_numbers_to_str=True,
    )

    id: str | None = None
    source: Any = None
    quality: Any = None
    task: Any = None
    series: str | None = None
    """The table or tool that the run comes from; decides the software stack where none is given."""
    nodes: Any = None
    notes: Annotated[str | None, BeforeValidator(_text)] = None
    flops_convention: Any = None
    flags: Any = None
    check: Any = None
    model: ModelSection
    hardware: HardwareSection
    parallel: ParallelSection = ParallelSection()
    adapter: Adapter | None = None
    """Trained in place of the model's own weights, in the words of peft's ``LoraConfig``."""
    measured: MeasuredSection | None = None

    def unknown_fields(self) -> tuple[str, ...]:
        """Dotted names of fields that are neither read nor known to be informative."""
        found = list(self.model_extra or {})
        for name in ("model", "hardware", "parallel", "measured"):
            extra = getattr(getattr(self, name), "model_extra", None) or {}
            known = INFORMATIVE[name] | (
                RUN_FIELDS if name == "model" and self.model.by_sizes else frozenset()
            )
            found += [f"{name}.{key}" for key in extra if key not in known]
        return tuple(found)


def parse_run(row: Mapping[str, Any]) -> RunFile:
    """`RunFile` of a row; ``InputError`` names the first field that is wrong."""
    if isinstance(row.get("model"), str):
        row = {**row, "model": {"name": row["model"]}}
    if isinstance(row.get("hardware"), str):
        row = {**row, "hardware": {"cluster": row["hardware"]}}
    row = {key: value for key, value in row.items() if value is not None or key in ("model", "hardware")}
    try:
        return RunFile.model_validate(row)
    except ValidationError as error:
        where = f"run {row['id']}: " if "id" in row else ""
        raise InputError(where + first_problem(error)) from error


def refuse_unknown_fields(run: RunFile) -> None:
    """``InputError`` for the first field that a hand-written run has and nobody reads."""
    for dotted in run.unknown_fields():
        section, _, key = dotted.rpartition(".")
        if not section:
            raise UnknownName("field", key, RunFile.model_fields)
        if section == "model" and key in RUN_FIELDS:
            raise InputError(
                f"{dotted} is read beside layers and hidden only: {run.model.name or 'the file'} has its own"
            )
        known = [*type(getattr(run, section)).model_fields, *(RUN_FIELDS if section == "model" else ())]
        raise UnknownName(f"field of {section}", key, known)
