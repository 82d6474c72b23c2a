"""What a browser may ask: names of shipped models and clusters, sizes within limits, never a file."""

from typing import Annotated

from pydantic import Field

from cluster_specs.catalog import list_clusters
from cluster_specs.changes import changed
from cluster_specs.cluster import ClusterSpec, DeviceSpec
from cluster_specs.errors import InputError, UnknownName
from cluster_specs.record import Record
from cluster_specs.sizing import sized
from cluster_specs.usual_stacks import usual_stack
from planner.analysis.questions import Question
from planner.models.catalog import list_models, load_model
from planner.models.model import Model
from planner.plans import Job, Objective, Pins

MOST_DEVICES = 16_384
MOST_SEQUENCES = 1_000_000
MOST_TOKENS = 10_000_000
"""Beyond these a search takes minutes, and the command line is the better place."""

Factor = Annotated[float, Field(ge=0.1, le=10)]


class Asked(Record):
    """One question of the form, as its browser sends it."""

    model: str = Field(max_length=100)
    """Name of a shipped model."""
    cluster: str = Field(max_length=100)
    """Name of a shipped cluster, without a size."""
    devices: int = Field(gt=0, le=MOST_DEVICES)
    compute: Factor = 1.0
    """Over the device's own FLOP/s."""
    memory_bandwidth: Factor = 1.0
    """Over the device's own."""
    scale_up: Factor = 1.0
    """Bandwidth of the fastest links over their own."""
    network: Factor = 1.0
    """Bandwidth of the slowest network over its own."""
    objective: Objective = "time"
    job: Job
    pins: Pins = Pins()

    def question(self) -> Question:
        """What the search is asked; ``InputError`` for an unknown name or a size that does not exist."""
        model, cluster = self._model(), self._cluster()
        return Question(model, cluster, _within_limits(self._job(cluster.device)), self.pins)

    def _job(self, device: DeviceSpec) -> Job:
        """With the stack that is usual on the device where the browser leaves it open."""
        if "stack" in self.job.model_fields_set:
            return self.job
        return self.job.model_copy(update={"stack": usual_stack(device)})

    def _model(self) -> Model:
        if self.model not in list_models():
            raise UnknownName("model", self.model, list_models())
        return load_model(self.model)

    def _cluster(self) -> ClusterSpec:
        known = [entry.name for entry in list_clusters()]
        if self.cluster not in known:
            raise UnknownName("cluster", self.cluster, known)
        factors = {
            "compute": self.compute,
            "memory-bandwidth": self.memory_bandwidth,
            "scale-up": self.scale_up,
            "network": self.network,
        }
        turned = {knob: f"{factor}x" for knob, factor in factors.items() if factor != 1}
        return changed(sized(self.cluster, self.devices), turned)


class Nearby(Record):
    """A question, and the one that was answered before it."""

    asked: Asked
    before: Asked


def _within_limits(job: Job) -> Job:
    for name, most in (("global_batch", MOST_SEQUENCES), ("seq_len", MOST_TOKENS)):
        if getattr(job, name) > most:
            raise InputError(f"job.{name} is {getattr(job, name)}; this page takes at most {most:,}")
    return job
