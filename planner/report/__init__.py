"""Reports for people: records in, rich renderables out; `console.show` prints them.

Memory is shown in GiB (2**30 bytes), rates with decimal prefixes. Colour is never the only signal.
"""

from planner.report.catalogues import catalogue_report, fields_report
from planner.report.comparisons import comparison_report
from planner.report.fitting import fit_report
from planner.report.plans import plan_report
from planner.report.sweeps import outlook_text
from planner.report.validation import validation_report
from planner.report.verification import verification_report

__all__ = [
    "catalogue_report",
    "comparison_report",
    "fields_report",
    "fit_report",
    "outlook_text",
    "plan_report",
    "validation_report",
    "verification_report",
]
