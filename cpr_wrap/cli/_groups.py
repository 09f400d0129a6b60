"""Options that several commands share, declared once as the fields of a dataclass.

Typer reads a command's signature. `flattened` gives it one in which every parameter that is a
dataclass of options is replaced by the options themselves, and puts the dataclass back together
when the command is called.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, get_type_hints


def flattened(function: Callable[..., None]) -> Callable[..., None]:
    """Spread a function's dataclass parameters out into keyword parameters.

    Args:
        function: Its dataclass parameters are those whose annotation is a dataclass.

    Returns:
        A function that takes the fields instead.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters: dict[str, inspect.Parameter] = {}
    groups: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters.update(_options(hints[name]))
        else:
            parameters[name] = parameter.replace(annotation=hints[name])

    @functools.wraps(function)
    def run(**values: Any) -> None:
        taken = {
            name: group(**{field.name: values.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        function(**values, **taken)

    # Whoever asks for the signature is not to look through to the function with the groups.
    del run.__dict__["__wrapped__"]
    run.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    vars(run)["__signature__"] = inspect.Signature(list(parameters.values()))
    return run


def _options(group: Any) -> dict[str, inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return {
        field.name: inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=_default(field),
            annotation=hints[field.name],
        )
        for field in fields(group)
    }


def _default(field: Field[Any]) -> Any:
    return inspect.Parameter.empty if field.default is MISSING else field.default
