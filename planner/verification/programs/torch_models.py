"""Models of Hugging Face transformers from a configuration, and a step of theirs: what the torch programs share."""

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM

Task = Mapping[str, Any]

INITIAL_SPREAD = 0.1
"""Standard deviation of initial weights: larger than usual, so that a small model's gradients are no rounding."""


DROPOUT = ("pdrop", "dropout", "dropout_prob", "dropout_rate")
"""How transformers' configurations end the names of shares that are dropped, which every process draws anew."""


class NoModel(Exception):
    """transformers has no such model; the message names it."""


def load(path: str) -> Any:
    """The exported script as a module."""
    spec = importlib.util.spec_from_file_location("exported", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build(task: Task, dtype: Any) -> Any:
    """The model of the task, the same weights in every process."""
    try:
        keys = {key: value for key, value in task["config"].items() if key != "model_type"}
        config = AutoConfig.for_model(task["family"], **keys)
        config.use_cache = False
        config.initializer_range = INITIAL_SPREAD
        config.pad_token_id = None  # a family's own is beyond a small vocabulary
        for key in (key for key in config.to_dict() if key.endswith(DROPOUT)):
            setattr(config, key, 0.0)
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(config, dtype=dtype)
    except (KeyError, ValueError) as error:
        raise NoModel(f"transformers builds no causal language model {task['family']}: {error}") from None


def mean_loss(logits: Any, labels: Any) -> Any:
    """Cross-entropy over all tokens, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
