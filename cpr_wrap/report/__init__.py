"""Tables, figures, the HTML report, and files for other tools."""

from cpr_wrap.report.export import adversarial_images as adversarial_images
from cpr_wrap.report.export import model_info as model_info
from cpr_wrap.report.export import write_adversarial_images as write_adversarial_images
from cpr_wrap.report.export import write_model_info as write_model_info
from cpr_wrap.report.gallery import Exhibit as Exhibit
from cpr_wrap.report.gallery import Gallery as Gallery
from cpr_wrap.report.gallery import load_gallery as load_gallery
from cpr_wrap.report.gallery import make_gallery as make_gallery
from cpr_wrap.report.gallery import save_gallery as save_gallery
from cpr_wrap.report.html import report_html as report_html
from cpr_wrap.report.html import write_report as write_report
from cpr_wrap.report.plots import curve_figure as curve_figure
from cpr_wrap.report.plots import write_figure as write_figure
from cpr_wrap.report.run import Run as Run
from cpr_wrap.report.table import Cell as Cell
from cpr_wrap.report.table import Column as Column
from cpr_wrap.report.table import Table as Table
from cpr_wrap.report.tables import curve_values as curve_values
from cpr_wrap.report.tables import losses as losses
from cpr_wrap.report.tables import ranked_rows as ranked_rows
from cpr_wrap.report.tables import ranking as ranking
from cpr_wrap.report.tables import traditional as traditional
from cpr_wrap.report.tables import with_bars as with_bars
