"""The formats that can be read, as one table: `import_plan` turns a framework's configuration into a plan."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cluster_specs.cluster import ClusterSpec
from cluster_specs.texts import parse_mapping, read_text
from planner.errors import InputError, UnknownName
from planner.importers.accelerate import read_accelerate
from planner.importers.completion import ASSUMED_SEQ_LEN, complete
from planner.importers.deepspeed import read_deepspeed
from planner.importers.hf_trainer import read_fsdp_config, read_training_arguments
from planner.importers.keys import Keys
from planner.importers.maxtext import read_maxtext
from planner.importers.megatron import read_megatron
from planner.importers.nanotron import read_nanotron
from planner.importers.settings import Given, Settings, Surroundings
from planner.importers.shell import read_arguments
from planner.importers.torchtitan import read_torchtitan
from planner.models.catalog import build_graph, usual_length
from planner.models.model import Model
from planner.plans import Plan


class Format(NamedTuple):
    """One kind of configuration file."""

    name: str
    description: str
    target: str
    """The export target that writes such files."""
    suffixes: tuple[str, ...]
    marks: tuple[str, ...]
    """Top-level keys (regular expressions), any of which tells the format from others of its suffixes."""
    read: Callable[[Keys, Surroundings], Settings]


YAML, JSON = (".yaml", ".yml"), (".json",)

_FORMATS = (
    Format(
        "accelerate",
        "Hugging Face accelerate's configuration file",
        "accelerate",
        YAML,
        ("distributed_type", "compute_environment"),
        read_accelerate,
    ),
    Format(
        "deepspeed",
        "DeepSpeed's JSON configuration",
        "deepspeed",
        JSON,
        ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"),
        read_deepspeed,
    ),
    Format(
        "hf-trainer",
        "Hugging Face TrainingArguments as JSON",
        "hf-trainer",
        JSON,
        ("per_device_train_batch_size", "fsdp"),
        read_training_arguments,
    ),
    Format(
        "hf-fsdp-config",
        "the Trainer's fsdp_config as JSON",
        "hf-trainer",
        JSON,
        ("(fsdp_)?(version|reshard_after_forward|transformer_layer_cls_to_wrap|activation_checkpointing)",),
        read_fsdp_config,
    ),
    Format(
        "megatron-lm",
        "Megatron-LM arguments in a shell script or a text",
        "megatron-lm",
        (".sh", ".txt", ".args"),
        (".*",),
        read_megatron,
    ),
    Format(
        "torchtitan",
        "torchtitan's TOML, up to 0.2.2",
        "torchtitan-0.2",
        (".toml",),
        ("parallelism", "training"),
        read_torchtitan,
    ),
    Format(
        "maxtext",
        "overrides of MaxText's base.yml",
        "maxtext",
        YAML,
        ("(ici|dcn)_.*_parallelism", "per_device_batch_size"),
        read_maxtext,
    ),
    Format(
        "nanotron",
        "nanotron's configuration",
        "nanotron",
        YAML,
        ("parallelism",),
        read_nanotron,
    ),
)

TORCHTITAN_FLAG = r"(training|parallelism)\..*"
"""An argument that tells torchtitan's command line from Megatron-LM's, which has no dots in its names."""

FORMATS: Mapping[str, Format] = MappingProxyType({f.name: f for f in _FORMATS})
"""Every format by name."""


class Imported(NamedTuple):
    """A configuration as a plan."""

    plan: Plan
    """Its warnings name the keys that were not understood."""
    format: Format
    assumed: tuple[str, ...]
    """Choices that the file leaves open, as ``field=value (why)``."""
    unknown: tuple[str, ...]
    """Keys that are not understood; they may change what really happens."""


def import_plan(
    path: str | Path,
    model: Model,
    cluster: ClusterSpec,
    given: Given | None = None,
    format: str | None = None,
) -> Imported:
    """The plan that the configuration file ``path`` describes for ``model`` on ``cluster``.

    ``given`` is what the file leaves to the training script; ``format`` names one of `FORMATS` where the file does
    not show which it is. Raises ``InputError`` for a file that is not understood, or contradicts itself, the model,
    the cluster or what is given; ``UnknownName`` for a format.
    """
    path = Path(path)
    return import_text(read_text(path), path.name, model, cluster, given, format)


def import_text(
    text: str,
    name: str,
    model: Model,
    cluster: ClusterSpec,
    given: Given | None = None,
    format: str | None = None,
) -> Imported:
    """As `import_plan`, for the ``text`` of a file called ``name``."""
    found, data = _recognised(text, name, format)
    length = (given and given.seq_len) or usual_length(model, ASSUMED_SEQ_LEN)
    layers = build_graph(model, length).num_layers
    around = Surroundings(layers, cluster.num_devices, cluster.devices_per_node)
    settings = found.read(Keys(data, name), around)
    if name.endswith(".txt") and 0 < len(settings.unknown) == len(data):
        raise InputError(f"{name} has no argument of Megatron-LM, which is what a text is read for")
    plan, assumed = complete(settings, model, cluster, given or Given(), name)
    notes = tuple(f"{key} in {name} is not understood and was not read" for key in settings.unknown)
    return Imported(plan.model_copy(update={"warnings": notes}), found, assumed, settings.unknown)


def _recognised(text: str, name: str, format: str | None) -> tuple[Format, Mapping[str, Any]]:
    """The format, by name or by suffix and keys, and the file's data."""
    suffix = Path(name).suffix.lower()
    if format is not None and format not in FORMATS:
        raise UnknownName("configuration format", format, FORMATS)
    candidates = [FORMATS[format]] if format is not None else [f for f in _FORMATS if suffix in f.suffixes]
    if any(f.read is read_megatron for f in candidates):
        arguments = read_arguments(text, name)
        if format is None and any(re.fullmatch(TORCHTITAN_FLAG, key) for key in arguments):
            raise InputError(
                f"{name} holds torchtitan's flags, which are not read: of torchtitan only TOML files are, up to 0.2.2"
            )
        return FORMATS["megatron-lm"], arguments
    data = parse_mapping(text, suffix, name) if candidates else {}
    for candidate in candidates:
        marked = any(re.fullmatch(mark, key) for mark in candidate.marks for key in data)
        if marked or format is not None:
            return candidate, data
    if "schema" in data or {"model", "hardware"} <= data.keys():
        raise InputError(
            f"{name} is Meshwright's own, of no framework: `meshwright evaluate`, `compare` and `explain` read it"
        )
    known = "; ".join(f"{f.name} ({', '.join(f.suffixes)})" for f in _FORMATS)
    raise InputError(f"{name} is not recognised as a configuration; name its format: {known}")
