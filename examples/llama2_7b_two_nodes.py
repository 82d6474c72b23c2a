"""Fine-tuning Llama-2-7B on two nodes of four A100 joined by 50 Gbit/s: which sharding, and what does each fix buy?

Measured on such machines at a sequence length of 1024, in tokens/s of the whole job: fully sharded over all eight
devices about 1,500; recomputing activations, so that one node does, about 8,000; with FlashAttention-2 about 16,000;
back on both nodes, sharded inside a node and replicated across, about 24,000.

The micro-batch was not published. Assumed: one sequence per device, accumulated to a global batch of 256; gradients
reduced in bf16; an eager Hugging Face stack (hf-fsdp), with its plain attention before FlashAttention-2.
"""

from planner import Estimate, Job, Parallelism, Plan, evaluate, load_cluster, load_model, plan

GLOBAL_BATCH, SEQ_LEN = 256, 1024

STEPS = {
    "fully sharded over both nodes": (2, "FULL_SHARD", "none", "plain", 1_500),
    "recomputing, on one node": (1, "FULL_SHARD", "full", "plain", 8_000),
    "with FlashAttention-2": (1, "FULL_SHARD", "full", "flash", 16_000),
    "hybrid sharding over both": (2, "HYBRID_SHARD", "full", "flash", 24_000),
}
"""What was changed -> nodes, sharding, recompute, attention, measured tokens/s."""


def estimate(nodes: int, sharding: str, recompute: str, attention: str) -> Estimate:
    """One hand-written plan, with a micro-batch of one sequence."""
    ranks, near = 4 * nodes, 4 if sharding == "HYBRID_SHARD" else 4 * nodes
    choice = Parallelism(
        data=ranks,
        num_microbatches=GLOBAL_BATCH // ranks,
        zero_stage=3,
        sharding=sharding,
        shard_degree=near,
        replicate_degree=ranks // near,
        recompute=recompute,
    )
    job = Job(
        global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN, attention=attention, reduce_dtype="bf16", stack="hf-fsdp"
    )
    cluster = load_cluster(f"a100-4x-50g:{nodes}")
    return evaluate(Plan(model=load_model("llama-2-7b"), cluster=cluster, job=job, plan=choice))


if __name__ == "__main__":
    print(f"{'tokens/s':<32}{'measured':>10}{'predicted':>11}  waits for data-parallel traffic")
    for name, (*how, measured) in STEPS.items():
        found = estimate(*how)
        waits = found.time.get("data", 0.0) / found.step_time_s
        print(f"{name:<32}{measured:>10,}{round(found.tokens_per_s, -2):>11,.0f}  {waits:.0%}")

    best = plan("llama-2-7b", "a100-4x-50g:2", global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN)
    choice = best.plan
    print(
        f"\nrecommended: {choice.sharding}, sharded over {choice.shard_degree} devices, "
        f"replicated {choice.replicate_degree} times"
    )
