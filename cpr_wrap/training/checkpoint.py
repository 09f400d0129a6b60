"""Files of a training: the state to resume from, and the finished model."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cpr_wrap._files import read_sealed, write_atomically, write_sealed, write_tensors

STATE, PREVIOUS, DAMAGED = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.damaged.pt"
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
_LAYOUT = "cpr-wrap checkpoint, layout 2"


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of a training, and keep the one before."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    if (folder / STATE).exists():
        (folder / STATE).replace(folder / PREVIOUS)
    write_sealed(folder / STATE, _LAYOUT, buffer.getvalue())


def load_state(folder: Path) -> dict[str, Any] | None:
    """Read the last state of a training that is whole, None if there is none.

    Warns of a file that is damaged, and sets it aside, so that it does not displace a good one.
    """
    for file in (folder / STATE, folder / PREVIOUS):
        if not file.exists():
            continue
        try:
            data = read_sealed(file, _LAYOUT, older=b"PK")  # layout 1 was a bare zip file
            state: dict[str, Any] = torch.load(
                io.BytesIO(data), map_location="cpu", weights_only=True
            )
        except ValueError as error:
            raise ValueError(f"{error}; choose another folder, or pass resume=False") from error
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            then = "resuming from the state before it, if there is one, else from the beginning"
            warnings.warn(f"{_problem(file, error)}; {then}", stacklevel=2)
            with contextlib.suppress(OSError):  # another process was faster
                file.replace(folder / DAMAGED)
            continue
        return state
    return None


def _problem(file: Path, error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return text if str(file) in text else f"{file} cannot be read ({text})"


def save_model(folder: Path, network: nn.Module, config: dict[str, Any]) -> None:
    """Write a finished model: its weights, then the config that says how to use them."""
    write_tensors(folder / WEIGHTS, network.state_dict())
    write_atomically(folder / CONFIG, json.dumps(config, indent=2) + "\n")
