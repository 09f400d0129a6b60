"""Tables, drawings, figures, the HTML report, and files for other tools."""

from __future__ import annotations

from cpr_wrap.report.export import (
    adversarial_images,
    model_info,
    write_adversarial_images,
    write_model_info,
)
from cpr_wrap.report.gallery import Exhibit, Gallery, load_gallery, make_gallery, save_gallery
from cpr_wrap.report.html import report_html, write_report
from cpr_wrap.report.plots import curve_figure, histogram_figure, write_figure
from cpr_wrap.report.run import Run
from cpr_wrap.report.table import Cell, Column, Table
from cpr_wrap.report.tables import (
    TABLE_1_LOSSES,
    compare_table,
    comparison,
    curve_table,
    curve_values,
    losses,
    losses_table,
    traditional,
    traditional_table,
)
from cpr_wrap.report.terminal import draw_terminal, draws_braille

__all__ = [
    "TABLE_1_LOSSES",
    "Cell",
    "Column",
    "Exhibit",
    "Gallery",
    "Run",
    "Table",
    "adversarial_images",
    "compare_table",
    "comparison",
    "curve_figure",
    "curve_table",
    "curve_values",
    "draw_terminal",
    "draws_braille",
    "histogram_figure",
    "load_gallery",
    "losses",
    "losses_table",
    "make_gallery",
    "model_info",
    "report_html",
    "save_gallery",
    "traditional",
    "traditional_table",
    "write_adversarial_images",
    "write_figure",
    "write_model_info",
    "write_report",
]
