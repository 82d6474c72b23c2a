"""Choices of a plan that a target has no word for, and that do not keep it from running: said in the header.

What a target must not leave out is in `planner.exporters.limits`; this is the rest, so that nothing that the prediction
counts on is dropped in silence.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from planner.exporters.reductions import ALWAYS, other_type, priced_type
from planner.plans import Plan


def _reduces_in(plan: Plan) -> bool:
    return plan.job.reduce_dtype is not None and plan.job.precision != "fp32"


def _half_gradients(plan: Plan) -> bool:
    """Of fp32 weights: without them, gradients have the type of the weights."""
    return plan.job.grad_dtype == "bf16" and plan.job.master_weights and plan.job.precision != "fp32"


def _half_weights(plan: Plan) -> bool:
    return not plan.job.master_weights and plan.job.precision != "fp32"


def _splits_activations(plan: Plan) -> bool:
    return "activations" in plan.plan.offload and plan.plan.offload_share < 1


def _exchanges_keys(plan: Plan) -> bool:
    return plan.plan.context > 1 and plan.job.context_exchange is not None


CHOICES: Mapping[str, tuple[Callable[[Plan], bool], str]] = MappingProxyType(
    {
        "attention": (
            lambda plan: plan.job.attention != "flash",
            "attention by the kernel that the job names: plain, of the first FlashAttention, or the device's own",
        ),
        "document_len": (
            lambda plan: plan.job.document_len is not None,
            "sequences packed with documents, each of which attends to itself alone",
        ),
        "autocast": (
            lambda plan: plan.job.autocast,
            "weights that stay in fp32 where they are gathered, and a forward and a loss under torch.autocast",
        ),
        "mlp_tiles": (
            lambda plan: plan.job.mlp_tiles > 1,
            "feed-forward layers that go over a sequence part by part",
        ),
        "fused_optimizer": (
            lambda plan: plan.job.fused_optimizer is not None,
            "an update of one kernel, or of several, as the job says",
        ),
        "step_in_backward": (
            lambda plan: plan.job.step_in_backward,
            "weights stepped within the backward, each once its gradient is there",
        ),
        "narrow_gathers": (
            lambda plan: plan.plan.tensor > 1 and plan.job.narrow_gathers is not None,
            "tensor ranks that gather in 8 or 16 bits, as the job says",
        ),
        "narrow_weight_gathers": (
            lambda plan: plan.plan.zero_stage > 0 and plan.job.narrow_weight_gathers,
            "weights that are cast to 8 bits before ranks gather them",
        ),
        "narrow_gate_inputs": (
            lambda plan: plan.job.narrow_gate_inputs,
            "what gated activations read, kept for their backward in 8 bits",
        ),
        "narrow_attention": (
            lambda plan: plan.job.narrow_attention is not None,
            "attention that reads 8 bits, and keeps them for its backward",
        ),
        "fp8_scaling": (
            lambda plan: plan.job.fp8_scaling is not None,
            "scales of fp8 that hold for what the job says, a tensor or blocks of it",
        ),
        "cuda_graphs": (lambda plan: plan.job.cuda_graphs, "whole steps replayed from CUDA graphs"),
        "graph_parts": (lambda plan: bool(plan.job.graph_parts), "parts of layers replayed from CUDA graphs"),
        "context_exchange": (_exchanges_keys, "keys and values exchanged in the way that the job names"),
        "token_exchange": (
            lambda plan: plan.plan.expert > 1 and plan.job.token_exchange != "all_to_all",
            "tokens sent once to each node that has experts for them",
        ),
        "expert_routing": (
            lambda plan: plan.plan.expert > 1 and plan.job.expert_routing == "consecutive",
            "experts given to tokens in turn, whatever the router says",
        ),
        "overlap_experts": (
            lambda plan: plan.plan.expert > 1 and plan.job.overlap_experts,
            "tokens on their way to experts beside the computation of another micro-batch",
        ),
        "expert_capacity": (
            lambda plan: plan.job.expert_capacity is not None,
            "experts that compute so many tokens, padded or dropped",
        ),
        "master_weights": (_half_weights, "no fp32 copies of the weights"),
        "grad_dtype": (_half_gradients, "gradients accumulated in bf16"),
        "reduce_dtype": (_reduces_in, "gradients reduced in the type that the job names"),
        "fused_loss": (lambda plan: plan.job.fused_loss, "a loss computed in chunks"),
        "secondary_degree": (
            lambda plan: plan.plan.secondary_degree is not None,
            "layers' weights shared by fewer ranks between forward and backward",
        ),
        "offload_share": (_splits_activations, "only a share of the activations on the host"),
    }
)
"""Field of the plan -> whether it departs from what frameworks do unasked, and what the prediction counts on then."""

LIMITED = frozenset({"master_weights", "fused_loss"})
"""Fields that `Limits` judge, for targets that have them."""

EXPERTS = frozenset({"token_exchange", "overlap_experts", "expert_capacity"})

MEGATRON = LIMITED | EXPERTS | {"attention", "context_exchange", "grad_dtype"}

SAYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "jax": frozenset(),
        "axolotl": LIMITED | {"document_len"},
        "torchtitan": LIMITED | {"document_len"},
        "torchtitan-0.2": LIMITED | {"step_in_backward"},
        "fsdp2": frozenset({"master_weights", "reduce_dtype", "secondary_degree"}),
        "fsdp1": frozenset({"master_weights", "reduce_dtype"}),
        "accelerate": frozenset({"master_weights"}),
        "deepspeed": LIMITED | {"grad_dtype", "reduce_dtype"},
        "megatron-lm": MEGATRON | {"fp8_scaling"},
        "megatron-bridge": MEGATRON | {"narrow_gate_inputs"},
        "maxtext": LIMITED | {"attention", "grad_dtype", "expert_capacity", "document_len"},
        "nanotron": LIMITED | {"grad_dtype"},
    }
)
"""Target -> fields that its files say, or its exporter refuses; the others say those in `LIMITED` only.

How gradients are reduced where a file cannot choose is in `planner.exporters.reductions`.
"""


LANGUAGE_MODELS_ONLY = frozenset({"axolotl", "nanotron"})
"""Targets whose trainer predicts the next token, and whose files name no model that would be missing.

Source: axolotl-ai-cloud/axolotl ``README.md`` and huggingface/nanotron@4796d2d ``src/nanotron/models``.
"""


PARTS_DOCUMENTS = frozenset({"torchtitan", "maxtext"})
"""Targets whose tokens attend to their own document alone, unless a user says otherwise.

Source: pytorch/torchtitan 0.3.0 ``torchtitan/models/common/config_utils.py`` (``get_attention_config``);
AI-Hypercomputer/maxtext@003b416 ``src/MaxText/configs/base.yml`` (``packing``).
"""


def unsaid(plan: Plan, target: str) -> Iterator[str]:
    """Sentences for the header of a file of ``target``."""
    if target in LANGUAGE_MODELS_ONLY and plan.model.architecture != "decoder":
        yield f"{target} trains decoders on text: a model such as {plan.model.name} has to be added to it first"
    saves = plan.cluster.device.kind != "tpu"  # `planner.sharding.between`
    if target in PARTS_DOCUMENTS and plan.job.document_len is None and saves:
        yield (
            f"a sequence was taken to be one document; with {target} tokens attend to their own document alone, which "
            "is faster where sequences are packed with several: --document-len says how long they are"
        )
    other = other_type(plan, target)
    if other:
        yield (
            f"not in this configuration, but in the prediction: gradients reduced in {priced_type(plan)}; "
            f"{target} reduces them in {other}"
        )
    said = SAYS.get(target, LIMITED) | ({"reduce_dtype"} if target in ALWAYS else frozenset())
    for field, (departs, words) in CHOICES.items():
        if field not in said and departs(plan):
            yield f"not in this configuration, but in the prediction: {words}; see to it in the training script"
