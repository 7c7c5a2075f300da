"""Checking the fields of a trial's frozen parts: of the right type, within their range, with the nearest spelling.

Tests: tests/training/test_trial.py.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from lastlayer._core.registry import nearest

Options = Mapping[str, Any]
_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "null"}


_HINTS: dict[type[Any], dict[str, Any]] = {}


def _hints(cls: type[Any]) -> dict[str, Any]:
    """Types of the fields of a class, read once: that takes longer than all else here."""
    if cls not in _HINTS:
        _HINTS[cls] = get_type_hints(cls)
    return _HINTS[cls]


def settle(part: Any, path: str = "") -> None:
    """Give every field of a frozen dataclass its own type: 1 becomes 1.0 where a float stands, or is refused.

    Without it two equal trials could have two identities.

    Raises:
        ValueError: for a value of another type; `path` is put before the field's name.
    """
    for name, hint in _hints(type(part)).items():
        object.__setattr__(part, name, _typed(hint, getattr(part, name), f"{path}{name}"))


def from_dict(cls: type[Any], content: Any, path: str = "") -> Any:
    """A dataclass from a mapping; fields left out take their defaults.

    Raises:
        ValueError: for an unknown field, with the nearest spelling, or a value that does not fit.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"{path.rstrip('.') or 'a trial'} must be a mapping of settings, got {content!r}")
    hints = _hints(cls)
    for name in content:
        if name not in hints:
            raise ValueError(f"there is no setting {path}{name}{nearest(str(name), hints)}; known: {', '.join(hints)}")
    # nested parts first: they know their full path
    return cls(**{name: _typed(hints[name], value, f"{path}{name}") for name, value in content.items()})


def within(value: float | None, name: str, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    """ValueError unless a number is finite and within its range; None is."""
    if value is None:
        return
    if not (low < value if open_low else low <= value) or not value <= high or not math.isfinite(value):
        above = f"must be {'>' if open_low else '>='} {low:g}"
        below = "" if high == math.inf else f" and <= {high:g}"
        finite = " and finite" if value == math.inf else ""
        raise ValueError(f"{name} {above}{below}{finite}, got {value!r}")


def one_of(value: str, name: str, allowed: tuple[str, ...]) -> None:
    """ValueError unless a text is one of those allowed; the nearest is suggested."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}{nearest(value, allowed)}")


def _typed(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else from_dict(hint, value, f"{name}.")  # type: ignore[arg-type]
    allowed = get_args(hint) or (hint,)
    if hint == Options:
        return _plain(value, name)
    if hint == tuple[float, ...]:
        if isinstance(value, list | tuple) and all(_is_number(v) for v in value):
            return tuple(float(v) for v in value)
        raise ValueError(f"{name} must be a list of numbers, got {value!r}")
    if type(value) in (bool, str, type(None)):
        if type(value) in allowed:
            return value
    elif int in allowed and _is_number(value) and float(value).is_integer():
        return int(value)
    elif float in allowed and _is_number(value):
        return float(value)
    raise ValueError(f"{name} must be {' or '.join(_TYPES[kind] for kind in allowed)}, got {value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _plain(value: Any, name: str) -> dict[str, Any]:
    """Options as trial.json will have them: a tuple is a list there."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping of settings, got {value!r}")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(value)))
    except TypeError as error:
        raise ValueError(f"{name} must hold numbers, texts, lists and mappings alone: {error}") from None
    return plain
