"""What makes a training the one it is, so that nobody resumes somebody else's."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Mapping
from typing import Any

from torch import nn

from cpr_wrap._files import digest
from cpr_wrap._source import plain_repr, value_text

_PLAIN = (bool, int, float, str, type(None))


def network_identity(network: nn.Module) -> str:
    """A digest of a network's structure: modules, settings, code, and the shapes of its weights.

    Whatever else its modules hold counts too: functions, constants, buffers that are not saved. The
    weights themselves do not count. Nor do comments and the layout of the code.
    """
    shapes = [
        f"{name} {getattr(tensor, 'dtype', None)} {tuple(getattr(tensor, 'shape', ()))}"
        for name, tensor in network.state_dict().items()
    ]
    settings = [
        f"{name} {sorted((k, v) for k, v in vars(module).items() if _is_setting(k, v))}"
        for name, module in network.named_modules()
    ]
    others = [
        f"{name}.{key} {value_text(value)}"
        for name, module in network.named_modules()
        for key, value in sorted(vars(module).items())
        if not key.startswith("_") and key != "training" and not _is_setting(key, value)
    ]
    saved = network.state_dict()
    others += [f"{k} {value_text(v)}" for k, v in network.named_buffers() if k not in saved]
    code = sorted({_code(type(module)) for module in network.modules()})
    return digest("\n".join([plain_repr(network), *shapes, *settings, *others, *code]))


def _is_setting(name: str, value: Any) -> bool:
    if name == "training" or name.startswith("_"):
        return False
    if isinstance(value, tuple | list):
        return all(isinstance(part, _PLAIN) for part in value)
    return isinstance(value, _PLAIN)


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
    """Names of the entries in which two identities differ.

    Args:
        mine: An identity: plain data, and for images what `TrainingData.identity` gives.
        theirs: Another one, as it was read from JSON.
    """
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
