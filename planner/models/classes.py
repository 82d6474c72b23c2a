"""The class that a ``config.json`` names, where that is another model than its family is read as.

Encoders have heads of their own (`planner.models.encoders.head_of`).
"""

from collections.abc import Mapping
from typing import Any

from planner.errors import InputError
from planner.models.families import TRACE, Architecture

ONE_TOWER = ("ForCausalLM", "EncoderModel", "Encoder", "Decoder")
"""Ends of the classes that are one tower of an encoder-decoder."""

OTHER_HEADS = ("Classification", "ForQuestionAnswering", "RewardModel", "ForMultipleChoice")
"""Ends of the classes with a head of their own in place of one over the vocabulary.

Source of both: the classes of huggingface/transformers 5.23.0.
"""


def head_notes(config: Mapping[str, Any], source: str, architecture: Architecture) -> tuple[str, ...]:
    """A note on a head that is priced as one over the vocabulary; raises ``InputError`` for one tower of two."""
    classes = config.get("architectures")
    named = str(classes[0]) if isinstance(classes, list) and classes else ""
    if architecture == "encoder-decoder" and named.endswith(ONE_TOWER):
        raise InputError(
            f"{source}: architectures has {named!r}, one tower of an encoder-decoder, which is not read "
            f"from a file; {TRACE}"
        )
    if architecture in ("decoder", "encoder-decoder") and named.endswith(OTHER_HEADS):
        return (
            f"the configuration names {named}; its head is priced as that of a language model, which is larger: the "
            "planned logits and their loss are more than it has",
        )
    return ()
