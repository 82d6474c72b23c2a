"""Software stacks: the habits of a training framework that time and memory depend on, as sourced data."""

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from cluster_specs.errors import UnknownName
from cluster_specs.habits import (
    ActivationKernels,
    AttentionRate,
    BiasedExperts,
    FlatBuffers,
    GroupedGrid,
    IndexedRows,
    IssuedProducts,
    OnGPU,
    Partitioner,
    RoutingKernels,
    RoutingOperators,
)
from cluster_specs.record import Record
from cluster_specs.units import Bytes, Seconds

DATA = Path(__file__).parent / "data" / "software"

DeviceFamily = Literal["gpu", "tpu", "trainium"]
Axis = Literal["tensor", "pipeline", "context", "expert"]


class SoftwareSpec(Record):
    """What a training framework does with a plan: fusion, overlap, buffers and overheads.

    Shares are of seconds or bytes, between 0 and 1; every number has an entry in ``sources``.
    """

    name: str
    summary: str
    runs_on: tuple[DeviceFamily, ...] = Field(min_length=1)
    """Kinds of devices that it trains on."""
    splits: tuple[Axis, ...]
    """Axes over which it can split a model; over data always."""
    modules: Literal["transformers", "litgpt"] | None = None
    """Whose modules models are made of: how they compute is theirs, not the graph's, where that makes a difference."""
    dropout: Literal["modules", "sums", "none"]
    """What drops shares that a configuration names: modules of their own, as PyTorch's, which a compiler may fuse; the
    residual sums, and the embedding's result where these do, as Megatron; or nothing, as nothing is known of it."""
    fused_elementwise: bool
    """Chains of element-wise operators run as one kernel (a compiler, or hand-written fused kernels)."""
    fused_products: bool
    """Element-wise operators run inside the products that read them, so that what they make never exists whole."""
    elementwise_passes: float = Field(gt=0)
    """Memory traffic of norms and element-wise operators over one read of inputs and one write of outputs."""
    activation_kernels: Mapping[str, ActivationKernels] = {}
    """Activation function -> what goes over memory instead, of those that are many kernels."""
    loss_forward_passes: float = Field(gt=0)
    """As ``elementwise_passes``, of the loss: one for each kernel that goes over the logits, two if in fp32."""
    loss_backward_passes: float = Field(gt=0)
    repeats_logits: bool | None = None
    """A fused loss goes over tiles of logits and makes each again for its gradient, a product of the head more."""
    wide_logits: tuple[str, ...] | None = None
    """Patterns of devices on which products of its gradients are in fp32, at the rate of tensor cores."""
    biases_in_products: bool | None = None
    """Gradients of biases come with the product that makes those of weights; None: sums by kernels of their own."""
    routing_passes: float = Field(gt=0)
    """As ``elementwise_passes``, of sorting tokens by expert and back."""
    routing_kernels: RoutingKernels | None = None
    """The same kernel by kernel, where tokens are exchanged by a plain all-to-all; None: ``routing_passes``."""
    scattered_rate: float | None = Field(default=None, ge=0)
    """Elements a second that GPUs add to rows which others add to as well, where a compiler's atomic additions sum what
    experts make, or gradients of what they read; None or 0: as fast as memory is."""
    indexed_rows: Mapping[str, IndexedRows] = {}
    """Pattern of device names -> what rows of tokens take there that an index brings to experts and back."""
    grouped_tile: int | None = Field(default=None, ge=0)
    """Rows of a tile of grouped products, which every group that begins inside it computes again; None or 0: each group
    is padded by itself."""
    grouped_grid: Mapping[str, GroupedGrid] = {}
    """Pattern of device names -> grid of the kernel of grouped products, where it is not a library's."""
    grouped_share: Mapping[str, float] = {}
    """Pattern of device names -> share of the rate of other products that grouped ones have; else they have all."""
    expands_groups: bool | None = None
    """On GPUs a compiler may make grouped products of experts without a capacity dense ones over all groups."""
    routes_by_masks: bool | None = None
    """Where experts have a capacity, products with masks sort tokens by expert and back."""
    sums_alone: bool | None = None
    """Nothing runs beside sums of gradients inside a slice of a torus, unless they are rings."""
    unfused_attention: Literal["plain", "fused_softmax", "counted_softmax", "sdpa_math", "wide_softmax"]
    """Kernels between the products of attention, where it is not one kernel (`cost_models.attention.KERNELS`)."""
    whole_heads: int | None = None
    """Heads on TPUs whose dims are no multiples of this have attention in loops over tiles rather than in a kernel."""
    tiles_attention: bool | None = None
    """On GPUs attention is a loop over tiles, whatever the heads, unless a job has the device's own kernel."""
    unpads: bool | None = None
    """A kernel of attention gets the rows that a mask of padding leaves, taken and put back by kernels of their own."""
    fused_optimizer: bool
    """The optimizer step is one kernel per tensor group, without temporaries."""
    optimizer_temporaries: float = Field(ge=0)
    """Bytes per fp32 parameter of the shard that live only during the optimizer step."""
    overlap_data: float = Field(ge=0, le=1)
    """Share of compute time behind which data-parallel communication can hide."""
    overlap_copies: float | None = Field(default=None, ge=0, le=1)
    """The same of copies between device and host; None: as ``overlap_data``."""
    overlap_gather: float = Field(ge=0, le=1)
    """Share of the next forward behind which the weights' gather of ZeRO-1 can hide."""
    scatters_gradients: bool
    """With ZeRO-1 gradients are reduce-scattered as the backward makes them, rather than summed whole: after the last
    backward, or as it makes them where `sums_copies` says "always".
    """
    broadcasts_weights: bool
    """With ZeRO-1 every rank steps whole weights, and broadcasts them when it is its turn, rather than all gather."""
    copies_gathered: bool
    """Gathers and scatters over the tensor axis copy the array once more: the sequence is not its first dim."""
    sorts_shards: bool
    """Every weight is sharded by itself, so that what is gathered and scattered is copied to and from buffers."""
    joins_gradients: bool | None = None
    """Weights are views of one flat parameter for each unit, to whose gradient theirs are copied; None: not so."""
    overlap_tensor: float = Field(ge=0, le=1)
    """Share of tensor-parallel communication that hides behind the product next to it."""
    overlap_expert: float = Field(ge=0, le=1)
    """Share of the exchange of tokens between experts that hides behind compute."""
    context_exchange: Literal["all_gather", "ring", "gathered_ring", "all_to_all"]
    """How keys and values are exchanged where the sequence is split: all at once, or in steps beside attention."""
    overlap_slowdown: float = Field(ge=0)
    """Relative slow-down of compute while a collective runs beside it."""
    keeps_copy: bool
    """Weights in the training precision are kept beside their fp32 masters, rather than cast where they are used."""
    pads_shards: bool
    """Every sharded parameter is padded along its rows to a multiple of the ranks."""
    pads_experts: bool
    """Stacked experts are sharded, and padded, by whole experts, rather than inside them where ranks are more."""
    wraps_ends: bool
    """Embedding and head are units of their own, so that only one of them stays gathered at the loss."""
    regathers_ends: bool
    """Sharded weights of embedding and head are freed after the forward and gathered again, as those of layers are."""
    saves_gathered: Literal["always", "within blocks", "never"]
    """When products keep their inputs as gathered over the tensor axis, rather than gather them again for the backward;
    within blocks: where the backward follows at once, as at the head, or where the forward is repeated beside it."""
    overlaps_gradients: bool
    """Such inputs are gathered again while their gradient is computed, which is summed while the weights' is."""
    sums_apart: tuple[str, ...] | None = None
    """Operators (``qkv``, ``gate_up``) whose products are modules, each of which sums its part of the input's gradient
    over tensor ranks by itself where these share no sequence; None: none is."""
    scatters_apart: bool | None = None
    """They do so too where tensor ranks share the sequence, as each gathers its input by itself; None: they do not."""
    saves_gathered_keys: bool
    """Attention over a split sequence that gathers keys and values keeps them all, rather than gather them again."""
    gathers_narrow: bool
    """In fp8 and fp4 jobs, tensor ranks gather inputs of products, and gradients of what these make, in 8 bits."""
    saves_narrow: tuple[Literal["fp8", "fp4"], ...]
    """Formats in which inputs that only products need again are kept as they were multiplied."""
    keeps_originals: bool | None = None
    """They keep what another operator keeps of an input in place of a cast of their own, but under delayed scaling."""
    cast_layouts: int | None = Field(default=None, ge=0)
    """Layouts in which casts of weights that lie whole stay throughout the run in fp8 and fp4 jobs; None or 0: none."""
    casts_alone: tuple[Literal["fp8", "fp4"], ...] | None = None
    """Formats in which such casts are all there is of trained weights, of which none in 16 bits are beside them."""
    reads_either: tuple[str, ...] | None = None
    """Patterns of devices on which products read weights that are stored in 8 bits as they lie, transposed or not."""
    keeps_fused: bool
    """Of a product by one parameter whose result is split, what nothing reads stays with what is kept (views)."""
    activation_residuals: float = Field(ge=0)
    """Arrays that a gated activation keeps beside its inputs: none fused, the activated gate, or each primitive's."""
    activation_arrays: Mapping[str, float] = {}
    """Activation function -> arrays that it keeps beside its input; less than none where it keeps less than that."""
    gates_in_place: bool | None = None
    """Gradients of the inputs of a gated activation are written where these inputs are; None: beside them."""
    norm_residuals: float = Field(ge=0)
    """Bytes per element that a root-mean-square norm keeps beside its input."""
    layer_norm_residuals: float = Field(ge=0)
    """The same of a norm that takes the mean away."""
    attention_copies: float = Field(ge=0)
    """Copies of its result that attention keeps for itself, in the layout of its kernel."""
    softmax_residuals: float = Field(ge=0)
    """Bytes that an attention of several kernels keeps for each probability beside the one that its product reads."""
    combine_residuals: float = Field(ge=0)
    """Arrays of routed tokens that are kept to weigh what experts make of them."""
    stores_listed: bool
    """Selective checkpointing stores all results of the kinds on its list, whether the backward reads them or not."""
    stops_early: bool
    """A layer's forward is repeated up to what its backward reads, rather than whole, last product and all."""
    repeats_experts: bool | None = None
    """Layers with experts are repeated whole all the same, with experts' last product and its way back."""
    receives_apart: bool | None = None
    """Stages have a buffer for what each micro-batch of a step brings them, either way, and keep what they hand on."""
    experts_apart: bool | None = None
    """Experts that are spread over ranks are a unit of their own, whose gradients are reduced before their layer's."""
    gradient_life: Literal["step", "backward", "late"]
    """Gradients have memory throughout the step, from the start of the backward, or as they are made."""
    accumulates_whole: Literal["always", "in pipelines", "never"]
    """When gradients of several micro-batches are added up whole, and reduced once, with the last."""
    sums_copies: Literal["always", "scattered", "last"]
    """With which micro-batches gradients are summed over copies of states: all, all that scatter them, or the last."""
    casts_ahead: bool
    """Shards of all layers' weights are cast to the training type once a step, and kept until its backward ends."""
    loss_copies: float = Field(ge=0)
    """Temporary copies of the fp32 logits at the peak of the loss, beside those kept for its backward."""
    split_loss_copies: float = Field(ge=0)
    """The same where the vocabulary is split over ranks."""
    loss_in_root: bool
    """The loss is taken inside FSDP's root, whose end frees the buffer that the last layer was gathered in."""
    prefetch_units: int = Field(ge=0)
    """FSDP units whose weights are gathered ahead of the one that computes."""
    live_parameters: float = Field(gt=0)
    """Elements gathered beside those of one weight, where modules gather their own; infinite where layers are whole."""
    gradient_bucket: Bytes = Field(ge=0)
    """Gradients gathered into one buffer before they are reduced [bytes]."""
    flat_buffers: FlatBuffers | None = None
    """Where ZeRO shards flat arrays, which have memory of their own beside what layers make; None: not told apart."""
    buckets_all: bool
    """Where weights are not sharded, buckets for all gradients have memory throughout the step (DDP's reducer)."""
    accumulated_bytes: float = Field(ge=0)
    """Memory traffic of adding one gradient to those of micro-batches before, where no product does it [bytes]."""
    reduce_dtype: Literal["fp32", "bf16"]
    """Type in which gradients travel unless the job says otherwise."""
    head_reduce_dtype: Literal["fp32", "bf16"]
    """The same for the last block's gradients, which are made from those of fp32 logits."""
    fp16_reduce_dtype: Literal["fp32", "fp16"] | None = None
    """Type in which all gradients travel in fp16 jobs, where it is another."""
    context: Bytes = Field(ge=0)
    """Driver and framework context of one process, outside the allocator [bytes]."""
    communicator: Bytes = Field(ge=0)
    """Device memory of one communicator of 24 channels [bytes]."""
    further_groups: (
        tuple[Literal["world", "neighbours", "model", "slices", "ties", "samples", "samples of stages"], ...]
        | None
    ) = None
    """Groups with communicators of their own beside those of the plan's axes; None: no other."""
    fragmentation: float | None = Field(default=None, ge=0)
    """Bytes that the allocator reserves over those in use, of tensors that come and go, minus one; None: what it holds
    is said by ``unplaced_arrays``."""
    unplaced_arrays: float | None = Field(default=None, ge=0)
    """Arrays as large as the largest that comes and goes for which the allocator holds more than is alive, as they find
    no place in what is free. None: ``fragmentation`` says it."""
    stream_pools: bool | None = None
    """Gathers are copied, and shards of gradients made, on streams of their own, whose memory no other stream is given;
    None: ``fragmentation`` says it."""
    fragments_logits: bool
    """Logits leave holes as other tensors do, rather than having blocks of their own."""
    reclaimable: float = Field(ge=0, le=1)
    """Share of the fragmentation that the allocator gives back before it fails."""
    step_overhead: Seconds = Field(ge=0)
    """Per optimizer step: data loading, logging, synchronisation with the host [s]."""
    host_operator: Seconds = Field(ge=0)
    """Host time to issue one operator of a layer, or one of its two gradients: Python, autograd and launches [s]."""
    host_product: IssuedProducts | None = None
    """Host time of products in place of that; None: they are as other operators."""
    host_collective: Seconds = Field(ge=0)
    """Host time to issue one collective [s]."""
    host_launch: Seconds | None = Field(default=None, ge=0)
    """Host time to launch one kernel of a product of experts where each has its own [s]; None: all share one."""
    host_hook: Seconds | None = Field(default=None, ge=0)
    """Host time in which ZeRO-3 fetches and releases the weights of one operator, each time that it runs: forward,
    again, backward [s]; None: ``host_collective`` says it."""
    host_part: Seconds = Field(ge=0)
    """Host time for each rank's part of each weight, where ZeRO-1 gathers weights part by part [s]."""
    host_check: Seconds = Field(ge=0)
    """Host time to check a tensor-parallel collective before it runs, for each of its ranks [s]."""
    host_check_network: Seconds = Field(ge=0)
    """The same, where the collective crosses nodes itself [s]."""
    split_backward: float = Field(ge=0)
    """Share by which input and weight gradients take longer one by one than in one backward."""
    split_stack: str | None = None
    """The stack that the run becomes where backwards are split; None: this one."""
    handover_wait: Seconds = Field(ge=0)
    """Time that a stage spends polling for each tensor that it hands on or receives [s]."""
    straggler: float = Field(ge=0)
    """Relative slow-down for every doubling of the number of nodes."""
    experts_nearest: bool
    """Ranks of expert layers are numbered without regard to context ranks: they are neighbours, or even these."""
    unexplained: Seconds | None = None
    """What a step may take longer, however short it is, for a reason that is not known [s]; None: nothing."""
    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(min_length=1)
    """ZeRO stages that the stack offers, by number."""
    heads_sum_last: bool | None = None
    """A compiler may make the head's whole gradient, of which shards are kept, after the layers' backward; None: no."""
    gathers_few_heads: bool | None = None
    """Tensor ranks beyond heads of keys gather all projections to share these; None: each makes what it needs."""
    shards_weights_from: Literal[2, 3]
    """ZeRO stage from which weights lie in shards between steps; before, those that were stepped are gathered."""
    schedules: tuple[str, ...] = Field(min_length=1)
    """Pipeline schedules that the stack offers."""
    adapts: Literal["modules", "units", "products", "none"]
    """What has an adapter: linear modules, as in peft, whose units may get all gradients; products, as in Megatron."""
    partitioner: Partitioner | None = None
    """How programs are partitioned, where a compiler does it; None: collectives are those that the plan asks for."""
    on_gpu: OnGPU | None = None
    """Habits on GPUs, where the fields above are those of another kind of device."""
    attention: Mapping[str, AttentionRate] = {}
    """Pattern of device names -> rate of the stack's kernel, where the device assumes a better one."""
    routing_operators: Mapping[str, RoutingOperators] = {}
    """How tokens are exchanged -> what the host issues for it."""
    biased_experts: BiasedExperts | None = None
    """Biases and clamps of experts, where they are kernels of their own; None: nothing is known of them."""
    fused_experts: Mapping[str, tuple[str, ...]] = {}
    """Pattern of device names -> types in which steps replayed from captured graphs have experts' layers fused."""
    sources: Mapping[str, str] = {}
    """Field, or a pattern of fields, to where its value comes from."""

    @model_validator(mode="after")
    def _says_once_what_is_held(self) -> "SoftwareSpec":
        if (self.fragmentation is None) is (self.unplaced_arrays is None):
            raise ValueError(
                "fragmentation and unplaced_arrays both say what the allocator holds: give one of them"
            )
        return self

    @property
    def shares_gathers(self) -> bool:
        """A forward that is repeated in the backward gathers for the gradients of its products, too."""
        return self.saves_gathered != "never"


@cache
def _stacks() -> Mapping[str, SoftwareSpec]:
    files = sorted(DATA.glob("*.toml"))
    read = {path.stem: tomllib.loads(path.read_text()) for path in files}
    specs = [SoftwareSpec.model_validate(_completed(fields, read)) for fields in read.values()]
    return {spec.name: spec for spec in specs}


def _completed(fields: dict[str, Any], files: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Fields of a file, over those of the file that it ``extends``, which may extend another."""
    if "extends" not in fields:
        return fields
    own = {key: value for key, value in fields.items() if key != "extends"}
    base = _completed(files[fields["extends"]], files)
    return {**base, **own, "sources": base["sources"] | own["sources"]}


def list_software() -> tuple[SoftwareSpec, ...]:
    """All shipped stacks, by name."""
    return tuple(_stacks().values())


def load_software(name: str) -> SoftwareSpec:
    """Shipped stack of this name (``torch-fsdp2``, ``megatron``, ...); raises ``UnknownName``."""
    stacks = _stacks()
    if name.lower() not in stacks:
        raise UnknownName("software stack", name, stacks, see="`meshwright stacks` lists them")
    return stacks[name.lower()]
