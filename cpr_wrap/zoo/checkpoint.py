"""Reading weights from files: tensors only, and with errors that name the file."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

# Where training scripts keep the weights among other things.
_KEYS = ("state_dict", "model_state_dict", "model", "net", "network", "module")
_WRAPPERS = re.compile(r"(^|\.)(?:(?:module|_orig_mod)\.)+")

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
        path: `.safetensors`, or a state dict saved by `torch.save`, bare or under one of the usual
            keys; prefixes that DataParallel, `torch.compile` and trainers add are taken off.
    """
    if not path.is_file():
        raise LookupError(f"expected a file of weights, got {path}, which does not exist")
    own = network.state_dict()
    state = _without_prefixes(_state_dict(_read(path), path), own)
    # Of weights that share memory a file may hold only one.
    there = {own[name].data_ptr() for name in state if name in own}
    shared = {name: value for name, value in own.items() if value.data_ptr() in there}
    try:
        network.load_state_dict({**shared, **state})
    except RuntimeError as error:
        # Torch tells all that is missing first, which may leave no room for what the file holds.
        surplus = [name for name in state if name not in own]
        held = f"; the file has {', '.join(surplus[:5])}{', …' * (len(surplus) > 5)}"
        raise ValueError(
            f"the weights in {path} are not of the network they were to go into "
            f"({one_line(error, 300)}{held * bool(surplus)}); name the network they were saved from"
        ) from error
    _check_finite(network, path)


def _read(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(str(path))
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise RuntimeError(
            f"{path} cannot be read as a file of tensors: it is damaged, or it holds other Python "
            "objects, which we do not run. Save the state_dict alone, or copy the file again"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise RuntimeError(
            f"{path} is damaged or not complete ({one_line(error, 120)}); copy or download it again"
        ) from error


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """Find the state dict in what was saved."""
    where = content
    for _ in range(4):  # a checkpoint in a checkpoint, but not one that holds itself
        if not isinstance(where, Mapping):
            break
        if all(isinstance(k, str) and isinstance(v, Tensor) for k, v in where.items()):
            return dict(where)
        where = next((where[k] for k in _KEYS if isinstance(where.get(k), Mapping)), None)
    if not isinstance(content, Mapping):
        got = type(content).__name__
    else:
        got = f"the keys {', '.join(map(repr, list(content)[:12])) or '(none)'}"
    raise ValueError(
        f"{path}: expected a state dict, names to tensors, bare or under one of "
        f"{', '.join(map(repr, _KEYS))}, got {got}; save network.state_dict() alone"
    )


def _without_prefixes(state: dict[str, Tensor], own: Mapping[str, Any]) -> dict[str, Tensor]:
    """Names as the network has them, without what wrappers around it have added."""
    state = {
        name if name in own else _WRAPPERS.sub(r"\1", name): value for name, value in state.items()
    }
    inner = {name.partition(".")[2]: value for name, value in state.items()}
    if len(inner) == len(state) and not state.keys() & own.keys() and inner.keys() & own.keys():
        return inner  # all inside one attribute of a trainer
    return state


def _check_finite(network: nn.Module, path: Path) -> None:
    """Refuse weights that are NaN or infinite; a buffer may be infinite, as masks are."""
    weights = {name for name, _ in network.named_parameters(remove_duplicate=False)}
    for name, tensor in network.state_dict().items():
        if tensor.isnan().any() or (name in weights and tensor.isinf().any()):
            raise ValueError(
                f"{path}: expected finite weights, got NaN or infinity in {name!r}; the training "
                "has diverged or the file is damaged"
            )
