"""One stage of a Llama in PyTorch's pipeline runtime: what tracking_stages.py measures."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import tracked_model
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining._utils import InferenceMode
from torch.nn import functional

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}


class Stage(tracked_model.Model):
    """Some layers; before them the embedding, or behind them norm and head, where it has these."""

    def __init__(self, sizes: Mapping[str, Any], recompute: str, first: bool, last: bool) -> None:
        super().__init__({**sizes, "tied": False}, recompute, saved_away=False)
        self.first, self.last = first, last
        if not first:
            del self.embedding
        if not last:
            del self.head, self.norm

    def forward(self, x: Any) -> Any:
        """What the next stage reads, or logits."""
        x = self.embedding(x) if self.first else x
        x = self.through_layers(x)
        return self.head(self.norm(x)) if self.last else x

    def share(self, plan: Mapping[str, Any], mesh: Any) -> None:
        """Share states over data ranks; the ends are units of their own."""
        tracked_model.share(self, plan, mesh)


def stage_of(sizes: Mapping[str, Any], plan: Mapping[str, Any], rank: int) -> Stage:
    """That of ``rank``: as many layers as any other."""
    own = {**sizes, "layers": sizes["layers"] // plan["pp"]}
    return Stage(own, plan["recompute"], first=rank == 0, last=rank == plan["pp"] - 1)


def scheduled(
    model: Stage, row: Mapping[str, Any], rank: int, group: Any, before: Callable[[], None]
) -> Callable[[Any], None]:
    """Runs all micro-batches of a step, given its tokens; ``before`` comes before each forward."""
    sizes, plan = row["model"], row["parallel"]
    shape = (plan["micro_batch"], sizes["seq"])
    tokens = torch.zeros(shape, dtype=torch.int64)
    between = torch.zeros((*shape, sizes["hidden"]), dtype=torch.bfloat16, requires_grad=True)
    logits = torch.zeros((*shape, sizes["vocab"]), dtype=torch.bfloat16, requires_grad=True)
    stage = PipelineStage(
        model,
        rank,
        plan["pp"],
        torch.device("cpu"),
        input_args=(tokens if model.first else between,),
        output_args=(logits if model.last else between,),
        group=group,
    )
    forward = stage.forward_one_chunk

    def counted(*given: Any, **more: Any) -> Any:
        before()
        return forward(*given, **more)

    stage.forward_one_chunk = counted
    schedule = SCHEDULES[plan["schedule"]](stage, plan["grad_accum"], loss_fn=_loss)
    # Ranks would ask each other whether all have said what they exchange; there is only one.
    schedule._warmup_p2p = lambda *_: setattr(stage, "_inference_mode", InferenceMode.STATIC)

    def step(batch: Any) -> None:
        given = (batch,) if model.first else ()
        schedule.step(*given, return_outputs=False, **({"target": batch} if model.last else {}))

    return step


def _loss(logits: Any, tokens: Any) -> Any:
    return functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
