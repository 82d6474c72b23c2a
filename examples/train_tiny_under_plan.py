"""Training under a plan, with what was predicted beside what was measured: a tiny Llama on two CPU processes.

On a real cluster the same lines run under torchrun, once in every process, and `cluster="auto"` finds its GPUs. The
measured row goes to `meshwright validate`. Figures, which differ from machine to machine, are on stderr.
"""

import functools
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import LlamaConfig, LlamaForCausalLM

from planner import Monitor, plan_for, validate

PROCESSES, STEPS, GLOBAL_BATCH, SEQ_LEN = 2, 6, 8, 128

CONFIG = LlamaConfig(
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=512,
    use_cache=False,
)


def train(rank: int, store: str, rows: str) -> None:
    """One process: plan, shard, a few steps, and from the first one the measurements."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES)
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG)
    adamw = functools.partial(torch.optim.AdamW, lr=1e-3)
    planned = plan_for(model, optimizer=adamw, global_batch=GLOBAL_BATCH, seq_len=SEQ_LEN, precision="fp32")
    p = planned.plan.plan
    tokens = torch.randint(512, (GLOBAL_BATCH, SEQ_LEN), generator=torch.Generator().manual_seed(1))
    mine = tokens.chunk(p.data)[rank // p.tensor]
    monitor, losses = Monitor(planned.plan), []
    for _ in range(STEPS):
        with monitor.step():
            total = 0.0
            for micro in mine.split(p.micro_batch):
                with planned.module.loss_context():
                    logits = model(micro[:, :-1]).logits
                    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), micro[:, 1:].flatten())
                    (loss / p.num_microbatches).backward()
                total += float(loss.detach()) / p.num_microbatches
            planned.optimizer.step()
            planned.optimizer.zero_grad()
        losses.append(total)
    if rank == 0:
        monitor.write(rows)
        report(planned.plan, monitor.measured, losses)
    dist.barrier()
    dist.destroy_process_group()


def report(plan, measured, losses) -> None:
    p = plan.plan
    print(f"{p.num_devices} processes, {p.micro_batch * p.num_microbatches * p.data} sequences a step")
    print(f"{measured.steps} steps measured, the loss falls: {losses[-1] < losses[0]}")
    sys.stderr.write(
        f"plan: data {p.data}, tensor {p.tensor}, ZeRO {p.zero_stage}, micro-batch {p.micro_batch}\n"
        f"step time: predicted {measured.predicted_step_time_s:.3g} s, measured {measured.step_time_s:.3g} s\n"
        f"memory: predicted {measured.predicted_memory_bytes / 2**20:.0f} MiB of tensors and framework, "
        f"measured {measured.memory_bytes / 2**20:.0f} MiB of the whole process\n"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "runs.jsonl"
        mp.start_processes(train, (f"{folder}/store", str(rows)), nprocs=PROCESSES, start_method="fork")
        scored = validate(rows).rows
        print(f"{len(scored)} row for validate, skipped: {scored[0].skipped}")
        print(f"measured: {', '.join(json.loads(rows.read_text())['measured'])}")


if __name__ == "__main__":
    torch.set_num_threads(1)  # no threads that a fork would lose
    main()
