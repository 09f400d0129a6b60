"""A model source: bundled networks under other names."""

from __future__ import annotations

from dataclasses import replace

from cpr_wrap import load_network
from cpr_wrap.zoo.model import Options, ZooModel


def load_twin(name: str, options: Options) -> ZooModel:
    """Load `twins:at`, the bundled network `mnist-compact-at`."""
    found = load_network(f"bundled:mnist-compact-{name}", pretrained=options.pretrained)
    return replace(found, address=f"twins:{name}")
