"""Result folders: everything a reader needs to believe, repeat or re-check an evaluation.

`result.json` holds settings, figures and provenance, `per_image.jsonl` one record per image, and
`adversarial.safetensors` the points. `result.json` is written last and holds digests of the others,
so that a folder is whole or says that it is not. docs/results.md describes every field.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpr_wrap._files import digest, write_in_order
from cpr_wrap.metrics import (
    PAPER_LOSSES,
    AblationRow,
    About,
    CalibrationFacts,
    Check,
    Coverage,
    Effort,
    Origins,
    Points,
    Provenance,
    Records,
    RobustnessCurve,
    Settings,
    StageCost,
)
from cpr_wrap.metrics.certificate import Certificate

SCHEMA = 2
RESULT, PER_IMAGE, POINTS = "result.json", "per_image.jsonl", "adversarial.safetensors"


@dataclass(frozen=True, kw_only=True)
class AlphaRow:
    """The curve at one alpha; what is certified is null where nothing was proven."""

    alpha: float
    radius: float
    error: float
    error_low: float
    error_high: float
    accuracy: float
    certified_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class LossRow:
    """A total robust loss with its interval.

    `trapezoid` is the paper's approximation; `certified` is a proven bound, null without proofs.
    """

    name: str
    value: float
    low: float
    high: float
    trapezoid: float
    certified: float | None = None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """All that is computed from the records, and can be computed again.

    Attributes:
        curve: The curve at the tabulated alphas.
        losses: The paper's losses.
        clean: Figures on clean images.
        first_broken_by: Images whose nearest accepted mistake each attack found.
        first_rejected_by: Images whose nearest rejected point each attack found.
        passes_per_image: Forwards and backwards per image.
    """

    curve: tuple[AlphaRow, ...]
    losses: tuple[LossRow, ...]
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
    """The content of `result.json`.

    Attributes:
        schema: Version of this layout.
        about: What the run is called, and where model and images came from.
        eps: Budget of the adversary.
        norm: Its norm.
        images: How many images.
        figures: What the records say.
        passes: What each stage cost.
        settings: How it was run.
        provenance: Versions, digests, notes.
        calibration: How the rule was calibrated.
        checks: Answers of the audit; null where the run was not audited.
        ablation: What each attack does alone.
        coverage: Areas under risk over coverage.
        effort: What a longer search found on a sample of the images.
        files: Digests of the other files.
        certificate: How the certified figures were made; null where there are none.
        seal: Digest of all of this, with the seal itself left empty.
    """

    schema: int
    about: About
    eps: float
    norm: str
    images: int
    figures: Figures
    passes: tuple[StageCost, ...]
    settings: Settings | None
    provenance: Provenance | None
    calibration: CalibrationFacts | None
    checks: tuple[Check, ...] | None
    ablation: tuple[AblationRow, ...] | None
    coverage: Coverage | None
    files: dict[str, str]
    effort: Effort | None = None
    certificate: CertificateFacts | None = None
    seal: str = ""


def seal_of(plain: dict[str, Any]) -> str:
    """The digest of a result file's content, its seal aside."""
    return digest(json.dumps({**plain, "seal": ""}, sort_keys=True))


def figures_of(curve: RobustnessCurve) -> Figures:
    """Compute every figure of a result from its curve."""
    losses, proven = [], curve.certificate
    for loss in PAPER_LOSSES:
        interval = curve.total_robust_loss_interval(loss)
        losses.append(
            LossRow(
                name=loss.name,
                value=curve.total_robust_loss(loss),
                low=interval.low,
                high=interval.high,
                trapezoid=curve.total_robust_loss(loss, method="trapezoid"),
                certified=None if proven is None else proven.total_robust_loss(loss),
            )
        )
    return Figures(
        curve=tuple(AlphaRow(**row) for row in curve.table()),
        losses=tuple(losses),
        clean=curve.summary()["clean"],
        first_broken_by=curve.records.first_broken_by(),
        first_rejected_by=curve.records.first_rejected_by(),
        passes_per_image=curve.passes_per_image,
    )


def save_result(curve: RobustnessCurve, folder: str | Path) -> Path:
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
        ...     sorted(file.name for file in save_result(curve, folder).iterdir())
        ['per_image.jsonl', 'result.json']
    """
    from safetensors.torch import save

    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    lines = curve.records.to_rows()
    if curve.origins:
        for line, origins in zip(lines, curve.origins, strict=True):
            line["origins"] = to_plain(Origins, origins)
    proven = curve.certificate
    if proven is not None:
        for line, row in zip(lines, proven.to_rows(), strict=True):
            line.update(row)
    data = {PER_IMAGE: "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines).encode()}
    if curve.points is not None:
        tensors = {name: t.contiguous() for name, t in vars(curve.points).items()}
        data[POINTS] = save(tensors)
    content = ResultFile(
        schema=SCHEMA,
        about=curve.about,
        eps=curve.eps,
        norm=curve.records.norm,
        images=len(curve.records),
        figures=figures_of(curve),
        passes=curve.passes,
        settings=curve.settings,
        provenance=curve.provenance,
        calibration=curve.calibration,
        checks=curve.checks,
        ablation=curve.ablation,
        coverage=curve.coverage,
        effort=curve.effort,
        certificate=None
        if proven is None
        else CertificateFacts(rule=proven.rule, seconds=proven.seconds),
        files={name: digest(held) for name, held in data.items()},
    )
    plain = to_plain(ResultFile, content)
    plain["seal"] = seal_of(plain)
    text = json.dumps(plain, indent=2, allow_nan=False) + "\n"
    if POINTS not in data:
        (path / POINTS).unlink(missing_ok=True)
    write_in_order({**{path / name: held for name, held in data.items()}, path / RESULT: text})
    return path


def load_result(folder: str | Path, *, points: bool = True, check: bool = True) -> RobustnessCurve:
    """Read a result folder; the curve is computed again from the per-image records.

    Args:
        folder: A folder that `save_result` wrote.
        points: Whether to read the points as well.
        check: Whether to refuse files whose digest in `result.json` does not match.

    Example:
        >>> import tempfile
        >>> from cpr_wrap import RobustnessCurve, save_result
        >>> from cpr_wrap.metrics import Records
        >>> row = {"index": 0, "label": 3, "clean_label": 3, "outer_broken": False, "outer_by": "",
        ...        "outer_distance": None, "rejected_radius": 0.1, "rejected_by": "LCIA"}
        >>> curve = RobustnessCurve(Records.from_rows([row], eps=0.3, norm="Linf"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     load_result(save_result(curve, folder)).error_at(0.5)
        1.0
    """
    path = Path(folder)
    content = read_file(path)
    if check:
        for problem in foreign_files(path, content):
            raise ValueError(problem)
    rows = []
    for number, line in enumerate(_text(path / PER_IMAGE).splitlines()):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{path / PER_IMAGE}, line {number + 1} is damaged: {error}"
            ) from error
    origins = tuple(from_plain(Origins, row["origins"], path) for row in rows if "origins" in row)
    facts = content.certificate
    records = Records.from_rows(rows, eps=content.eps, norm=content.norm)
    return RobustnessCurve(
        records,
        alphas=tuple(row.alpha for row in content.figures.curve),
        points=_points(path) if points else None,
        origins=origins if len(origins) == len(rows) else (),
        passes=content.passes,
        settings=content.settings,
        provenance=content.provenance,
        about=content.about,
        checks=content.checks,
        calibration=content.calibration,
        ablation=content.ablation,
        coverage=content.coverage,
        effort=content.effort,
        certificate=None
        if facts is None
        else Certificate.from_rows(rows, eps=content.eps, index=records.index, **vars(facts)),
    )


def read_json(folder: str | Path) -> dict[str, Any]:
    """The content of a folder's `result.json` as it stands there."""
    file = Path(folder) / RESULT
    try:
        plain = json.loads(_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(plain, dict):
        raise ValueError(f"{file} is damaged: expected an object, got {type(plain).__name__}")
    return plain


def read_file(folder: str | Path) -> ResultFile:
    """The content of a folder's `result.json`, checked."""
    file, plain = Path(folder) / RESULT, read_json(folder)
    if plain.get("schema") != SCHEMA:
        version = _version(plain)
        raise ValueError(
            f"{file}: expected schema {SCHEMA}, got {plain.get('schema')!r}, written by cpr-wrap "
            f"{version}; evaluate again, or read it with that version"
        )
    content: ResultFile = from_plain(ResultFile, plain, file)
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


def _points(path: Path) -> Points | None:
    from safetensors import SafetensorError
    from safetensors.torch import load

    if not (path / POINTS).exists():
        return None
    try:
        return Points(**load((path / POINTS).read_bytes()))
    except (SafetensorError, TypeError) as error:
        raise ValueError(f"{path / POINTS} is damaged: {error}") from error


def _text(file: Path) -> str:
    if not file.exists():
        raise FileNotFoundError(
            f"{file} does not exist; expected a result folder as `cpr-wrap curve --out` writes it"
        )
    return file.read_text()


def to_plain(kind: Any, value: Any) -> Any:
    """A dataclass of ours as dictionaries, lists and numbers."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind).dump_python(value, mode="json")


def from_plain(kind: Any, plain: Any, where: Path) -> Any:
    """The dataclass that `to_plain` described; a wrong type or field is named."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(plain)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where} is damaged: {place}: {first['msg']}") from error
