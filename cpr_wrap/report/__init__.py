"""Tables, figures, the HTML report, and files for other tools."""

from __future__ import annotations

from cpr_wrap.report.export import (
    adversarial_images,
    model_info,
    write_adversarial_images,
    write_model_info,
)
from cpr_wrap.report.gallery import Exhibit, Gallery, load_gallery, make_gallery, save_gallery
from cpr_wrap.report.html import report_html, write_report
from cpr_wrap.report.plots import curve_figure, write_figure
from cpr_wrap.report.run import Run
from cpr_wrap.report.table import Cell, Column, Table
from cpr_wrap.report.tables import (
    curve_values,
    losses,
    ranked_rows,
    ranking,
    traditional,
    with_bars,
)

__all__ = [
    "Cell",
    "Column",
    "Exhibit",
    "Gallery",
    "Run",
    "Table",
    "adversarial_images",
    "curve_figure",
    "curve_values",
    "load_gallery",
    "losses",
    "make_gallery",
    "model_info",
    "ranked_rows",
    "ranking",
    "report_html",
    "save_gallery",
    "traditional",
    "with_bars",
    "write_adversarial_images",
    "write_figure",
    "write_model_info",
    "write_report",
]
