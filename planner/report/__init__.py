"""Reports for people: records in, rich renderables out; `console.show` prints them.

Memory is shown in GiB (2**30 bytes), rates with decimal prefixes. Colour is never the only signal. Each report is
loaded when it is first asked for: one for a plan needs none of what sweeps and validation are made of.
"""

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.report.catalogues import catalogue_report as catalogue_report
    from planner.report.catalogues import fields_report as fields_report
    from planner.report.comparisons import comparison_report as comparison_report
    from planner.report.fitting import fit_report as fit_report
    from planner.report.plans import plan_report as plan_report
    from planner.report.sweeps import outlook_text as outlook_text
    from planner.report.validation import validation_report as validation_report
    from planner.report.verification import verification_report as verification_report

_HOME = MappingProxyType(
    {
        "catalogue_report": "catalogues",
        "comparison_report": "comparisons",
        "fields_report": "catalogues",
        "fit_report": "fitting",
        "outlook_text": "sweeps",
        "plan_report": "plans",
        "validation_report": "validation",
        "verification_report": "verification",
    }
)
"""Report -> module."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    """A report, loaded from its module on first use (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
