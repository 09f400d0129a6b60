"""Files of a training: the state to go on from, and the finished model."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

STATE = "checkpoint.pt"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"


def _replace(path: Path, temporary: Path) -> None:
    """Put a finished file in place in one step, so that a kill leaves the old one or the new."""
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    temporary.replace(path)


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of a training."""
    temporary = folder / f"{STATE}.part"
    torch.save(state, temporary)
    _replace(folder / STATE, temporary)


def load_state(folder: Path) -> dict[str, Any] | None:
    """Read the state of a training, None if there is none yet."""
    path = folder / STATE
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise RuntimeError(
            f"{path} cannot be read ({type(error).__name__}); remove it to train from the beginning"
        ) from error
    return state


def portable(network: nn.Module) -> dict[str, Tensor]:
    """The network's tensors on the CPU, contiguous, each with memory of its own."""
    # clone() would keep the strides of channels_last
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in network.state_dict().items()
    }


def save_model(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write a finished model: its weights, then the config that says how to use them."""
    from safetensors.torch import save

    temporary = folder / f"{WEIGHTS}.part"
    temporary.write_bytes(save(tensors))  # save_file would make a file that only we can read
    _replace(folder / WEIGHTS, temporary)
    temporary = folder / f"{CONFIG}.part"
    temporary.write_text(json.dumps(config, indent=2) + "\n")
    _replace(folder / CONFIG, temporary)
