"""Configurations as people have them: recognised, read, never guessed in silence."""

from pathlib import Path
from typing import Any

import pytest

from cluster_specs.catalog import load_cluster
from planner.errors import InputError, UnknownName
from planner.evaluation import evaluate
from planner.importers.registry import FORMATS, Imported, import_plan, import_text
from planner.importers.settings import Given
from planner.models.catalog import load_model

EXAMPLES = Path(__file__).parents[2] / "data" / "configurations"

MODEL, LARGE = load_model("llama-3.1-8b"), load_model("llama-3.1-70b")

NODES = {count: load_cluster(f"dgx-h100:{count}") for count in (1, 2, 4, 8)}

GIVEN = Given(global_batch=256, seq_len=4096, micro_batch=1)

Case = tuple[str, int, Given, dict[str, Any]]

CASES: dict[str, Case] = {
    "accelerate_fsdp1.yaml": ("accelerate", 2, GIVEN, {"data": 16, "zero_stage": 3, "sharding": "FULL_SHARD"}),
    "accelerate_fsdp2.yaml": (
        "accelerate",
        2,
        GIVEN,
        {"data": 8, "tensor": 2, "sharding": "HYBRID_SHARD", "shard_degree": 4, "recompute": "full"},
    ),
    "deepspeed_zero3.json": (
        "deepspeed",
        2,
        Given(seq_len=4096),
        {"data": 16, "num_microbatches": 8, "zero_stage": 3, "recompute": "full"},
    ),
    "deepspeed_zero2_autotp.json": (
        "deepspeed",
        2,
        Given(seq_len=4096),
        {"data": 8, "tensor": 2, "zero_stage": 2, "sequence_parallel": False, "offload": ("optimizer",)},
    ),
    "hf_trainer_fsdp_config.json": ("hf-fsdp-config", 1, GIVEN, {"data": 8, "zero_stage": 3, "recompute": "full"}),
    "megatron_lm_args.txt": (
        "megatron-lm",
        8,
        Given(),
        {
            "data": 2, "tensor": 4, "pipeline": 4, "context": 2, "virtual_stages": 5, "schedule": "interleaved",
            "zero_stage": 1, "shard_degree": 4, "recompute": "attention", "num_microbatches": 256,
        },
    ),
    "torchtitan_0_2_2.toml": (
        "torchtitan",
        8,
        Given(),
        {
            "data": 2, "tensor": 8, "pipeline": 4, "virtual_stages": 2, "schedule": "interleaved", "zero_stage": 2,
            "recompute": "alternate", "num_microbatches": 256,
        },
    ),
    "nanotron_parallelism.yaml": (
        "nanotron",
        8,
        GIVEN,
        {"data": 8, "tensor": 4, "pipeline": 2, "sequence_parallel": True, "schedule": "1f1b", "zero_stage": 0},
    ),
}  # fmt: skip


def read(name: str, text: str, given: Given = GIVEN, nodes: int = 1) -> Imported:
    return import_text(text, name, MODEL, NODES[nodes], given)


@pytest.mark.parametrize("name", CASES)
def test_examples_are_read(name: str) -> None:
    format_name, nodes, given, expected = CASES[name]
    model = LARGE if nodes == 8 and format_name != "nanotron" else MODEL
    found = import_plan(EXAMPLES / name, model, NODES[nodes], given)
    assert found.format.name == format_name
    choice = found.plan.plan
    assert {key: getattr(choice, key) for key in expected} == expected
    assert choice.num_devices == 8 * nodes
    assert evaluate(found.plan).step_time_s > 0


def test_maxtext_axes_of_minus_one_take_what_is_left() -> None:
    found = import_plan(EXAMPLES / "maxtext_overrides.yml", LARGE, load_cluster("tpu-v5p:4x4x8"))
    choice = found.plan.plan
    assert (choice.data, choice.tensor, choice.micro_batch, choice.zero_stage) == (32, 4, 8, 3)
    assert found.plan.job.fused_loss
    assert "recompute=full (remat_policy custom)" in found.assumed


def test_every_format_has_an_example() -> None:
    assert {name for name, *_ in CASES.values()} | {"maxtext", "hf-trainer"} == set(FORMATS)


def test_unknown_keys_are_listed() -> None:
    text = (EXAMPLES / "deepspeed_zero3.json").read_text()
    found = import_text(text, "ds.json", MODEL, NODES[2], Given(seq_len=4096))
    assert found.unknown == ("zero_optimization.zero_hpz_partition_size",)
    assert found.plan.warnings == (
        "zero_optimization.zero_hpz_partition_size in ds.json is not understood and was not read",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "distributed_type: FSDP\nfsdp_confg: {fsdp_version: 2}\n"),
        ("a.json", '{"zero_optimization": {"stage": 3, "stag3_x": 1}, "train_batch_size": 256}'),
        ("a.json", '{"per_device_train_batch_size": 1, "gradient_accumulation_step": 2}'),
        ("a.sh", "--tensor-model-parallel-sizes 2"),
        ("a.toml", "[parallelism]\ntensor_paralel_degree = 2\n"),
        ("a.yml", "ici_tensor_parallelism: 1\nici_tensors_parallelism: 2\nper_device_batch_size: 1\n"),
        ("a.yaml", "parallelism: {dp: 8, tpp: 2}\n"),
    ],
)
def test_a_misspelt_key_is_never_passed_over(name: str, text: str) -> None:
    assert len(read(name, text, Given(seq_len=4096)).unknown) == 1


def test_gaps_are_filled_with_a_notice() -> None:
    found = read("a.yaml", "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n", Given())
    fields = [choice.split("=")[0] for choice in found.assumed]
    assert fields == ["seq_len", "data", "micro_batch", "num_microbatches"]
    assert found.plan.job.seq_len == 4096
    assert read("a.yaml", "distributed_type: FSDP\nnum_processes: 8\n").assumed == ()


def test_a_length_is_assumed_that_the_model_takes(tmp_path: Path) -> None:
    """GPT-2 has 1024 positions; a file that says a length of its own needs none assumed."""
    short = tmp_path / "maxtext.yml"
    short.write_text("base_config: base.yml\nper_device_batch_size: 1\nmax_target_length: 256\n")
    for path, length in ((EXAMPLES / "accelerate_fsdp2.yaml", 1024), (short, 256)):
        assert import_plan(path, load_model("gpt2"), NODES[2]).plan.job.seq_len == length


def test_a_default_of_the_framework_gives_way_to_what_is_given() -> None:
    text = "[parallelism]\ntensor_parallel_degree = 2\n"
    by_default = read("a.toml", text, Given())
    assert (by_default.plan.job.seq_len, by_default.plan.plan.micro_batch) == (2048, 8)
    assert "seq_len=2048 (the framework's default; give --seq-len)" in by_default.assumed
    assert read("a.toml", text).plan.job.seq_len == 4096


def test_version_1_ignores_reshard_after_forward_and_we_say_so() -> None:
    text = (
        "distributed_type: FSDP\nnum_processes: 8\nfsdp_config: {fsdp_reshard_after_forward: SHARD_GRAD_OP}\n"
    )
    found = read("a.yaml", text)
    assert found.plan.plan.zero_stage == 3
    assert found.assumed == ("sharding=FULL_SHARD (version 1 ignores reshard_after_forward: SHARD_GRAD_OP)",)


REFUSALS: dict[str, tuple[str, str, str]] = {
    "run": ("a.toml", 'model = "gpt2"\nhardware = "dgx-h100:1"', "a.toml is Meshwright's own.*evaluate"),
    "plan": ("a.json", '{"schema": "meshwright/plan/1"}', "a.json is Meshwright's own.*evaluate"),
    "format": ("a.yaml", "lr: 1", "a.yaml is not recognised as a configuration; name its format: accelerate"),
    "suffix": ("a.ini", "x", "not recognised"),
    "flags": (
        "a.txt",
        "--parallelism.tensor_parallel_degree 8",
        "holds torchtitan's flags, which are not read",
    ),
    "notes": ("a.txt", "pass --attention native to plan", "a.txt has no argument of Megatron-LM"),
    "broken": ("a.json", "{", "a.json is not valid JSON"),
    "empty": ("a.json", " ", "a.json is empty; a table of keys was expected"),
    "components": (
        "a.toml",
        '[training]\nlocal_batch_size = 1\n[compile]\nenable = true\ncomponents = "loss"\n',
        "compile.components must be a list such as",
    ),
    "type": (
        "a.yaml",
        "parallelism: {dp: two}",
        "parallelism.dp must be a whole number of at least 1, found 'two'",
    ),
    "word": ("a.yaml", "distributed_type: TPU", "distributed_type must be one of FSDP, DEEPSPEED"),
    "devices": ("a.yaml", "parallelism: {dp: 16}", "needs 16 devices; cluster dgx-h100:1 has 8"),
    "divisor": (
        "a.sh",
        "--tensor-model-parallel-size 3",
        "tensor 3 x pipeline 1 x context 1 = 3 does not divide 8",
    ),
    "given": ("a.sh", "--seq-length 8192", "a.sh says seq_len 8192, which contradicts the given 4096"),
    "model": ("a.sh", "--num-layers 80", "describes a model with layers 80; llama-3.1-8b has 32"),
    "batch": (
        "a.json",
        '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 3}',
        "contradicts the given 1",
    ),
    "parts of a batch": (
        "a.json",
        '{"train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}',
        "a.json: train_batch_size 256 is not train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 3 x a "
        "number of devices",
    ),
    "stages": (
        "a.sh",
        "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Et*16|t*15L'",
        "cuts 31 layers into 2 stages; the model has 32",
    ),
    "empty stage": (
        "a.sh",
        "--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*16|t*16|m|L'",
        "has a stage without layers",
    ),
    "uneven": ("a.sh", "--pipeline-model-parallel-size 5", "a divisor of the 32 layers"),
    "other file": (
        "a.yaml",
        "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}",
        "leaves everything to ds.json: import that file instead",
    ),
    "named section": (
        "a.json",
        '{"per_device_train_batch_size": 1, "fsdp": true, "fsdp_config": "x.json"}',
        "fsdp_config is the name of a file",
    ),
    "copies": (
        "a.yaml",
        "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nparallelism_config: "
        "{parallelism_config_dp_shard_size: 4, parallelism_config_dp_replicate_size: 4}",
        "needs 16 devices",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_name_what_contradicts_what(case: str) -> None:
    name, text, reason = REFUSALS[case]
    with pytest.raises(InputError, match=reason):
        read(name, text)


def test_a_format_can_be_named() -> None:
    text = "mixed_precision: bf16\nnum_processes: 8\n"
    found = import_text(text, "a.yaml", MODEL, NODES[1], GIVEN, "accelerate")
    assert found.plan.plan.zero_stage == 0
    with pytest.raises(
        UnknownName, match="unknown configuration format 'acelerate'; did you mean accelerate"
    ):
        import_text(text, "a.yaml", MODEL, NODES[1], GIVEN, "acelerate")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match=r"nowhere.yaml: no such file"):
        import_plan("nowhere.yaml", MODEL, NODES[1])


@pytest.mark.parametrize(("backend", "said"), [("no", False), ("'NO'", False), ("INDUCTOR", True)])
def test_a_compiler_that_accelerate_is_given_is_said_not_to_be_priced(backend: str, said: bool) -> None:
    text = f"distributed_type: FSDP\nnum_processes: 8\ndynamo_config:\n  dynamo_backend: {backend}\n"
    assumed = read("a.yaml", text).assumed
    wanted = ("stack=hf-fsdp (models compiled by dynamo_backend INDUCTOR are not priced)",)
    assert assumed == (wanted if said else ())
