"""The commands: what each takes, and the words of its help.

Nothing here imports torch, so that `--help` answers at once; what they do is in other files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from cpr_wrap.cli import options
from cpr_wrap.cli.options import (
    IMAGES,
    MODEL,
    Calibrated,
    Common,
    DataFolder,
    DataOptions,
    Evaluation,
    ModelOptions,
    Searches,
    Weights,
    argument,
    option,
)

_folders = partial(argument, "Result folders, folders of them, or patterns.")


@dataclass(frozen=True, kw_only=True)
class Demo(Common):
    """Run the whole workflow on a small MNIST model, offline, in a few minutes.

    Calibrates consistent-prediction rejection (CPR), attacks it adaptively, and compares it with
    confidence rejection and with no rejection at all. Writes an HTML report.

    Example: cpr-wrap demo
    """

    num: int = option("Test images to attack.", "--num", "-n", default=100, min=1, max=1000)
    budget: str = options.budget(default="quick")
    out: Path = option("Where to write results.", default=Path("cpr-wrap-demo"))
    overwrite: bool = options.overwrite()


@dataclass(frozen=True, kw_only=True)
class ListNames(Common):
    """List models, their sources, rules, attacks, budgets, data sets or training recipes by name.

    Nothing is computed: --device has no effect here.

    Example: cpr-wrap list models --source robustbench --like rice
    """

    kind: (
        Literal["models", "sources", "rules", "attacks", "budgets", "datasets", "recipes"] | None
    ) = argument("What to list; everything by default.", None)
    source: Literal["bundled", "robustbench", "timm"] = option(
        "Source of the models to list.", default="bundled"
    )
    like: str | None = option("Only names that contain this.")


@dataclass(frozen=True, kw_only=True)
class Curve(Searches, Calibrated):
    """Attack a model adaptively and print its robustness curve.

    Writes a result folder that `cpr-wrap report`, `compare` and `verify` read. The run is
    resumable: after a stop, the same command continues. Several processes share the work when
    started by `torchrun --nproc-per-node N -m -- cpr_wrap curve …`.

    Example: cpr-wrap curve bundled:mnist-compact-at --rule cpr --radius 0.1 --eps 0.3 --num 100
    --budget quick
    """

    budget: str = options.budget(default="standard")
    attack: list[str] | None = option(
        "Also run this attack: see `cpr-wrap list attacks`, or module:name; repeatable."
    )
    donors: str | None = option(
        "Images that restarts begin from: train, the name of a data set, or a .npz file."
    )
    alphas: Any = options.numbers(
        "Where to tabulate the curve, e.g. 0.05,0.5.", parser=options.alphas
    )
    ablation: bool = option("Also run each attack alone.", default=False)
    audit: bool = option("Audit the evaluation.", default=False)
    certify: bool = option("Also prove a lower bound under the curve.", default=False)
    estimate: bool = option("Only estimate the cost, from a short probe.", default=False)
    block_size: int | None = option(
        "Images per block; by default up to 100, or 128 of many images.", min=1
    )
    dtype: str | None = option(
        "Search in bf16 or fp16; points are judged in the model's own precision."
    )
    compile: bool = option("Search with a compiled copy.", default=False)
    channels_last: bool = option("Search with a channels-last copy.", default=False)
    out: Path | None = option("Result folder; by default runs/NAME.")
    overwrite: bool = options.overwrite()
    store: Path | None = option("Folder for finished work, to resume from; OUT/store by default.")
    points: Path | None = option(
        "Judge these points first: a result folder, or a .npz or .safetensors file."
    )
    name: str | None = option("Name of the run in tables.")


@dataclass(frozen=True, kw_only=True)
class Combinations(Weights, DataOptions):
    """What to combine, and on which images; a TOML file has the same names."""

    models: list[str] | None = option("Address of a model; repeatable.", "--model")
    rules: list[str] | None = option(
        "NAME or NAME:SETTING=VALUE,…, also module:Class and calibrate=RATE; repeatable.", "--rule"
    )
    eps: list[str] | None = option("Perturbation budget, e.g. 8/255; repeatable.")
    norms: list[str] | None = option("Norm; repeatable.", "--norm")
    budgets: list[str] | None = option("Budget of attacks; repeatable.", "--budget")
    validation: str | None = options.validation()


@dataclass(frozen=True, kw_only=True)
class Sweep(Common, Searches, Combinations):
    """Evaluate every combination of models, rules, eps, norms and budgets.

    Each combination gets a result folder below --out. The sweep is resumable by the same command,
    also under torchrun. It writes results.csv, one row per run, and the leaderboard report.html.

    Example: cpr-wrap sweep --model bundled:mnist-compact-at --rule cpr --rule none --eps 0.3
    --budget quick --num 20 --out runs/first
    """

    plan: Path | None = argument("TOML file with models, rules, eps, …", None)
    audit: bool = option("Audit every evaluation.", default=False)
    estimate: bool = option("Only estimate the cost.", default=False)
    out: Path = option("Folder for all result folders.", default=Path("runs"))
    overwrite: bool = options.overwrite()


@dataclass(frozen=True, kw_only=True)
class Certify(Calibrated):
    """Prove a lower bound on a model's robustness, in Linf.

    No attack can find an accepted mistake or a rejection within the proven radii. `cpr-wrap curve
    --certify` draws this bound below the curve that attacks give.

    Example: cpr-wrap certify bundled:mnist-compact-ibp --eps 0.3
    """

    crown: bool = option(
        "Use CROWN in addition to interval bounds.", "--crown/--no-crown", default=True
    )
    per_image: bool = option("Also print the radii of each image.", default=False)


@dataclass(frozen=True, kw_only=True)
class Attack(Searches, Evaluation):
    """Run one attack (ours, AutoAttack, Foolbox, your own) and count what it breaks.

    The attack only proposes points. They are projected into the ball, judged by the model, and
    checked again by independent code.

    Example: cpr-wrap attack bundled:mnist-compact-at CHCMOA --num 50
    """

    name: str = argument("The attack: see `cpr-wrap list attacks`, or module:name.")
    iterations: int | None = option("Steps of each restart of our attacks; 50 by default.", min=1)
    restarts: int | None = option(
        "Random restarts of our attacks, in addition to the clean image; 1 by default.", min=0
    )


@dataclass(frozen=True, kw_only=True)
class Merge(Common):
    """Join runs of the same model and images: each image keeps the worst that any run found.

    Points found at a smaller eps count at a larger one. Check the merged run with `cpr-wrap
    verify`, like any other. Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap merge runs/mine runs/theirs --out runs/both
    """

    folders: list[Path] = _folders()
    out: Path = options.required("The folder to write.")
    overwrite: bool = options.overwrite()
    eps: float | None = options.eps()
    name: str | None = option("Name of the merged run.")


@dataclass(frozen=True, kw_only=True)
class Verify(Common, Weights):
    """Check everything in a result folder again, without the engine.

    The model judges every recorded input again, and figures, records and files are compared with
    each other. Your own code is found by its recorded address in the current folder; elsewhere,
    pass --network and --import. The exit code is 3 if a check fails.

    Example: cpr-wrap verify runs/at
    """

    folder: Path = argument("A result folder, as `cpr-wrap curve` writes it.")
    model: str | None = option("The model, if not at the recorded address.", rich_help_panel=MODEL)


@dataclass(frozen=True, kw_only=True)
class Advise(Searches, Evaluation):
    """Find the rule and setting that lose least on a network, for your cost of rejection.

    The choice is made on validation images and reported on others. The model's own rule is one of
    the candidates; --rule and its settings replace it.

    Example: cpr-wrap advise bundled:mnist-compact-at --eps 0.3 --cost ramp:2 --num 60
    --max-clean-rejection 0.05
    """

    cost: str = option(
        "step:ALPHA, ramp:T, table:A=LOSS,… or own.py:function.", default="step:0.05"
    )
    validation: str | None = option(
        "Images for the choice; by default the validation part of the data set."
    )
    max_latency: float | None = option(
        "Maximum time per prediction, e.g. 20ms.", parser=options.seconds, metavar="TIME"
    )
    max_clean_rejection: float | None = options.number(
        "Maximum share of clean images rejected, e.g. 0.02."
    )
    radii: Any = options.numbers("Radii to try, e.g. 0.05,0.1 or 1/255,2/255.")
    tried_steps: Any = options.numbers(
        "Steps of cpr to try, e.g. 5,20.", "--try-steps", parser=options.whole_numbers
    )
    thresholds: Any = options.numbers("Thresholds of confidence to try.")
    budget: str = option("Budget for the candidates that can still win.", default="standard")
    screening: str = option("Budget for every candidate.", default="quick")
    store: Path | None = option("Folder for finished work, to resume from.")
    figure: Path | None = option("Write the figure: .svg, .png or .pdf.")
    table: Path | None = option("Write the table as Markdown.")
    overwrite: bool = options.overwrite()


@dataclass(frozen=True, kw_only=True)
class Calibrate(Common, DataOptions, ModelOptions):
    """Set a rule so that it rejects a share of the correctly classified validation images.

    For rules with a score it sets the threshold, for cpr the radius. It uses the validation part of
    a known data set, and all of your own images.

    Example: cpr-wrap calibrate bundled:mnist-compact-at --reject-rate 0.01 --out models/at
    """

    reject_rate: float = options.number(
        "Share of correctly classified images to reject.", default=0.01
    )
    out: Path | None = option("Save the calibrated model to this folder.")
    overwrite: bool = options.overwrite()


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What to do otherwise than a training's recipe says."""

    panel = "Changes to the recipe"
    method: str | None = option("Train by this method.")
    network: str | None = option(
        "Train this network: a name like resnet20, timm:resnet18 or module:Class."
    )
    pretrained: bool = option(
        "Load the pretrained weights of a network given by address.",
        "--pretrained/--from-scratch",
        default=True,
    )
    epochs: int | None = option("Epochs.", min=1)
    batch_size: int | None = option("Batch size of a training step.", min=1)
    lr: float | None = option("Learning rate.")
    seed: int | None = option("Seed of all random numbers.")
    eps: float | None = options.number("Perturbation budget in training, e.g. 8/255.")


@dataclass(frozen=True, kw_only=True)
class TrainingImages(DataFolder):
    """What to learn from."""

    panel = IMAGES
    images: str | None = option(
        "In place of the recipe's data set: an image folder, a .npz file or module:function."
    )
    validation: str | None = option("Validation images of the same kind.")
    num: int | None = option("Train on at most this many images.", "--num", "-n", min=1)


@dataclass(frozen=True, kw_only=True)
class Loop:
    """How to run a training."""

    panel = "Training"
    resume: bool = option("Resume from OUT, or start over.", default=True)
    early_stop: int | None = option(
        "Stop after this many epochs without a gain in robust accuracy.", min=1
    )
    amp: bool = option("Compute in bfloat16 where safe.", default=False)
    compile: bool = option("Use torch.compile.", default=False)
    workers: int = option(
        "Processes that read an image folder as needed; 0 reads it into memory once.",
        default=0,
        min=0,
    )


@dataclass(frozen=True, kw_only=True)
class Train(Common, Loop, TrainingImages, Changes):
    """Train a network by a recipe, and save it so that `local:OUT` loads it with its rule.

    The training is resumable by the same command. Several processes share every batch when started
    by `torchrun --nproc-per-node N -m -- cpr_wrap train …`.

    Example: cpr-wrap train --recipe mnist-compact-at --out runs/at
    """

    recipe: str = options.required("See `cpr-wrap list recipes`.")
    out: Path = options.required("Folder for the state and the model.")


@dataclass(frozen=True, kw_only=True)
class Predict(Common, ModelOptions):
    """Classify image files, or reject them and say why.

    Images are resized to the model's size, with its own resize and crop if it has one. For a
    rejection by cpr, the reason names the class that is predicted at T(x), and its margin there.

    Example: cpr-wrap predict bundled:mnist-compact-at digits/ --radius 0.15
    """

    path: Path = argument("An image file, or a folder of them.")
    batch_size: int = option("Batch size.", default=64, min=1)
    class_names: Path | None = option("A text file with the names of the classes, one per line.")


@dataclass(frozen=True, kw_only=True)
class Report(Common):
    """Write runs as one self-contained HTML file: curves, losses, pictures, settings.

    Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap report runs/at runs/trades --out report.html --figure curves.svg
    """

    folders: list[Path] = _folders()
    out: Path = option("The HTML file to write.", default=Path("report.html"))
    title: str | None = option("Heading of the report.")
    figure: Path | None = option("Also draw the curves for a paper: a .png, .svg or .pdf file.")
    robustbench: Path | None = option(
        "Also write RobustBench's model_info and adversarial images to this folder."
    )
    overwrite: bool = options.overwrite()


@dataclass(frozen=True, kw_only=True)
class Compare(Common):
    """Print total robust losses of several runs side by side.

    Only runs with the same images, threat model, budget and engine are ranked together; others get
    their own tables. Nothing is recomputed, so --device has no effect.

    Example: cpr-wrap compare runs/at runs/trades --loss step:0.05 --format latex
    """

    folders: list[Path] = _folders()
    format: Literal["text", "markdown", "latex", "csv"] = option(
        "How to write the table.", default="text"
    )
    loss: list[str] | None = option("A rejection loss, e.g. step:0.1; repeatable. By default two.")
    full: bool = option("All of the paper's losses.", default=False)
    traditional: bool = option(
        "Clean figures and robust accuracy with detection instead.", default=False
    )
    out: Path | None = option("Write the table to this file instead.")
    overwrite: bool = options.overwrite()


@dataclass(frozen=True, kw_only=True)
class Bench(Evaluation):
    """Measure how long passes, a prediction and an evaluation take, and how they compare.

    The bare time of an evaluation is the time of its forward and backward passes alone. Processor
    times are given too, because they do not depend on other work on the machine.

    Example: cpr-wrap bench bundled:mnist-compact-at --num 100
    """

    address: str = argument("A model.", "bundled:mnist-compact-at", metavar="ADDRESS")
    budget: str = options.budget(default="quick")
    batch_size: int = option("Batch size.", default=128, min=1)
