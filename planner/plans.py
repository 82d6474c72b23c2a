"""The answer as data: a plan embeds the model, the cluster and the job, so it can be evaluated for ever.

A plan's mesh has the axes ``tensor``, ``context``, ``expert`` and ``data``, innermost first, and stages are
outermost. ``data`` of a `Parallelism` counts all data-parallel ranks; experts reuse them, so a stage's mesh
has ``expert`` x ``data / expert``. Where experts have more ranks than that, they reuse context ranks as well, which
are then the axis ``context_expert``.

Source: Liu et al., MoE Parallel Folding, arXiv:2504.14960.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from cluster_specs.cluster import ClusterSpec
from cluster_specs.record import Given, Record
from planner.models.adapters import Adapter
from planner.models.model import Model

SCHEMA: Final = "meshwright/plan/1"

SMALL = BeforeValidator(lambda word: word.lower() if isinstance(word, str) else word)
CAPITAL = BeforeValidator(lambda word: word.upper() if isinstance(word, str) else word)
"""Words that may be asked for in any case."""

Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"]
Precision = Literal["bf16", "fp16", "fp8", "fp4", "fp32"]
NARROW: tuple[Precision, ...] = ("fp8", "fp4")
"""Precisions in which only products are computed: everything else stays in bf16."""
Optimizer = Literal["adamw", "adamw8bit", "adamw_bnb_8bit", "sgd", "plain-sgd", "adafactor", "muon"]
Objective = Literal["time", "cost", "devices"]
ZeroStage = Literal[0, 1, 2, 3]
Offload = Literal["optimizer", "weights", "activations"]
Change = Literal["pipeline", "offload", "nodes", "devices_per_node", "recompute", "attention", "cuda_graphs"]
GraphPart = Literal["attn", "mlp", "moe", "moe_router", "moe_preprocess"]
"""What one captured graph holds of a layer: attention; a dense MLP; a mixture whole, up to its router, or to its
exchange of tokens."""
Degree = Annotated[int, Field(gt=0)]


class Job(Given):
    """What is trained, and how: everything that is neither model, cluster nor parallelism."""

    global_batch: int = Field(gt=0, le=10**12)
    """Sequences per optimizer step. Larger numbers are taken for mistakes: to find what divides them takes for ever."""
    seq_len: int = Field(gt=0)
    """Tokens per sequence (of the decoder, where there are two)."""
    precision: Annotated[Precision, SMALL] = "bf16"
    autocast: bool = False
    """Weights stay in fp32, also where they are gathered, and PyTorch's autocast lowers what products read."""
    optimizer: Annotated[Optimizer, SMALL] = "adamw"
    master_weights: bool = True
    """Keep fp32 copies of the weights (and reduce gradients in ``grad_dtype``)."""
    grad_dtype: Annotated[Literal["fp32", "bf16"], SMALL] = "fp32"
    """Type in which gradients are accumulated."""
    reduce_dtype: Literal["fp32", "bf16"] | None = None
    """Type in which gradients travel; None is the software stack's habit."""
    attention: Annotated[Literal["flash", "flash-1", "flash-2", "native", "plain"], SMALL] = "flash"
    """``flash``: the fused kernel that the stack runs by itself; ``flash-1``: the first FlashAttention, of before July
    2023; ``flash-2``: the second, whatever the stack has on later devices; ``native``: that of the device's own
    generation (FlashAttention-3 on Hopper, -4 or cuDNN on Blackwell); ``plain``: products and a softmax."""
    fused_loss: bool = False
    """The loss is computed in chunks, so that full logits never exist."""
    mlp_tiles: int = Field(default=1, gt=0)
    """Parts of a sequence over which feed-forward layers go one after the other, so that gradients inside them are
    those of one part (huggingface/trl pull request 6845, "tile the MLP over the sequence"). All parts keep what their
    backward reads: what computes each again in its backward (DeepSpeed's ``TiledMLP``) is not this."""
    fused_optimizer: bool | None = None
    """The update is one kernel for all weights of a group, or one for each operation (``foreach``); None: by stack."""
    step_in_backward: bool = False
    """Each weight is stepped once its gradient is there, which then goes (torchtitan's ``early_step_in_backward``)."""
    narrow_gathers: bool | None = None
    """In fp8 and fp4 jobs, tensor ranks gather in 8 bits, or in 16 (scales by row); None is the stack's habit."""
    narrow_weight_gathers: bool = False
    """In fp8 jobs, products' weights are gathered in 8 bits (torchao), and kept so (Megatron: ``fp8_param_gather``)."""
    narrow_gate_inputs: bool = False
    """What gated activations read is kept in 8 bits (Megatron Core's ``activation_func_fp8_input_store``)."""
    fp8_scaling: Literal["delayed", "tensorwise", "mxfp8", "blockwise"] | None = None
    """In fp8 jobs, what a scale holds for: a tensor (``delayed``, ``tensorwise``), or blocks, as where nobody says."""
    narrow_attention: Literal["delayed", "tensorwise", "mxfp8"] | None = None
    """In fp8 and fp4 jobs, attention reads 8 bits, scaled so, and keeps them (Transformer Engine's ``fp8_dpa``)."""
    cuda_graphs: bool = False
    """Whole steps are replayed from captured graphs, so that the host never holds up the device."""
    graph_parts: tuple[GraphPart, ...] = ()
    """Parts of layers that are replayed from captured graphs, in the words of Megatron Core's ``cuda_graph_scope``."""
    context_exchange: Literal["all_gather", "ring", "gathered_ring", "all_to_all"] | None = None
    """How ranks that split the sequence get each other's keys and values (`planner.sharding.context`); None is the
    software stack's habit."""
    token_exchange: Literal["all_to_all", "all_gather", "deepep", "hybridep"] = "all_to_all"
    """How tokens reach their experts: a copy per expert, all of a group's tokens on each of its ranks, or one copy per
    node, and rank, as DeepEP or HybridEP sends it."""
    expert_routing: Literal["balanced", "consecutive"] = "balanced"
    """Which experts tokens have: any, all as often, or as many as a token has one after the other, in turn, as routers
    that are balanced by force may give them (torchtitan's, NeMo AutoModel's)."""
    overlap_experts: bool = False
    """Tokens travel to experts and back beside the computation of another micro-batch."""
    document_len: int | None = Field(default=None, gt=0)
    """Tokens of a document where a sequence is packed with several, each of which attends to itself alone; of documents
    that differ the sum of squares over the sum, as scores grow with the square. None: a sequence is one document."""
    expert_imbalance: float = Field(default=1, ge=1)
    """Tokens of the fullest rank of an expert-parallel group over their mean: MaxVio of its loads, plus one.

    Which experts share a rank decides it, so it is measured, not derived (Wang et al., arXiv:2408.15664, section 2).
    """
    expert_capacity: float | None = Field(default=None, gt=0)
    """Tokens that an expert computes over the mean: fewer are padded, those beyond dropped. None: all, no others."""
    adapter: Adapter | None = None
    """Trained in place of the model's own weights; None trains these."""
    stack: str = "torch-fsdp2"
    """Software stack whose habits the memory and overlap models follow: a name of ``cluster_specs`` software."""
    memory_headroom: float = Field(default=0.05, ge=0, lt=1)
    """Share of device memory that a recommended plan leaves free."""

    @model_validator(mode="after")
    def _has_a_token_for_each_tile(self) -> "Job":
        if self.mlp_tiles > self.seq_len:
            raise ValueError(f"mlp_tiles {self.mlp_tiles}: a sequence of {self.seq_len} tokens has fewer")
        return self

    @field_validator("document_len")
    @classmethod
    def _is_within_a_sequence(cls, length: int | None, said: ValidationInfo) -> int | None:
        seq_len = said.data.get("seq_len")  # which has an error of its own where it is missing
        if length is not None and seq_len is not None and length > seq_len:
            raise ValueError(f"must be at most seq_len, {seq_len} tokens")
        return length

    @property
    def attention_kernel(self) -> Literal["flash", "plain"]:
        """Whether attention is fused, whatever its rate."""
        return "plain" if self.attention == "plain" else "flash"

    @property
    def weight_dtype(self) -> str:
        """Type of the weights that modules have, and of the gradients that these get."""
        return "fp32" if self.autocast else self.precision

    @property
    def attention_dtype(self) -> str:
        """Attention kernels of fp8 and fp4 jobs run at the rate of bf16, as Transformer Engine's default does."""
        return "bf16" if self.precision in NARROW else self.precision


class Pins(Given):
    """Parts of the plan that the user fixed; None is free."""

    data: Degree | None = None
    tensor: Degree | None = None
    pipeline: Degree | None = None
    context: Degree | None = None
    expert: Degree | None = None
    virtual_stages: Degree | None = None
    micro_batch: Degree | None = None
    zero_stage: ZeroStage | None = None
    sharding: Annotated[Sharding | None, CAPITAL] = None
    recompute: Annotated[str | None, SMALL] = None
    schedule: str | None = None
    offload: tuple[Offload, ...] | None = None
    unequal_stages: bool | None = None
    """Stages may have different numbers of devices, meshes and recomputation, also where all devices are alike."""


class StagePlan(Record):
    """One pipeline stage (a virtual stage where ``virtual_stages`` > 1)."""

    blocks: tuple[int, int]
    """Half-open range of the graph's layers; the first stage also holds the embedding, the last the head."""
    devices: tuple[int, int]
    """Half-open range of cluster ranks."""
    mesh: Mapping[str, int]
    """Size of each axis of `AXES`."""
    sharding: Mapping[str, Mapping[str, Mapping[str, str]]] = {}
    """block -> operator -> {mesh axis: dim that it splits}; a block that is absent uses the named layout."""
    recompute: str | None = None
    """Policy of this stage where it differs from the plan's."""

    @property
    def degrees(self) -> tuple[int, int, int, int]:
        """Data, tensor, context and expert degree, as a `Parallelism` counts them."""
        axes = ("tensor", "context_expert", "context", "expert", "data")
        tensor, both, context, expert, data = (self.mesh.get(axis, 1) for axis in axes)
        return expert * data, tensor, both * context, both * expert


class Parallelism(Given):
    """Degrees and choices: the ``plan`` object of the JSON contract.

    Stages may differ: each has a mesh and devices of its own. The degrees and the micro-batch are then those of the
    first stage; all stages share the sequences of one micro-batch, ``data * micro_batch`` of them.
    """

    data: Degree = 1
    tensor: Degree = 1
    pipeline: Degree = 1
    context: Degree = 1
    expert: Degree = 1
    virtual_stages: Degree = 1
    micro_batch: Degree = 1
    num_microbatches: Degree = 1
    zero_stage: ZeroStage = 0
    sharding: Sharding = "NO_SHARD"
    shard_degree: Degree = 1
    """Data-parallel (and context) ranks over which states are sharded."""
    replicate_degree: Degree = 1
    secondary_degree: Degree | None = None
    """Ranks that share layers' weights between forward and backward, where these are fewer than share their states
    (ZeRO++'s secondary partition, a number as PyTorch's ``reshard_after_forward``); None: ``zero_stage`` says it.

    Source: Wang et al., ZeRO++, arXiv:2306.10209, section 3.2.
    """
    sequence_parallel: bool = True
    """Norms and residuals are split over the tensor axis along the sequence."""
    experts_over_tensor: bool = False
    """Whole experts are spread over the tensor ranks as well (Megatron's expert tensor degree of 1): Megatron's
    expert degree is then ``tensor`` times ``expert``."""
    recompute: str = "none"
    recompute_every: Degree = 1
    """The policy holds for the first of every so many layers of a stage; the others keep everything."""
    schedule: str = "1f1b"
    stages: tuple[StagePlan, ...] = ()
    offload: tuple[Offload, ...] = ()
    offload_share: float = Field(default=1, gt=0, le=1)
    """Share of the activations that is on the host where ``offload`` names them."""

    @property
    def state_shards(self) -> int:
        """Ranks over which optimizer states are sharded: with ZeRO 0 none shares them."""
        return self.shard_degree if self.zero_stage else 1

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""
        if self.stages_differ:
            return sum(end - start for start, end in {stage.devices for stage in self.stages})
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def expert_ranks(self) -> int:
        """Ranks that experts are spread over: tensor ranks, too, where a layout gives them whole ones."""
        named = self.expert * (self.tensor if self.experts_over_tensor else 1)
        layouts = [
            (s.mesh, axes) for s in self.stages for ops in s.sharding.values() for axes in ops.values()
        ]
        spread = (math.prod(mesh[a] for a, dim in axes.items() if dim == "experts") for mesh, axes in layouts)
        return max(named, max(spread, default=1))

    @property
    def stages_differ(self) -> bool:
        """Whether a stage has another mesh than the plan's degrees say."""
        own = (self.data, self.tensor, self.context, self.expert)
        return any(stage.mesh and stage.degrees != own for stage in self.stages)

    @property
    def context_experts(self) -> int:
        """Context ranks that hold experts of their own: as many as the data ranks leave over of the expert degree."""
        return self.expert // math.gcd(self.expert, self.data)

    @property
    def axes(self) -> dict[str, int]:
        """Size of each axis of a stage's mesh, innermost first; ``context_expert`` only where it splits anything."""
        both = self.context_experts
        expert = self.expert // both
        sizes = {"tensor": self.tensor} | ({"context_expert": both} if both > 1 else {})
        return sizes | {"context": self.context // both, "expert": expert, "data": self.data // expert}

    @model_validator(mode="after")
    def _consistent(self) -> "Parallelism":
        if self.context % self.context_experts:
            raise ValueError(
                f"expert parallel degree {self.expert} must divide the data x context parallel degrees "
                f"{self.data} x {self.context}"
            )
        secondary = self.secondary_degree
        if secondary is None:
            return self
        if self.zero_stage < 3 or "weights" in self.offload:
            raise ValueError(
                f"secondary degree {secondary}: only ZeRO 3 on the device shards weights between forward and backward"
            )
        if self.shard_degree % secondary or not 1 < secondary < self.shard_degree:
            raise ValueError(
                f"secondary degree {secondary} must divide the {self.shard_degree} ranks of a shard group, "
                "and be neither one nor all of them"
            )
        return self


class MemoryMoment(Record):
    """The live tensors of the fullest device at one moment of the step [bytes]."""

    phase: str
    tensor_bytes: float
    tensors: Mapping[str, float]
    """Component -> bytes; adds up to ``tensor_bytes``."""


class Estimate(Record):
    """What a plan is predicted to do. Times in s, memory in bytes of the fullest device."""

    step_time_s: float
    step_time_interval_s: tuple[float, float]
    """80 % interval."""
    tokens_per_s: float
    tokens_per_s_per_device: float
    model_flops_per_s_per_device: float
    mfu: float
    """Model FLOPs (forward and backward, masked attention as nothing, no recomputation) over the dense peak."""
    hfu: float
    """As ``mfu``, recomputation counted."""
    fits: bool
    memory_bytes: float
    """Peak of the fullest device, as the driver reports it."""
    reserved_bytes: float
    """By the framework's allocator."""
    tensor_bytes: float
    """Live tensors at the peak."""
    first_tensor_bytes: float | None = None
    """The same of the first pipeline rank, whose peak is what a log of rank 0 prints."""
    memory_limit_bytes: float
    host_bytes: float = 0.0
    """What one node's devices keep on their host: what is offloaded."""
    host_limit_bytes: float | None = None
    """Memory of that host; None where it is not known."""
    fullest_stage: int
    peak_phase: str
    """When the peak is: forward, loss, head, backward or optimizer."""
    memory: Mapping[str, float]
    """Component -> bytes on the fullest device; adds up to ``memory_bytes``."""
    memory_over_step: tuple[MemoryMoment, ...] = ()
    """Moments of the step in turn, from its start; the peak is the largest."""
    time: Mapping[str, float]
    """Component -> seconds of the step; adds up to ``step_time_s``."""
    communication: Mapping[str, float]
    """Kind -> bytes that one device sends in a step."""
    bubble_fraction: float
    """Share of the pipeline's span in which its busiest rank waits; ``time["bubble"]`` over that span."""

    @property
    def dense_peak(self) -> float:
        """What `mfu` and `hfu` are shares of: products of a device in the job's precision [FLOP/s]."""
        return self.model_flops_per_s_per_device / self.mfu

    def fits_with(self, headroom: float) -> bool:
        """Whether it fits and leaves this share of the fullest device free."""
        return self.fits and self.memory_bytes <= (1 - headroom) * self.memory_limit_bytes


class Optimality(Record):
    """What the search can promise about its answer."""

    proven: bool
    """Nothing in the searched space is better."""
    gap: float
    """Answer over proven lower bound, minus one."""
    evaluated: int
    pruned: int
    limits_hit: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Kinds of plans that the space does not have, though one may be faster; each with the pin that asks for it."""


class Alternative(Record):
    """A plan that lost, and why."""

    plan: Parallelism
    estimate: Estimate
    loses_because: str


class Faster(Record):
    """A change of the question under which a step is clearly shorter; `Plan.warnings` say it in words."""

    change: Change
    """A pin, the cluster's nodes or how many devices of each, or the job's attention or graphs."""
    value: bool | int | str
    """Of several that are offloaded, their names with commas between them."""
    step_time_s: float


class Plan(Record):
    """A plan with what belongs to it: model, cluster and job, the parallelism chosen, its estimate, and the reasons."""

    schema_version: Literal["meshwright/plan/1"] = Field(default=SCHEMA, alias="schema")
    model: Model
    cluster: ClusterSpec
    job: Job
    plan: Parallelism
    estimate: Estimate | None = None
    optimality: Optimality | None = None
    alternatives: tuple[Alternative, ...] = ()
    explanation: str = ""
    warnings: tuple[str, ...] = ()
    faster_with: tuple[Faster, ...] = ()
    """What the rules of the space leave out, or the job, though it is faster."""

    def to_json(self, **kwargs: Any) -> str:
        """The documented JSON."""
        return self.model_dump_json(by_alias=True, **kwargs)
