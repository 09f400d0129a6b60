"""Model cards: what a trained model is, how to make it again, and what was measured on it.

`python examples/model_card.py runs/at --name mnist-compact-at` measures the model that `train`
wrote to `runs/at` on test images of its data set, and writes README.md beside it.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cpr_wrap._files import write_atomically
from cpr_wrap._text import percent
from cpr_wrap.attacks.autoattack import AutoAttackOnBase
from cpr_wrap.data import ImageData, load_data
from cpr_wrap.selective import CONFIG, SelectiveClassifier
from cpr_wrap.training.measure import clean_accuracy, pgd_points
from cpr_wrap.zoo import load

CARD = "README.md"
# What a model that was trained against nothing is measured at: the paper's budgets.
DEFAULT_EPS = {"mnist": 0.3, "svhn": 8 / 255, "cifar10": 8 / 255}


@dataclass(frozen=True, kw_only=True)
class CardFigures:
    """What a card tells about a model, all of it measured.

    Attributes:
        data: Which images.
        images: How many.
        eps: Budget of the attacks, Linf.
        clean_accuracy: Share classified rightly, rejection aside.
        clean_rejected: Share the model's own rule rejects.
        pgd_steps: Steps of PGD on the margin of the class logits.
        pgd_accuracy: Share still classified rightly after it, rejection aside.
        pgd_confidence: Mean of the largest class probability at its points.
        pgd_mistakes: Share accepted and wrong at its points: what gets past the rule.
        autoattack_images: How many of the images AutoAttack was run on, 0 for not at all.
        autoattack_accuracy: Share still classified rightly after it, rejection aside.
        autoattack_mistakes: Share accepted and wrong at its points.
    """

    data: str
    images: int
    eps: float
    clean_accuracy: float
    clean_rejected: float
    pgd_steps: int
    pgd_accuracy: float
    pgd_confidence: float
    pgd_mistakes: float
    autoattack_images: int = 0
    autoattack_accuracy: float | None = None
    autoattack_mistakes: float | None = None


def measure_figures(
    model: SelectiveClassifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    data: str,
    pgd_steps: int = 40,
    autoattack: AutoAttackOnBase | None = None,
    autoattack_images: int = 200,
) -> CardFigures:
    """Measure what a card says.

    Args:
        model: The model under its own rule.
        x: Test images `(N, C, H, W)`.
        y: Their classes `(N,)`.
        eps: Budget, Linf.
        data: What these images are, in words.
        pgd_steps: Steps of PGD.
        autoattack: AutoAttack on the class logits; left out if None.
        autoattack_images: On how many of the images, from the first.
    """
    k = model.logits(x[:1]).shape[1]
    selection = _judge(model, x)
    z = pgd_points(model.base, x, y, k, eps=eps, steps=pgd_steps)
    probs, mistakes = _under_attack(model, z, y)
    attacked: dict[str, Any] = {}
    if autoattack is not None:
        first = slice(0, autoattack_images)
        index = torch.arange(len(y), device=y.device)[first]
        points = autoattack.perturb(
            model, x[first], y[first], eps, norm="Linf", seed=0, index=index
        )
        attacked = {
            "autoattack_images": len(points),
            "autoattack_accuracy": clean_accuracy(model.base, points, y[first], k),
            "autoattack_mistakes": _under_attack(model, points, y[first])[1],
        }
    return CardFigures(
        data=data,
        images=len(y),
        eps=eps,
        clean_accuracy=clean_accuracy(model.base, x, y, k),
        clean_rejected=1 - float(selection.float().mean()),
        pgd_steps=pgd_steps,
        pgd_accuracy=clean_accuracy(model.base, z, y, k),
        pgd_confidence=probs,
        pgd_mistakes=mistakes,
        **attacked,
    )


def make_card(
    folder: str | Path,
    name: str,
    data: ImageData,
    *,
    pgd_steps: int = 40,
    autoattack_images: int = 200,
) -> Path:
    """Measure a trained model and write its card.

    Args:
        folder: A folder that `train` wrote.
        name: The model's name, which is its recipe's.
        data: Test images of the data set it was trained on.
        pgd_steps: Steps of PGD.
        autoattack_images: How many of them AutoAttack gets, 0 for none.
    """
    model = load(f"local:{folder}")
    config = json.loads((Path(folder) / CONFIG).read_text())
    eps = config.get("eps", DEFAULT_EPS.get(data.name))
    if eps is None:
        raise ValueError(
            f"{folder} was trained against nothing, and no eps is known for {data.name!r}; "
            f"expected a model with eps in its config, or images of {', '.join(DEFAULT_EPS)}"
        )
    first, last = int(data.indices[0]), int(data.indices[-1])
    figures = measure_figures(
        model,
        data.images,
        data.labels,
        eps,
        data=f"test images {first} to {last} of {data.name}",
        pgd_steps=pgd_steps,
        autoattack=AutoAttackOnBase() if autoattack_images else None,
        autoattack_images=autoattack_images,
    )
    return write_card(folder, name, figures)


def _judge(model: SelectiveClassifier, x: Tensor) -> Tensor:
    """Which images are accepted `(N,)`."""
    return torch.cat([model(part).accepted for part in x.split(250)])


def _under_attack(model: SelectiveClassifier, z: Tensor, y: Tensor) -> tuple[float, float]:
    """Mean largest probability, and share accepted and wrong, at attacked images."""
    answers = [model(part) for part in z.split(250)]
    logits = torch.cat([answer.logits for answer in answers])
    accepted = torch.cat([answer.accepted for answer in answers])
    wrong = logits.argmax(dim=1) != y
    confidence = logits.softmax(dim=1).amax(dim=1).mean()
    return float(confidence), float((accepted & wrong).float().mean())


def write_card(folder: str | Path, name: str, figures: CardFigures) -> Path:
    """Write the card of a trained model beside it, and the figures into its config.

    Args:
        folder: A folder that `train` wrote.
        name: The model's name, which is its recipe's.
        figures: What was measured.
    """
    folder = Path(folder)
    config = json.loads((folder / CONFIG).read_text())
    config["figures"] = asdict(figures)
    write_atomically(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    write_atomically(folder / CARD, card_text(name, config, figures))
    return folder / CARD


def card_text(name: str, config: dict[str, Any], figures: CardFigures) -> str:
    """The card in Markdown."""
    recipe = config["recipe"]
    minutes = sum(record["seconds"] for record in config["history"]) / 60
    settings = config["network_settings"]
    return f"""# {name}

{config["network"]} with {settings["num_outputs"]} outputs, trained by method \
`{recipe["method"]["name"]}` on {recipe["dataset"]}. Takes pixels in [0, 1]. Comes with the \
rejection rule {_settings(config["rule"])}.

Made by

```
cpr-wrap train --recipe {name} --out runs/{name}
```

with seed {recipe["seed"]}, torch {config["versions"]["torch"]}, in {minutes:.0f} minutes.

## Recipe

| setting | value |
|---|---|
{_recipe_rows(recipe, thresholded=config["rule"]["name"] in ("confidence", "atrr"))}

## Measured

On {figures.images} images ({figures.data}), Linf attacks with eps = {figures.eps:g}. Accuracies \
are the network's own, whether or not the rule rejects.

| | |
|---|---|
{_figure_rows(figures)}

Attacks that know the rejection rule are stronger than these; see `cpr-wrap curve bundled:{name}`.
"""


def _recipe_rows(recipe: dict[str, Any], *, thresholded: bool) -> str:
    rows = []
    for key, value in recipe.items():
        if key == "rule_settings" or (key == "reject_rate" and not thresholded):
            continue
        text = _settings(value) if isinstance(value, dict) else _short(value)
        rows.append(f"| {key.replace('_', ' ')} | {text} |")
    return "\n".join(rows)


def _settings(value: dict[str, Any]) -> str:
    """A named group of settings on one line."""
    rest = ", ".join(f"{k} {_short(v)}" for k, v in value.items() if k != "name" and v is not None)
    return f"`{value['name']}`" + (f" ({rest})" if rest else "")


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figure_rows(figures: CardFigures) -> str:
    pgd = f"PGD, {figures.pgd_steps} steps"
    rows = [
        ("clean accuracy", percent(figures.clean_accuracy)),
        ("clean images rejected", percent(figures.clean_rejected)),
        (f"accuracy under {pgd}", percent(figures.pgd_accuracy)),
        (f"mean confidence under {pgd}", f"{figures.pgd_confidence:.2f}"),
        (f"accepted and wrong under {pgd}", percent(figures.pgd_mistakes)),
    ]
    if figures.autoattack_accuracy is not None and figures.autoattack_mistakes is not None:
        which = f"AutoAttack (standard, first {figures.autoattack_images} images)"
        rows += [
            (f"accuracy under {which}", percent(figures.autoattack_accuracy)),
            (f"accepted and wrong under {which}", percent(figures.autoattack_mistakes)),
        ]
    return "\n".join(f"| {what} | {value} |" for what, value in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure a trained model and write its card.")
    parser.add_argument("folder", type=Path, help="what `cpr-wrap train --out` wrote")
    parser.add_argument("--name", help="its name, the recipe's; by default the folder's")
    parser.add_argument("--num", type=int, help="how many test images; by default 1,000")
    parser.add_argument("--autoattack", type=int, default=200, help="how many AutoAttack gets")
    chosen = parser.parse_args()
    dataset = json.loads((chosen.folder / CONFIG).read_text())["dataset"]
    data = load_data(dataset, "robust", num=chosen.num)
    name = chosen.name or chosen.folder.resolve().name
    print(make_card(chosen.folder, name, data, autoattack_images=chosen.autoattack))


if __name__ == "__main__":
    main()
