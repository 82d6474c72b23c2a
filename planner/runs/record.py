"""The run format as records: one measured or hand-written training run.

Every section knows the fields that Meshwright reads; those that only inform a reader are listed in
`INFORMATIVE`. Anything else is unknown: refused in a file that someone wrote (a typing error must not pass in
silence), reported as ignored in a row of published measurements.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster_specs.errors import InputError
from cluster_specs.record import first_problem
from planner.errors import UnknownName

INFORMATIVE: Mapping[str, frozenset[str]] = {
    "model": frozenset({"params_b", "active_params_b", "attn_note"}),
    "hardware": frozenset({"gpu_mem_gb", "peak_tflops_16bit", "peak_tflops_fp8"}),
    "parallel": frozenset(
        [
            "note",
            "dp_inferred",
            "dp_printed",
            "grad_accum_printed",
            "compile",
            "fp8_recipe",
            "cuda_graph",
            "moe_dispatcher",
            "moe_a2a_overlap",
            "async_tp",
            "mp_mode",
            "zero_group",
            "vocab_method",
            "layers_per_virtual_stage",
            "pp_layout",
            "cpu_offload_layers",
            "megatron_fsdp",
            "root_reshard_after_forward",
            "reshard_after_forward",
            "norm",
            "rope",
            "loss",
            "loss_parallel",
            "param_dtype",
        ]
    ),
    "measured": frozenset({"hfu", "derived", "memory_model_gib"}),
}
"""Fields that describe a published run to its reader and change nothing in the plan."""


class Section(BaseModel):
    """One table of a run; keys that it does not know are kept apart in ``model_extra``."""

    model_config = ConfigDict(
        frozen=True, extra="allow", use_attribute_docstrings=True, protected_namespaces=()
    )


class ModelSection(Section):
    """What is trained: a shipped ``name``, a ``config`` path, or sizes (handed on as they are)."""

    name: str | None = None
    config: str | None = None
    """Path of a Hugging Face config.json or its folder, relative to the run file."""
    seq: int | None = Field(default=None, gt=0)
    """Tokens per sequence."""
    layers: int | None = Field(default=None, gt=0)
    hidden: int | None = Field(default=None, gt=0)


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
    cp: int | None = Field(default=None, gt=0)
    ep: int | None = Field(default=None, gt=0)
    etp: int | None = Field(default=None, gt=0)
    vp: int | str | None = None
    dp_shard: int | None = Field(default=None, gt=0)
    dp_replicate: int | None = Field(default=None, gt=0)
    fsdp_degree: int | None = Field(default=None, gt=0)
    sequence_parallel: bool | None = None
    zero_stage: int | None = Field(default=None, ge=0, le=3)
    sharding: str | None = None
    micro_batch: int | None = Field(default=None, gt=0)
    global_batch: int | None = Field(default=None, gt=0)
    """Sequences per optimizer step."""
    grad_accum: int | None = Field(default=None, gt=0)
    num_microbatches: int | None = Field(default=None, gt=0)
    recompute: str | None = None
    schedule: str | None = None
    precision: str | None = None
    grad_dtype: str | None = None
    reduce_dtype: str | None = None
    master_dtype: str | None = None
    mp_mode: str | None = None
    optim: str | None = None
    attention: str | None = None
    attn: str | None = None
    stack: str | None = None
    wrap: str | None = None
    """``titan``: embedding, blocks and head are units of FSDP, as torchtitan wraps them; ``block``: blocks are."""
    fused_loss: bool | None = None
    zero_group: int | None = None
    act_offload: bool | None = None
    act_offload_fraction: float | None = Field(default=None, ge=0, le=1)
    cpu_offload_optimizer: bool | None = None
    cpu_offload_layers: int | None = None


class MeasuredSection(Section):
    """What was printed about the run."""

    step_time_s: float | None = Field(default=None, gt=0)
    tokens_per_s: float | None = Field(default=None, gt=0)
    tokens_per_s_per_gpu: float | None = Field(default=None, gt=0)
    tflops_per_gpu: float | None = None
    mfu: float | None = None
    memory_gib_per_gpu: float | None = Field(default=None, gt=0)
    tensor_gib_per_gpu: float | None = Field(default=None, gt=0)
    ok: bool | None = None
    """False: crashed, usually out of memory."""


class RunFile(BaseModel):
    """One run: model, hardware, parallelism and, where it was measured, the result."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=()
    )

    id: str | None = None
    source: str | None = None
    quality: str | None = None
    task: str | None = None
    series: str | None = None
    """The table or tool that the run comes from; decides the software stack where none is given."""
    nodes: int | None = None
    notes: str | None = None
    flops_convention: str | None = None
    flags: tuple[str, ...] = ()
    check: Mapping[str, Any] = {}
    model: ModelSection
    hardware: HardwareSection
    parallel: ParallelSection = ParallelSection()
    measured: MeasuredSection | None = None

    def unknown_fields(self) -> tuple[str, ...]:
        """Dotted names of fields that are neither read nor known to be informative."""
        found = []
        for name in ("hardware", "parallel"):
            extra = getattr(self, name).model_extra or {}
            found += [f"{name}.{key}" for key in extra if key not in INFORMATIVE[name]]
        return tuple(found)


def parse_run(row: Mapping[str, Any]) -> RunFile:
    """`RunFile` of a row; ``InputError`` names the first field that is wrong."""
    if isinstance(row.get("model"), str):
        row = {**row, "model": {"name": row["model"]}}
    if isinstance(row.get("hardware"), str):
        row = {**row, "hardware": {"cluster": row["hardware"]}}
    for key in row:
        if key not in RunFile.model_fields:
            raise UnknownName("field", key, RunFile.model_fields)
    try:
        return RunFile.model_validate(row)
    except ValidationError as error:
        where = f"run {row['id']}: " if "id" in row else ""
        raise InputError(where + first_problem(error)) from error


def refuse_unknown_fields(run: RunFile) -> None:
    """``InputError`` for the first field that a hand-written run has and nobody reads."""
    for dotted in run.unknown_fields():
        section, key = dotted.split(".")
        known = type(getattr(run, section)).model_fields
        raise UnknownName(f"field of {section}", key, known)
