"""The state of a training on disk, to resume from."""

from __future__ import annotations

import contextlib
import io
import pickle
import warnings
from pathlib import Path
from typing import Any

import torch

from cpr_wrap._files import read_sealed, write_sealed

STATE, PREVIOUS, DAMAGED = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.damaged.pt"
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
            data = io.BytesIO(read_sealed(file, _LAYOUT, older=b"PK"))  # layout 1 was a bare zip
            state: dict[str, Any] = torch.load(data, map_location="cpu", weights_only=True)
            return state
        except ValueError as error:
            raise ValueError(f"{error}; choose another folder, or pass resume=False") from error
        except (RuntimeError, OSError, EOFError, pickle.UnpicklingError) as error:
            text = str(error).partition("\n")[0]
            problem = text if str(file) in text else f"{file} cannot be read ({text})"
            then = "resuming from the state before it, if there is one, else from the beginning"
            warnings.warn(f"{problem}; {then}", stacklevel=2)
            with contextlib.suppress(OSError):  # another process was faster
                file.replace(folder / DAMAGED)
    return None
