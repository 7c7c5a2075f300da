"""What groups of runs are called: by their loss, and by the settings that tell groups with the same loss apart.

Tests: tests/reports/test_labels.py.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]


def settings_of(trial: Mapping[str, Any]) -> dict[str, Any]:
    """A trial's settings by dotted name; the options of a part stand beside its fields.

    Example:
        >>> settings_of({"loss": {"name": "sln", "options": {"gamma": 0.5}}, "batch_size": 64})
        {'loss.name': 'sln', 'loss.gamma': 0.5, 'batch_size': 64}
    """
    flat: dict[str, Any] = {}
    for name, value in trial.items():
        if not isinstance(value, Mapping):
            flat[name] = value
            continue
        options = value.get("options", {})
        fields = {inner: setting for inner, setting in value.items() if inner != "options"}
        flat |= {f"{name}.{inner}": setting for inner, setting in fields.items()}
        for option, chosen in options.items():
            flat[f"{name}.options.{option}" if option in fields else f"{name}.{option}"] = chosen
    return flat


def differing(settings: Sequence[Settings]) -> list[str]:
    """Names of the settings that are not the same for all, in the order in which they first appear."""
    names = dict.fromkeys(name for each in settings for name in each)
    absent = object()
    return [name for name in names if len({_comparable(each.get(name, absent)) for each in settings}) > 1]


def _comparable(value: object) -> str:
    return text_of(value) if type(value) is not object else ""


def text_of(value: object) -> str:
    """A setting's value as people write it.

    Example:
        >>> text_of(0.5), text_of("cosine"), text_of([0.5, 0.75]), text_of(None)
        ('0.5', 'cosine', '[0.5,0.75]', 'none')
    """
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), sort_keys=True, default=str)


def labels_of(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """A unique, readable label for each group of runs.

    Args:
        trials: one per group, all different, without seeds.

    Returns:
        The name of the loss; if several groups have the same loss, with the settings that differ among them.

    Example:
        >>> ce = {"loss": {"name": "ce", "options": {}}}
        >>> labels_of([ce, *({"loss": {"name": "sln", "options": {"gamma": g}}} for g in (0.5, 0.7))])
        ['ce', 'sln gamma=0.5', 'sln gamma=0.7']
    """
    settings = [settings_of(trial) for trial in trials]
    names = [str(each.get("loss.name", "unknown")) for each in settings]
    labels = []
    for name, own in zip(names, settings, strict=True):
        rivals = differing([each for other, each in zip(names, settings, strict=True) if other == name])
        short = _short_names(rivals)
        labels.append(" ".join([name, *(f"{short[key]}={text_of(own[key])}" for key in rivals if key in own)]))
    return labels


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """model for model.name, lr for optimiser.lr; the whole name for data, and if two names would become the same."""
    short = {}
    for name in names:
        part, _, last = name.partition(".")
        short[name] = part if last == "name" else name if part == "data" else last or part
    counts = Counter(short.values())
    return {name: name if counts[text] > 1 else text for name, text in short.items()}
