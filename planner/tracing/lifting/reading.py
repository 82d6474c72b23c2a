"""Models from files, traced programs among them."""

from pathlib import Path

from cluster_specs.texts import load_mapping
from planner.models import catalog
from planner.models.model import Model


def load_model(source: str | Path) -> Model:
    """As `planner.models.catalog.load_model`, and the file of a traced program as a model by its graph.

    Raises ``Unsupported`` where a program cannot be written as blocks of operators.
    """
    path = Path(source)
    if path.suffix == ".json" and path.is_file():
        from cluster_specs.record import validated
        from planner.tracing.lifting.model import model_of
        from planner.tracing.program import SCHEMA, Program

        data = load_mapping(path)
        if data.get("schema") == SCHEMA:
            return model_of(validated(Program, data, str(path)), str(path))
    return catalog.load_model(source)
