"""How the command line shows things: tables and panels on a terminal, plain lines in a pipe."""

from mpsim._text.console import print_json, show, table
from mpsim._text.numbers import format_dict, format_panel, formats_table, inspection_panel, inspections_table
from mpsim._text.results import (
    claims_table,
    diagnosis_lines,
    observe_dict,
    observe_table,
    outcomes_table,
    rounding_dict,
    rounding_table,
    study_table,
    timing_dict,
    timings_table,
    train_dict,
    train_table,
)
from mpsim._text.units import alike, explanation_dict, units_legend, units_table

__all__ = [
    "alike",
    "claims_table",
    "diagnosis_lines",
    "explanation_dict",
    "format_dict",
    "format_panel",
    "formats_table",
    "inspection_panel",
    "inspections_table",
    "observe_dict",
    "observe_table",
    "outcomes_table",
    "print_json",
    "rounding_dict",
    "rounding_table",
    "show",
    "study_table",
    "table",
    "timing_dict",
    "timings_table",
    "train_dict",
    "train_table",
    "units_legend",
    "units_table",
]
