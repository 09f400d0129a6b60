"""One HTML file about one or several runs, rendered from templates."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from cpr_wrap import __version__, _text
from cpr_wrap._files import write_atomically
from cpr_wrap.metrics.comparison import implied
from cpr_wrap.report import charts, tables
from cpr_wrap.report.gallery import Gallery, make_gallery
from cpr_wrap.report.run import Run, RunLike, as_runs, labels

LONGEST_SIDE = 160  # of a picture in the page; larger ones are shrunk


def write_report(
    runs: RunLike | Sequence[RunLike], out: str | Path, title: str | None = None
) -> Path:
    """Write one self-contained HTML file about one or several runs.

    Args:
        runs: Runs, curves or result folders.
        out: The file to write, or a folder for `report.html`.
        title: Heading of the report.

    Returns:
        The file.

    Example::

        write_report(["runs/at", "runs/trades"], "report.html")
    """
    page = report_html(runs, title)
    path = Path(out)
    if path.is_dir() or not path.suffix:
        path = path / "report.html"
    write_atomically(path, page)
    return path


def report_html(runs: RunLike | Sequence[RunLike], title: str | None = None) -> str:
    """The report as text; see `write_report`."""
    several = as_runs(runs)
    names = labels(several)
    if title is None:
        title = names[0] if len(several) == 1 else f"{len(several)} selective classifiers"
    environment = _environment()
    page: str = environment.get_template("page.html").render(
        title=title,
        runs=several,
        names=names,
        version=__version__,
        own={name: _own(environment, name) for name in ("report.css", "report.js")},
    )
    return page


def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("cpr_wrap.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(charts=charts, tables=tables, pictures=pictures, implied=implied)
    environment.filters.update(
        percent=_text.percent, count=_text.count_text, eps=_text.eps_text, listed=flattened
    )
    return environment


def _own(environment: Any, name: str) -> dict[str, str]:
    """Our own style sheet or script, which goes into the page as it is, and its digest."""
    from markupsafe import Markup

    text, _, _ = environment.loader.get_source(environment, name)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"text": Markup(text), "digest": f"sha256-{digest}"}


def pictures(run: Run) -> list[dict[str, Any]]:
    """The exhibits of a run's gallery with their pictures; none where it has no pictures."""
    points, gallery = run.curve.points, run.gallery
    if gallery is None and points is not None and points.clean.shape[1] in (1, 3):
        gallery = make_gallery(None, run.curve) if points.clean.dim() == 4 else None
    return [] if gallery is None else [_exhibit(gallery, place) for place in range(len(gallery))]


def _exhibit(gallery: Gallery, place: int) -> dict[str, Any]:
    clean, perturbed = gallery.clean[place], gallery.perturbed[place]
    change = perturbed - clean
    factor = 0.5 / (float(change.abs().max()) or 0.5)
    shown = {"clean": clean, "perturbed": perturbed}
    if gallery.transformed is not None:
        shown["T(perturbed)"] = gallery.transformed[place]
    shown[f"difference ×{factor:.3g}"] = 0.5 + factor * change
    return {
        "told": gallery.exhibits[place],
        "images": {name: data_uri(image) for name, image in shown.items()},
        "small": max(clean.shape[-2:]) <= 64,
    }


def data_uri(image: Tensor) -> str:
    """An image `(C, H, W)`, one or three channels, as PNG for a page; [0, 1] is the range shown."""
    from PIL import Image

    levels = (image.detach().cpu().double() * 255).round().clamp(0, 255).byte().numpy()
    picture = Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0))
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE), Image.Resampling.BOX)
    out = io.BytesIO()
    picture.save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def flattened(run: Run) -> list[tuple[str, str]]:
    """All settings of a run as pairs of dotted names and texts."""
    curve, about = run.curve, run.curve.about
    pairs = [(name, text) for name, text in asdict(about).items() if text and name in _ABOUT]
    parts = {"": curve.settings, "calibration": curve.calibration, "provenance": curve.provenance}
    for name, held in parts.items():
        pairs += [] if held is None else _flat(asdict(held), name)
    return pairs


_ABOUT = ("model", "network", "dataset", "part", "dataset_note")


def _flat(value: Any, name: str) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        entries = ((f"{name}.{key}" if name else str(key), entry) for key, entry in value.items())
        return [pair for key, entry in entries for pair in _flat(entry, key)]
    if name.rsplit(".", 1)[-1] == "eps" and isinstance(value, float):
        return [(name, _text.eps_text(value))]
    return [(name, _plain(value))]


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: _text.MISSING}[value]
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_plain, value))
    return str(value)
