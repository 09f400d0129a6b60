"""Result folders: everything a reader needs to believe, repeat or re-check an evaluation.

`result.json` holds settings, figures and provenance, `per_image.jsonl` one record per image, and
`adversarial.safetensors` the points. `result.json` is written last and holds digests of the others,
so that a folder is whole or says that it is not. docs/results.md describes every field.
"""

from __future__ import annotations

import glob
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from typing_extensions import TypedDict

from cpr_wrap import metrics
from cpr_wrap._checks import data_frame
from cpr_wrap._files import digest, write_in_order
from cpr_wrap.metrics.certificate import Certificate
from cpr_wrap.metrics.comparison import tidy_row
from cpr_wrap.metrics.curve import check_alphas
from cpr_wrap.metrics.losses import LossLike

SCHEMA = 2
RESULT, PER_IMAGE, POINTS = "result.json", "per_image.jsonl", "adversarial.safetensors"


class Figures(TypedDict):
    """All that is computed from the records, and can be computed again."""

    curve: list[dict[str, float | None]]  # a row per alpha
    losses: list[dict[str, Any]]  # a row per loss of the paper
    clean: dict[str, float | None]
    first_broken_by: dict[str, int]
    first_rejected_by: dict[str, int]
    passes_per_image: float


@dataclass(frozen=True, kw_only=True)
class CertificateFacts:
    """The rule that the proofs are about, and how long they took."""

    rule: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """The content of `result.json`; the seal is a digest of all of it, itself left empty."""

    schema: int
    about: metrics.About
    eps: float
    norm: str
    images: int
    figures: Figures
    passes: tuple[metrics.StageCost, ...]
    settings: metrics.Settings | None
    provenance: metrics.Provenance | None
    calibration: metrics.CalibrationFacts | None
    checks: tuple[metrics.Check, ...] | None
    ablation: tuple[metrics.AblationRow, ...] | None
    coverage: metrics.Coverage | None
    files: dict[str, str]
    effort: metrics.Effort | None = None
    certificate: CertificateFacts | None = None
    seal: str = ""


_OF_CURVE = {f.name for f in fields(ResultFile)} & {f.name for f in fields(metrics.RobustnessCurve)}
_OF_CURVE -= {"certificate"}  # the rest is the same in a file and in a curve


def seal_of(plain: dict[str, Any]) -> str:
    """The digest of a result file's content, its seal aside."""
    return digest(json.dumps({**plain, "seal": ""}, sort_keys=True))


def figures_of(curve: metrics.RobustnessCurve) -> Figures:
    """Compute every figure of a result from its curve; what is certified is None without proofs."""
    proven, losses = curve.certificate, []
    for loss in metrics.PAPER_LOSSES:
        interval = curve.total_robust_loss_interval(loss)
        row = {
            "name": loss.name,
            "value": curve.total_robust_loss(loss),
            "low": interval.low,
            "high": interval.high,
            "trapezoid": curve.total_robust_loss(loss, method="trapezoid"),
            "certified": None if proven is None else proven.total_robust_loss(loss),
        }
        losses.append(row)
    return Figures(
        curve=[{**r, "certified_accuracy": r.get("certified_accuracy")} for r in curve.table()],
        losses=losses,
        clean=metrics.clean_metrics(curve.records).to_dict(),
        first_broken_by=curve.records.first_broken_by(),
        first_rejected_by=curve.records.first_rejected_by(),
        passes_per_image=curve.passes_per_image,
    )


def save_result(curve: metrics.RobustnessCurve, folder: str | Path) -> Path:
    """Write a curve as `per_image.jsonl`, `adversarial.safetensors` and, last, `result.json`.

    Args:
        curve: The curve, as `robustness_curve` gives it.
        folder: Created if it does not exist.

    Returns:
        The folder.

    Example:
        >>> import tempfile
        >>> from cpr_wrap import RobustnessCurve
        >>> from cpr_wrap.metrics import Records
        >>> row = {"index": 0, "label": 3, "clean_label": 3, "outer_broken": False, "outer_by": "",
        ...        "outer_distance": None, "rejected_radius": 0.1, "rejected_by": "LCIA"}
        >>> curve = RobustnessCurve(Records.from_rows([row], eps=0.3, norm="Linf"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_result(save_result(curve, folder)).error_at(0.5)
        1.0
    """
    from pydantic_core import to_jsonable_python
    from safetensors.torch import save

    path = Path(folder)
    lines = curve.records.to_rows()
    if curve.origins:
        for line, origins in zip(lines, curve.origins, strict=True):
            line["origins"] = to_jsonable_python(origins)
    facts = None
    if proven := curve.certificate:
        facts = CertificateFacts(rule=proven.rule, seconds=proven.seconds)
        for line, row in zip(lines, proven.to_rows(), strict=True):
            line.update(row)
    data = {PER_IMAGE: "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()}
    if curve.points is not None:
        data[POINTS] = save({name: t.contiguous() for name, t in vars(curve.points).items()})
    content = ResultFile(
        schema=SCHEMA,
        eps=curve.eps,
        norm=curve.records.norm,
        images=len(curve.records),
        figures=figures_of(curve),
        certificate=facts,
        **{name: getattr(curve, name) for name in _OF_CURVE},
        files={name: digest(held) for name, held in data.items()},
    )
    plain = to_jsonable_python(content)
    plain["seal"] = seal_of(plain)
    data[RESULT] = (json.dumps(plain, indent=2, allow_nan=False) + "\n").encode()
    if POINTS not in data:
        (path / POINTS).unlink(missing_ok=True)
    write_in_order({path / name: held for name, held in data.items()})
    return path


def load_result(
    folder: str | Path, *, points: bool = True, check: bool = True
) -> metrics.RobustnessCurve:
    """Read a result folder; the curve is computed again from the per-image records.

    Args:
        folder: A folder that `save_result` wrote.
        points: Whether to read the points as well.
        check: Whether to refuse files whose digest in `result.json` does not match.

    Example:
        >>> curve = load_result("runs/at")  # doctest: +SKIP
        >>> curve.error_at(0.5)  # doctest: +SKIP
    """
    path = Path(folder)
    content = read_file(path)
    if check:
        for problem in foreign_files(path, content):
            raise ValueError(problem)
    lines = enumerate(_text(path / PER_IMAGE).splitlines(), 1)
    rows = [_parsed(line, f"{path / PER_IMAGE}, line {number}") for number, line in lines]
    held = [row["origins"] for row in rows if "origins" in row]
    origins = _from_plain(tuple[metrics.Origins, ...], held, path / PER_IMAGE)
    records, proven = metrics.Records.from_rows(rows, eps=content.eps, norm=content.norm), None
    if facts := content.certificate:
        proven = Certificate.from_rows(rows, eps=content.eps, index=records.index, **vars(facts))
    return metrics.RobustnessCurve(
        records,
        alphas=check_alphas(tuple(row.get("alpha") for row in content.figures["curve"])),
        points=_points(path) if points else None,
        origins=origins if len(origins) == len(rows) else (),
        certificate=proven,
        **{name: getattr(content, name) for name in _OF_CURVE},
    )


def read_json(folder: str | Path) -> dict[str, Any]:
    """The content of a folder's `result.json` as it stands there."""
    file = Path(folder) / RESULT
    plain = _parsed(_text(file), file)
    if not isinstance(plain, dict):
        raise ValueError(f"{file} is damaged: expected an object, got {type(plain).__name__}")
    return plain


def _parsed(text: str, where: object) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is damaged: {error}") from error


def read_file(folder: str | Path) -> ResultFile:
    """The content of a folder's `result.json`, checked."""
    file, plain = Path(folder, RESULT), read_json(folder)
    if plain.get("schema") != SCHEMA:
        raise ValueError(
            f"{file}: expected schema {SCHEMA}, got {plain.get('schema')!r}, written by cpr-wrap "
            f"{_version(plain)}; evaluate again, or read it with that version"
        )
    content: ResultFile = _from_plain(ResultFile, plain, file)
    return content


def _version(plain: dict[str, Any]) -> str:
    """The version that wrote a file of any schema, as far as it can be told."""
    for holder in (plain, plain.get("provenance")):
        versions = holder.get("versions") if isinstance(holder, dict) else None
        if isinstance(versions, dict) and "cpr_wrap" in versions:
            return str(versions["cpr_wrap"])
    return "of another version"


def foreign_files(folder: str | Path, content: ResultFile) -> Iterator[str]:
    """Files of a folder that are not the ones its `result.json` was written for."""
    for name in (PER_IMAGE, POINTS):
        file = Path(folder) / name
        # The points are large, and often left out of copies.
        if file.exists() and content.files.get(name) != digest(file.read_bytes()):
            yield (
                f"{file} is not the file that {RESULT} was written for: the folder was edited, or "
                "mixes two runs"
            )


def _points(path: Path) -> metrics.Points | None:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not (path / POINTS).exists():
        return None
    try:
        return metrics.Points(**load((path / POINTS).read_bytes()))
    except (SafetensorError, TypeError) as error:
        raise ValueError(f"{path / POINTS} is damaged: {error}") from error


def _text(file: Path) -> str:
    if file.exists():
        return file.read_text()
    raise FileNotFoundError(
        f"{file} does not exist; expected a result folder as `cpr-wrap curve --out` writes it"
    )


def _from_plain(kind: Any, plain: Any, where: Path) -> Any:
    """A dataclass of what was written of it; a wrong type or field is named."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} is damaged: {place}: {first['msg']}") from error


@dataclass(frozen=True, eq=False)
class Results:
    """Result folders that were found, without their points."""

    folders: tuple[Path, ...]  #: The folders.
    curves: tuple[metrics.RobustnessCurve, ...]  #: Their curves, in the same order.

    def __len__(self) -> int:
        return len(self.folders)

    def __iter__(self) -> Iterator[metrics.RobustnessCurve]:
        return iter(self.curves)

    def rows(self, losses: Sequence[LossLike] = metrics.PAPER_LOSSES) -> list[dict[str, Any]]:
        """One row of plain values per run; docs/results.md describes the columns."""
        return [
            {**tidy_row(curve, losses), "folder": str(folder)}
            for folder, curve in zip(self.folders, self.curves, strict=True)
        ]

    def to_frame(self, losses: Sequence[LossLike] = metrics.PAPER_LOSSES) -> Any:
        """The rows as a pandas DataFrame."""
        return data_frame(self.rows(losses))


def results(where: str | Path | Iterable[str | Path]) -> Results:
    """Find result folders and read them.

    Args:
        where: A result folder, a folder with results anywhere below it, a pattern like `runs/**`,
            or several of these.

    Example:
        >>> frame = results("runs/**").to_frame()  # doctest: +SKIP
        >>> frame[["name", "eps", "step:0.05"]]  # doctest: +SKIP
    """
    folders = tuple(result_folders([where] if isinstance(where, str | Path) else where))
    return Results(folders, tuple(load_result(folder, points=False) for folder in folders))


def result_folders(several: Iterable[str | Path]) -> list[Path]:
    """The result folders that folders or patterns name, each once; those of one name sorted."""
    found: list[Path] = []
    for each in several:
        path = Path(each)
        if (path / RESULT).exists():  # it holds a store, but no other results
            files = [path / RESULT]
        elif path.is_dir():
            files = list(path.rglob(RESULT))
        else:
            files = [Path(match, RESULT) for match in glob.glob(str(each), recursive=True)]
        here = sorted(file.parent for file in files if file.is_file())
        if not here:
            raise FileNotFoundError(f"{each}: found no result folder, which has a {RESULT}")
        found += here
    return list(dict.fromkeys(found))
