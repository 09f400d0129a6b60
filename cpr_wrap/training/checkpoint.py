"""The state of a training on disk, and what tells that training from another."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import pickle
import textwrap
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from cpr_wrap._files import digest, read_sealed, write_sealed
from cpr_wrap._source import plain_repr, value_text

STATE, PREVIOUS, DAMAGED = "checkpoint.pt", "checkpoint.previous.pt", "checkpoint.damaged.pt"
_LAYOUT = "cpr-wrap checkpoint, layout 2"
_PLAIN = (bool, int, float, str, type(None))


def save_state(folder: Path, state: dict[str, Any]) -> None:
    """Write the state of a training, and keep the one before."""
    if (folder / STATE).exists():
        (folder / STATE).replace(folder / PREVIOUS)
    write_sealed(folder / STATE, _LAYOUT, state)


def load_state(folder: Path) -> dict[str, Any] | None:
    """Read the last state of a training that is whole, if there is one; damaged ones step aside."""
    for file in (folder / STATE, folder / PREVIOUS):
        if not file.exists():
            continue
        try:
            return read_sealed(file, _LAYOUT, older=b"PK")  # layout 1 was a bare zip
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


def network_identity(network: nn.Module) -> str:
    """A digest of a network's structure: modules, settings, code, and the shapes of its weights.

    Whatever else its modules hold counts too: functions, constants, buffers that are not saved. The
    weights themselves do not count. Nor do comments and the layout of the code.
    """
    saved = network.state_dict()
    shapes = [
        f"{name} {getattr(tensor, 'dtype', None)} {tuple(getattr(tensor, 'shape', ()))}"
        for name, tensor in saved.items()
    ]
    settings, others = [], []
    for name, module in network.named_modules():
        held = sorted((k, v) for k, v in vars(module).items() if k[0] != "_" and k != "training")
        settings.append(f"{name} {[(k, v) for k, v in held if _is_setting(v)]}")
        others += [f"{name}.{k} {value_text(v)}" for k, v in held if not _is_setting(v)]
    others += [f"{k} {value_text(v)}" for k, v in network.named_buffers() if k not in saved]
    code = sorted({_code(type(module)) for module in network.modules()})
    return digest("\n".join([plain_repr(network), *shapes, *settings, *others, *code]))


def _is_setting(value: Any) -> bool:
    parts = value if isinstance(value, tuple | list) else [value]
    return all(isinstance(part, _PLAIN) for part in parts)


def _code(kind: type) -> str:
    """A class by its name, and its code where it is not torch's own."""
    if kind.__module__.split(".")[0] == "torch":
        return kind.__qualname__
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError, SyntaxError):  # typed into an interpreter
        return kind.__qualname__
    return f"{kind.__qualname__} {ast.unparse(tree)}"


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Names of the entries in which two identities of trainings differ; `theirs` is from JSON."""
    # JSON has no tuples: compare what both look like in it.
    mine = json.loads(json.dumps(mine))
    names = mine.keys() | theirs.keys()
    return sorted(name for name in names if _differ(mine.get(name), theirs.get(name)))


def _differ(one: Any, other: Any) -> bool:
    """Whether two entries differ; of images, what one side does not know is no difference."""
    if not any(isinstance(each, dict) and "count" in each for each in (one, other)):
        return bool(one != other)
    one, other = one or {}, other or {}
    return any(None not in (one[k], other[k]) and one[k] != other[k] for k in one.keys() & other)
