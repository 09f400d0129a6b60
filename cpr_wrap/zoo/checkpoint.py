"""Reading weights from files: tensors only, and with errors that name the file."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

_ONLY, _NEVER = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def one_line(error: BaseException, limit: int = 160) -> str:
    """An error's text without line breaks, for a message of our own."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= limit else text[: limit - 1] + "…"


@contextmanager
def tensors_only() -> Iterator[None]:
    """Inside, other packages' `torch.load` unpickles tensors and nothing that could run code."""
    before = {name: os.environ.pop(name, None) for name in (_ONLY, _NEVER)}
    os.environ[_ONLY] = "1"
    try:
        yield
    finally:
        del os.environ[_ONLY]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def load_weights(network: nn.Module, path: Path) -> None:
    """Put a file's weights into a network that was made for them.

    Args:
        network: Gets the weights.
        path: `.safetensors`, or a state dict saved by `torch.save`, bare or under `state_dict`.
    """
    if not path.is_file():
        raise LookupError(f"expected a file of weights, got {path}, which does not exist")
    if path.suffix == ".safetensors":
        _load_safetensors(network, path)
        return
    state = _state_dict(_unpickle(path), path)
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise _misfit(network, path, error) from error


def _load_safetensors(network: nn.Module, path: Path) -> None:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_model

    try:
        with safe_open(str(path), framework="pt"):
            pass  # the header says how long the file has to be
    except SafetensorError as error:
        raise _damaged(path, error) from error
    try:
        load_model(network, str(path))
    except RuntimeError as error:
        raise _misfit(network, path, error) from error


def _unpickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RuntimeError(
            f"{path} cannot be read as a file of tensors: it is damaged, or it holds other Python "
            "objects, which we do not run. Save the state_dict alone, or copy the file again "
            f"({one_line(error, 120)})"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise _damaged(path, error) from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Find the state dict in what was saved, without the prefix that DataParallel adds."""
    if isinstance(content, Mapping) and isinstance(content.get("state_dict"), Mapping):
        content = content["state_dict"]
    if not isinstance(content, Mapping) or not all(isinstance(v, Tensor) for v in content.values()):
        what = sorted(content)[:5] if isinstance(content, Mapping) else type(content).__name__
        raise ValueError(
            f"{path}: expected a state dict, names to tensors, bare or under 'state_dict', "
            f"got {what}"
        )
    return {name.removeprefix("module."): value for name, value in content.items()}


def _damaged(path: Path, error: Exception) -> RuntimeError:
    return RuntimeError(
        f"{path} is damaged or not complete ({one_line(error, 120)}); copy or download it again"
    )


def _misfit(network: nn.Module, path: Path, error: RuntimeError) -> ValueError:
    return ValueError(
        f"the weights in {path} are not of the network {type(network).__name__} they were to go "
        f"into ({one_line(error, 300)}); name the network they were saved from"
    )
