"""The form and the page around it."""

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape
from typing import NamedTuple

from cluster_specs.catalog import list_clusters
from cluster_specs.sizing import default_sizes
from planner.models.catalog import list_models
from planner.pages.page import template
from planner.server.asking import MOST_SEQUENCES, MOST_TOKENS

MODEL, CLUSTER, DEVICES, BATCH, LENGTH = "llama-3.1-8b", "dgx-h100", 8, 256, 8192
"""What the page asks first."""

MOST_OFFERED = 4096
"""Devices at the end of the slider."""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Meshwright</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/page.css">
<link rel="stylesheet" href="/static/form.css">
<script type="module" src="/static/form.js"></script>
</head>
<body>
<form id="ask" aria-label="What to plan">
{fields}
</form>
<p id="state" role="status" aria-live="polite"></p>
<main>
<h1 id="title">Meshwright</h1>
<div id="answer"><noscript><p>This page needs JavaScript; <code>meshwright report</code> writes pages that are nearly
as good without.</p></noscript></div>
</main>
</body>
</html>
"""

FACTORS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4)
"""Stops of the sliders that make hardware faster or slower."""


class Slider(NamedTuple):
    """One knob of the hardware."""

    name: str
    label: str


SLIDERS = (
    Slider("network", "slowest network"),
    Slider("scale_up", "fastest links"),
    Slider("memory_bandwidth", "memory bandwidth"),
    Slider("compute", "FLOP/s"),
)

CHOICES = {
    "job.precision": ("precision", ("bf16", "fp8", "fp4", "fp16", "fp32")),
    "job.optimizer": (
        "optimizer",
        ("adamw", "adamw8bit", "adamw_bnb_8bit", "muon", "adafactor", "sgd", "plain-sgd"),
    ),
    "objective": ("best in", ("time", "cost", "devices")),
}
"""Field -> label and values, the first of them chosen."""

PINS = {
    "pins.tensor": ("tensor", ("1", "2", "4", "8")),
    "pins.pipeline": ("pipeline", ("1", "2", "4", "8", "16")),
    "pins.context": ("context", ("1", "2", "4", "8")),
    "pins.zero_stage": ("ZeRO", ("0", "1", "2", "3")),
    "pins.recompute": ("recompute", ("none", "selective", "full")),
}
"""Parts of the plan that can be fixed -> label and values."""


@cache
def form_page() -> str:
    """The whole page; it asks its first question by itself."""
    return PAGE.format(fields="\n".join(_fields()))


def _fields() -> Iterator[str]:
    yield _select("model", "model", list_models(), MODEL)
    names = [entry.name for entry in list_clusters()]
    sizes = {name: default_sizes(name, MOST_OFFERED) for name in names}
    yield _select("cluster", "cluster", names, CLUSTER)
    yield (
        '<label>devices <span class="value" id="devices-text"></span>'
        f'<input id="sizes" type="range" min="0" step="1" value="0" data-sizes="{escape(json.dumps(sizes))}"></label>'
    )
    yield f'<input type="hidden" name="devices" value="{DEVICES}">'
    yield _number("job.global_batch", "sequences a step", BATCH, MOST_SEQUENCES)
    yield _number("job.seq_len", "tokens a sequence", LENGTH, MOST_TOKENS)
    for name, (label, values) in CHOICES.items():
        yield _select(name, label, values, values[0])
    yield f"<fieldset><legend>Hardware, times what it is</legend>{''.join(map(_slider, SLIDERS))}</fieldset>"
    pins = (_select(name, label, values, "", free=True) for name, (label, values) in PINS.items())
    yield f"<fieldset><legend>Fixed parts of the plan</legend>{''.join(pins)}</fieldset>"


def _select(name: str, label: str, values: Iterable[str], chosen: str, free: bool = False) -> str:
    options = ['<option value="">free</option>'] if free else []
    for value in values:
        mark = " selected" if value == chosen else ""
        options.append(f'<option value="{escape(value)}"{mark}>{escape(value)}</option>')
    return f'<label>{escape(label)} <select name="{name}">{"".join(options)}</select></label>'


def _number(name: str, label: str, value: int, most: int) -> str:
    return (
        f'<label>{escape(label)} <input name="{name}" type="number" min="1" max="{most}" value="{value}" '
        'inputmode="numeric" required></label>'
    )


def _slider(slider: Slider) -> str:
    stops: Sequence[float] = FACTORS
    return (
        f'<label>{escape(slider.label)} <span class="value">1x</span><input name="{slider.name}" type="range" min="0" '
        f'max="{len(stops) - 1}" step="1" value="{stops.index(1)}" data-stops="{escape(json.dumps(stops))}"></label>'
    )


def static_files() -> dict[str, tuple[str, str]]:
    """Everything else that the page loads: name -> media type and text."""
    from importlib.resources import files

    from planner.pages.charts import chart_library

    own = files("planner.server") / "templates"
    script, style = "text/javascript", "text/css"
    return {
        "page.css": (style, template("page.css")),
        "charts.js": (script, template("charts.js")),
        "timeline.js": (script, template("timeline.js")),
        "vega.js": (script, chart_library()),
        "form.css": (style, (own / "form.css").read_text(encoding="utf-8")),
        "form.js": (script, (own / "form.js").read_text(encoding="utf-8")),
    }
