"""Where models come from: shipped names, Hugging Face configurations, graph files, run files."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster_specs.catalog import list_clusters
from cluster_specs.record import first_problem, validated
from cluster_specs.texts import load_mapping
from planner.errors import InputError, UnknownName
from planner.graph import Graph, count_parameters
from planner.models.classes import head_notes
from planner.models.dropout import dropped_shares
from planner.models.families import ARCHITECTURES, FAMILIES, FIXED_LENGTHS, SAME_TOWER, TRACE, UNPRICED
from planner.models.measured import transformer_from_run
from planner.models.model import Model
from planner.models.reading import ConfigReader

__all__ = [
    "build_graph",
    "list_models",
    "load_model",
    "model_of_run",
    "sequence_length",
    "transformer_from_run",
    "usual_length",
]

SCHEMA = "meshwright/model/1"
"""Of what ``meshwright models NAME --json`` prints."""

BIASED_EXPERTS = frozenset({"gpt_oss"})
"""Families whose experts and routers have biases."""

GRAPH_KEYS = frozenset({"blocks", "layers", "dims"})
"""Keys that tell a graph file from a configuration."""

TEXT_TOWERS = ("text_config", "llm_config", "language_config", "thinker_config")
"""Keys of the text tower in configurations of several, or of what has it in turn (Qwen's Omni).

Source: transformers 5.23.0; OpenGVLab/InternVL, ``configuration_internvl_chat.py``; deepseek-ai/DeepSeek-VL2,
``modeling_deepseek_vl_v2.py``.
"""

NO_TOWERS = frozenset({"quantization_config", "generation_config"})
"""Keys in ``_config`` of what is no part of a model."""

FILE_SUFFIXES = (".json", ".yaml", ".yml", ".toml")
"""Endings of what is meant as a file."""


@lru_cache
def _shipped() -> Mapping[str, Mapping[str, Any]]:
    text = (resources.files("planner.models") / "data" / "models.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return {row["name"]: row for row in rows}


@lru_cache
def _left_to_classes(file: str) -> Mapping[str, Mapping[str, int]]:
    """``model_type`` -> what its class takes where a table leaves it out (of text towers; of any: ``unsaid.toml``)."""
    return tomllib.loads((resources.files("planner.models") / "data" / file).read_text(encoding="utf-8"))


TUNED = re.compile(r"-(instruct|chat|it|base|hf|pt)(?=-|$)", re.IGNORECASE)
"""Words for how weights were trained, which say nothing of the model's shape."""


def _compact(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


@lru_cache
def _aliases() -> Mapping[str, tuple[str, ...]]:
    """Compact spelling -> shipped names: the name, its repository, and leading words (``deepseek-v3``)."""
    exact: dict[str, list[str]] = {}
    leading: dict[str, list[str]] = {}
    for name, row in _shipped().items():
        repository = row["hf_id"] or name
        spellings = (name, repository, repository.split("/")[-1], TUNED.sub("", repository))
        for spelling in dict.fromkeys(map(_compact, spellings)):
            exact.setdefault(spelling, []).append(name)
        words = name.split("-")
        for length in range(1, len(words)):
            leading.setdefault(_compact("".join(words[:length])), []).append(name)
    return {spelling: tuple(names) for spelling, names in (leading | exact).items()}


def list_models() -> tuple[str, ...]:
    """Names of the shipped models."""
    return tuple(_shipped())


def model_of_run(fields: Mapping[str, Any]) -> Model:
    """The model of a run's ``model`` table. A table that leaves groups or biases of its experts open has those of the
    shipped model of its name, if that has as many experts.
    """
    names = _aliases().get(_compact(str(fields.get("name"))), ())
    shipped = _shipped_model(names[0]) if len(names) == 1 else None
    known = shipped.config if shipped else {}
    experts = known.get("n_routed_experts", known.get("num_local_experts"))
    if (experts, known.get("num_experts_per_tok")) != (fields.get("experts"), fields.get("topk")):
        return transformer_from_run(fields)
    usual = {}
    if "n_group" in known and "expert_groups" not in fields:
        usual = {"expert_groups": known["n_group"], "chosen_groups": known["topk_group"]}
    if shipped and shipped.family in BIASED_EXPERTS:
        usual["expert_bias"] = True
    return transformer_from_run({**usual, **fields})


def load_model(source: str | Path) -> Model:
    """The model of a shipped name, of a Hugging Face config.json (or its folder), or of a graph file.

    Names may be written in any case, with or without dashes, by repository (``meta-llama/Llama-3.1-70B-Instruct``) or
    by leading words that fit one model only (``deepseek-v3``). Of a configuration with several towers the
    text tower is taken.

    Raises:
        UnknownName: neither a shipped name nor a file.
        InputError: the file cannot be read, or does not describe a model.
    """
    names = _aliases().get(_compact(source), ()) if isinstance(source, str) else ()
    if len(names) == 1:
        return _shipped_model(names[0])
    path = Path(source)
    try:
        path = path / "config.json" if path.is_dir() else path
        found = path.is_file()
    except (OSError, ValueError):  # too long, or with a null byte: no name of a file
        found = False
    if found and path.suffix == ".py":
        raise InputError(f"{path} is a program: say which function or module of it, as in {path}:NAME")
    if found:
        return _model_from_file(path)
    shaped = _aliases().get(_compact(TUNED.sub("", str(source))), ())
    if len(shaped) == 1:
        return _shipped_model(shaped[0])
    if names:
        raise InputError(f"model {str(source)!r} fits several: {', '.join(names)}; name one of them")
    if path.suffix in FILE_SUFFIXES or path.is_absolute():
        raise InputError(f"{path}: no such file; a model is a shipped name, a config.json or a graph file")
    if str(source).partition(":")[0] in {cluster.name for cluster in list_clusters()}:
        raise InputError(f"{str(source)!r} is a cluster; a model comes first: llama-3.1-8b {source}")
    raise UnknownName("model", str(source), list_models(), see="`meshwright models` lists them")


def _shipped_model(name: str) -> Model:
    row = _shipped()[name]
    return Model(
        name=name,
        family=row["model_type"],
        config=row["config"],
        parameters=row["params_total"],
        architecture=ARCHITECTURES[row["model_type"]],
        source="; ".join(row["sources"]),
    )


def _model_from_file(path: Path) -> Model:
    config = load_mapping(path, ".json")
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    schema = str(config.get("schema", ""))
    if schema.startswith("meshwright/program/"):
        raise InputError(
            f"{path} is a traced program, not a model: planner.load_model and meshwright plan take it"
        )
    if schema == SCHEMA:
        return _printed_model(config, path)
    if schema:
        raise InputError(f"{path} has schema {schema!r}, which is no model")
    if config.keys() >= GRAPH_KEYS:
        return _graph_model(config, path)
    return _configured_model(config, name, path)


def _graph_model(config: Mapping[str, Any], path: Path) -> Model:
    try:
        graph = Graph.model_validate(config)
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}") from None
    return Model(
        name=graph.name, family="graph", graph=graph, parameters=count_parameters(graph), source=str(path)
    )


def _printed_model(fields: Mapping[str, Any], path: Path) -> Model:
    """A model as it was printed, with the parameters that its graph has."""
    model = validated(Model, {key: value for key, value in fields.items() if key != "schema"}, str(path))
    if model.graph is None and model.family not in FAMILIES:
        raise UnknownName(f"family in {path}:", model.family, FAMILIES)
    return model.model_copy(
        update={"parameters": count_parameters(build_graph(model, sequence_length(model) or 1))}
    )


def _configured_model(config: Mapping[str, Any], name: str, path: Path) -> Model:
    origin = str(path)
    *around, tower = _towers(config)
    if around:
        unsaid = _left_to_classes("towers.toml").get(str(tower.get("model_type")), {})
        config = {"tie_word_embeddings": config.get("tie_word_embeddings"), **unsaid, **tower}
        origin = f"{path} (text tower)"
    stored = _stored_weights(config, path)
    family = config.get("model_type")
    if family is None:
        raise InputError(f"{path}: missing key 'model_type'")
    if not isinstance(family, str):
        raise InputError(f"{path}: model_type must be a string, found {family!r}")
    family = SAME_TOWER.get(family, family)
    if family not in FAMILIES:
        if family in UNPRICED:
            raise InputError(
                f"{path}: model_type {family} {UNPRICED[family]}, which is not read from a file; {TRACE}"
            )
        raise UnknownName(f"model_type in {path}:", str(family), FAMILIES, see=TRACE)
    read = ConfigReader({**_left_to_classes("unsaid.toml").get(family, {}), **config}, origin)
    length = FIXED_LENGTHS[family](read) if family in FIXED_LENGTHS else 1
    parameters = count_parameters(_built(read, family, name, length))
    dropped_shares(read, family)  # which shape nothing, but how it trains
    return Model(
        name=name,
        family=family,
        config=read.used(),
        parameters=parameters,
        architecture=ARCHITECTURES[family],
        source=origin,
        notes=(*_left_out(around, path), *stored, *head_notes(config, origin, ARCHITECTURES[family])),
    )


def _towers(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A configuration; within it its text tower, or what has that in turn; and so on."""
    yield config
    inside = next((config[key] for key in TEXT_TOWERS if isinstance(config.get(key), Mapping)), None)
    if inside is not None:
        yield from _towers(inside)


def _left_out(around: Sequence[Mapping[str, Any]], path: Path) -> tuple[str, ...]:
    """A note on what configurations have beside their text tower, such as one of images, which is not planned."""
    found = [
        key
        for config in around
        for key, value in config.items()
        if key.endswith("_config") and isinstance(value, Mapping) and key not in {*TEXT_TOWERS, *NO_TOWERS}
    ]
    if not found:
        return ()
    return (
        f"{path} has {' and '.join(found)} beside its text tower, which is planned alone: parameters, memory and "
        f"time are without {'them' if len(found) > 1 else 'it'}; to have all, {TRACE}",
    )


FROZEN = frozenset({"aqlm", "awq", "bitsandbytes", "eetq", "gptq", "higgs", "hqq", "spqr", "vptq"})
"""Ways to store weights that no optimizer steps: only adapters beside them are trained.

Source: huggingface/transformers 5.23.0, ``quantizers/auto.py`` (their names) and ``trainer_utils.py``, which refuses to
train them without adapters. Those left out (fp8, mxfp4, ...) come with weights that are made wide again to be trained.
"""


def _stored_weights(config: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    """A note on weights stored in another type than they are trained in; refuses those that are not trained."""
    stored = config.get("quantization_config")
    method = str(stored.get("quant_method", "")) if isinstance(stored, Mapping) else ""
    if method.lower() in FROZEN:
        raise InputError(
            f"{path}: quantization_config stores weights with {method}, which are not trained; "
            "leave it out to plan the training of all weights"
        )
    if not method:
        return ()
    return (
        f"{path} stores weights in {method}; they are planned to be trained in the job's precision (--precision)",
    )


def _built(read: ConfigReader, family: str, name: str, seq_len: int) -> Graph:
    try:
        return FAMILIES[family](read, name, seq_len)
    except ValidationError as error:
        raise InputError(f"{read.source}: {first_problem(error)}") from None


def sequence_length(model: Model) -> int | None:
    """Tokens of one input where the model fixes them (patches of an image); None where the job chooses."""
    if model.family not in FIXED_LENGTHS:
        return None
    return FIXED_LENGTHS[model.family](ConfigReader(model.config, model.name))


def counted(model: Model) -> str:
    """What a model is fed and its speed is counted in: tokens, or images that are no sequence of any."""
    return "images" if sequence_length(model) == 1 else "tokens"


def usual_length(model: Model, most: int) -> int:
    """Tokens of one input where nobody says how many: those that the model fixes, or ``most``.

    Halved until it is no longer than the positions that the configuration names, and learned ones suffice, so that what
    ``most`` divides the answer divides.
    """
    named = model.config.get("max_position_embeddings")
    longest = named if isinstance(named, int) else most
    return sequence_length(model) or next(
        n for n in _halves(most) if n == 1 or (n <= longest and _takes(model, n))
    )


def _halves(most: int) -> Iterator[int]:
    return (most >> times for times in range(most.bit_length()))


def _takes(model: Model, seq_len: int) -> bool:
    try:
        build_graph(model, seq_len)
    except InputError:
        return False
    return True


def build_graph(model: Model, seq_len: int) -> Graph:
    """Graph of ``model`` for sequences of ``seq_len`` tokens (of the decoder, where there are two).

    A graph given as such gets its ``token_dim`` (and the ``kv_`` dim of it) set to ``seq_len``.

    Raises:
        InputError: a key is missing or wrong, or the model cannot take this length.
        UnknownName: a family without a builder.
    """
    if model.graph is not None:
        graph = model.graph
        lengths = {d: seq_len for d in (graph.token_dim, f"kv_{graph.token_dim}") if d in graph.dims}
        return graph.model_copy(update={"dims": {**graph.dims, **lengths}})
    config = json.dumps(dict(model.config), sort_keys=True, default=dict)
    return _cached_graph(model.family, model.name, config, seq_len)


@lru_cache(maxsize=64)
def _cached_graph(family: str, name: str, config: str, seq_len: int) -> Graph:
    if family not in FAMILIES:
        raise UnknownName("model family", family, FAMILIES)
    return _built(ConfigReader(json.loads(config), name), family, name, seq_len)
