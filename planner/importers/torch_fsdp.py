"""What the FSDP of PyTorch is asked for in Hugging Face's words, with or without the prefix ``fsdp_``.

Source: accelerate 1.15, accelerate/utils/dataclasses.py (FullyShardedDataParallelPlugin); transformers 5.23,
training_args.py.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from planner.importers.keys import Keys
from planner.importers.settings import states_on_host

STACK = "hf-fsdp"

REPLICATED: Mapping[str, Any] = MappingProxyType({"reduce_dtype": "fp32"})
"""Fields of `Job` without FSDP: DistributedDataParallel reduces gradients in the type of the weights."""


class Strategy(NamedTuple):
    """What a sharding strategy stands for."""

    zero_stage: int
    hybrid: bool = False
    """States are sharded inside each node and replicated across nodes."""


STRATEGIES = {
    "FULL_SHARD": Strategy(3),
    "SHARD_GRAD_OP": Strategy(2),
    "NO_SHARD": Strategy(0),
    "HYBRID_SHARD": Strategy(3, hybrid=True),
    "HYBRID_SHARD_ZERO2": Strategy(2, hybrid=True),
    "1": Strategy(3),
    "2": Strategy(2),
    "3": Strategy(0),
    "4": Strategy(3, hybrid=True),
    "5": Strategy(2, hybrid=True),
}
"""Values of ``fsdp_sharding_strategy``, as a name or a number."""

RESHARD = {"true": Strategy(3), "false": Strategy(2)}
"""Values of ``reshard_after_forward`` with version 2."""

IGNORED = (
    "auto_wrap_policy", "transformer_layer_cls_to_wrap", "min_num_params", "backward_prefetch", "forward_prefetch",
    "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading", "state_dict_type", "limit_all_gathers",
)  # fmt: skip
"""Keys that change neither bytes nor traffic as they are modelled."""


class Fsdp(NamedTuple):
    """The section's meaning; ``offload`` and ``assumed`` as in `Settings`."""

    strategy: Strategy
    recompute: str
    offload: tuple[str, ...]
    assumed: tuple[str, ...]


def read_fsdp(keys: Keys, prefix: str, version: int) -> Fsdp:
    """The FSDP section whose keys begin with ``prefix``."""
    assumed: list[str] = []
    strategy = _strategy(keys, prefix, version, assumed)
    full = keys.flag(f"{prefix}activation_checkpointing")
    away = any(keys.flag(f"{prefix}{name}") for name in ("offload_params", "cpu_offload"))
    offload, left = states_on_host(away, away, strategy.zero_stage)
    assumed.extend(left)
    if keys.flag(f"{prefix}activation_checkpointing_offload"):
        offload = (*offload, "activations")
    keys.ignore(*(f"{prefix}{name}".replace(".", r"\.") for name in IGNORED))
    return Fsdp(strategy, "full" if full else "none", offload, tuple(assumed))


def _strategy(keys: Keys, prefix: str, version: int, assumed: list[str]) -> Strategy:
    reshard = f"{prefix}reshard_after_forward"
    if version == 2:
        return keys.word(reshard, RESHARD, Strategy(3))
    strategy = keys.word(f"{prefix}sharding_strategy", STRATEGIES, None)
    if strategy is not None:
        keys.get(reshard)
        return strategy
    if (ignored := keys.get(reshard)) is not None and str(ignored).upper() != "FULL_SHARD":
        assumed.append(f"sharding=FULL_SHARD (version 1 ignores reshard_after_forward: {ignored})")
    return Strategy(3)
