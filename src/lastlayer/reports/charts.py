"""What the charts of the page show, as plain data of bounded size: curves, logits, cosines, points.

Arrays are packed as integers in base64, so that a page of eighteen losses with twenty snapshots each has at most two
megabytes. Tests: tests/reports/test_charts.py.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lastlayer.measures import Measure
from lastlayer.reports.classes import class_names
from lastlayer.reports.collect import Run
from lastlayer.reports.columns import SPLITS
from lastlayer.reports.evidence import Rows
from lastlayer.reports.summary import Group, Summary
from lastlayer.runs import DamagedFileError, RunFolder

Array = NDArray[np.float64]

# How many numbers all charts of one kind may hold. In an array each takes 1.3 to 2.7 bytes of the page, in a curve 7.
CURVE_NUMBERS = 50_000
POINT_NUMBERS = 60_000
MATRIX_NUMBERS = 160_000
LOGIT_NUMBERS = 100_000
MOST_FRAMES = 21
MOST_PICTURES = 40  # runs with pictures; all groups show equally many seeds


def chart_data(summary: Summary, rows: Rows, *, tsne: bool = False) -> dict[str, Any]:
    """Everything the page's script draws, ready for JSON. The notes name what was left out, and why.

    Args:
        summary: of the comparison.
        rows: reads the test rows that runs kept.
        tsne: compute a t-SNE view of the final features, a few seconds per group.
    """
    groups = summary.finished
    notes: list[str] = []
    classes: list[list[str]] = []
    snapshots = [_pictures(group, len(groups), tsne, classes, notes) for group in groups]
    logit_classes = _add_class_logits(groups, rows, snapshots)
    measures = list(dict.fromkeys(column.measure for column in summary.columns))
    return {
        "groups": [group.label for group in groups],
        "measures": [_measure(measure) for measure in measures],
        "splits": {split: SPLITS[split] for split in summary.splits},
        "curves": [_curves(group, len(groups) * len(measures)) for group in groups],
        "classes": classes,
        "logit_classes": logit_classes,
        "snapshots": snapshots,
        "notes": notes,
    }


def _measure(measure: Measure) -> dict[str, Any]:
    told = {name: getattr(measure, name) for name in ("name", "plain", "meaning", "direction")}
    return {**told, **dict(zip(("low", "high"), map(_number, measure.limits), strict=True))}


def thinned(count: int, most: int) -> list[int]:
    """At most `most` of the positions 0, ..., count - 1, evenly spread from the first to the last.

    Example:
        >>> thinned(11, 3), thinned(2, 5), thinned(5, 1)
        ([0, 5, 10], [0, 1], [4])
    """
    if most < 2:
        return [count - 1]
    return list(range(count)) if count <= most else sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def packed(values: Array, *, small: bool = False) -> dict[str, Any]:
    """An array as integers of 16 bits (8 if small) times a scale, in base64. Values that are not finite become 0."""
    kind, most = (np.int8, 127) if small else (np.int16, 32767)
    finite = np.nan_to_num(np.asarray(values, dtype=np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    top = float(np.abs(finite).max()) if finite.size else 0.0
    scale = top / most or 1.0
    whole = np.rint(finite / scale).astype(np.dtype(kind).newbyteorder("<"))
    return {
        "bits": 8 if small else 16,
        "scale": scale,
        "shape": list(finite.shape),
        "data": base64.b64encode(whole.tobytes()).decode(),
    }


def _number(value: float) -> float | None:
    """The value with five digits; None if it is not finite, because JSON has no number for that."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _curves(group: Group, shown: int) -> dict[str, Any]:
    """Mean and standard deviation over seeds of every measure, epoch by epoch."""
    runs = [run.result.get("history", []) for run in group.done.values() if run.result]
    histories: list[dict[int, Mapping[str, Any]]] = [{int(entry["epoch"]): entry for entry in run} for run in runs]
    epochs = sorted(set[int]().union(*histories).intersection(*histories))
    if not epochs:
        return {"epochs": []}
    epochs = [epochs[i] for i in thinned(len(epochs), max(5, CURVE_NUMBERS // max(1, shown * 4)))]
    made: dict[str, Any] = {"epochs": epochs}
    for split in ("test", "train"):
        moments = [[history[epoch].get(split, {}) for history in histories] for epoch in epochs]
        made[split] = {
            name: _curve(np.array([[one.get(name, math.nan) for one in entries] for entries in moments], np.float64))
            for name in moments[-1][0]
        }
    return made


def _curve(values: Array) -> list[list[float | None]]:
    """Mean and standard deviation over seeds, from values (epochs, seeds)."""
    with np.errstate(invalid="ignore"):  # infinite values have no deviation
        spreads = values.std(1, ddof=1) if values.shape[1] > 1 else np.full(len(values), math.nan)
        return [[_number(value) for value in curve.tolist()] for curve in (values.mean(1), spreads)]


def _pictures(
    group: Group, groups: int, tsne: bool, classes: list[list[str]], notes: list[str]
) -> list[dict[str, Any]]:
    """Pictures of the group's runs. The first run may fill the group's share of the page, the others a second one."""
    made: list[dict[str, Any]] = []
    drawn = {s: run for s, run in group.done.items() if "snapshots.safetensors" in (run.result or {}).get("files", {})}
    shown = sorted(drawn.items())[: max(1, MOST_PICTURES // groups)]
    for seed, run in shown:
        share = groups if not made else groups * len(shown)
        told = notes if not made else []  # the others leave things out for the same reason
        try:
            tensors = {name: one.double().numpy() for name, one in RunFolder(run.path).tensors("snapshots").items()}
        except (DamagedFileError, OSError, KeyError) as error:
            notes.append(f"No pictures of {group.label}, seed {seed}: {error}")
        else:
            found = _snapshots(tensors, share, group.label, tsne, told)
            made.append({"seed": seed, "classes": _classes(run, classes), **found})
    return made


def _add_class_logits(groups: Sequence[Group], rows: Rows, snapshots: list[list[dict[str, Any]]]) -> list[str]:
    """Add to the pictures of each run the histograms of a few classes' logits. All show the classes of the first run.

    Returns:
        the names of these classes.
    """
    names: list[str] = []
    for group, pictures in zip(groups, snapshots, strict=True):
        for one in pictures:
            run = group.done[one["seed"]]
            kept, _ = rows.of(run)
            if kept is None:
                continue
            own = [class_names(run)[label] for label in kept["logit_classes"].tolist()]
            names = names or own
            if own == names:
                counts = {kind: kept[f"logit_{kind}"] for kind in ("true", "false")}  # of few rows: half as many bins
                halved = {kind: one.reshape(len(one), -1, 2).sum(2) for kind, one in counts.items()}
                kinds = {f"{kind}_logits": _shares(one) for kind, one in halved.items()}
                ranges = [[_number(end) for end in ends] for ends in kept["logit_range"].tolist()]
                one["class_logits"] = {"range": ranges, **kinds}
    return names


def _shares(counts: Array) -> dict[str, Any]:
    counts = np.asarray(counts, dtype=np.float64)
    return packed(counts / np.maximum(counts.sum(1, keepdims=True), 1.0), small=True)


def _snapshots(tensors: Mapping[str, Array], share: int, label: str, tsne: bool, notes: list[str]) -> dict[str, Any]:
    """Points, logits and cosines of one run. It may take 1 / share of the numbers that the page may hold."""
    epochs, target = tensors["epochs"].astype(int).tolist(), tensors["target"].astype(int)
    made: dict[str, Any] = {"epochs": epochs, **_logits(tensors, epochs, LOGIT_NUMBERS // share)}
    if (points := tensors.get("points")) is not None:
        made |= _points(points, target, epochs, POINT_NUMBERS // share, tensors.get("features") if tsne else None)
    if (cosines := tensors.get("cosines")) is not None:
        made |= _cosines(cosines, epochs, MATRIX_NUMBERS // share, label, notes)
    return made


def _classes(run: Run, classes: list[list[str]]) -> int:
    """The position of the run's class names in the list; new names are appended."""
    names = class_names(run)
    if names not in classes:
        classes.append(names)
    return classes.index(names)


def _logits(tensors: Mapping[str, Array], epochs: Sequence[int], most: int) -> dict[str, Any]:
    """Histograms of true and of false logits, each as shares of its kind."""
    if not {"true_logits", "false_logits", "range"} <= tensors.keys():
        return {}
    frames = thinned(len(epochs), max(1, min(MOST_FRAMES, most // (2 * tensors["true_logits"].shape[1]))))
    ranges = [[_number(value) for value in own] for own in tensors["range"][frames].tolist()]
    kinds = {name: _shares(tensors[name][frames]) for name in ("true_logits", "false_logits")}
    return {"logits": {"frames": [epochs[i] for i in frames], "range": ranges, **kinds}}


def _points(
    points: Array, target: NDArray[np.int64], epochs: Sequence[int], most: int, features: Array | None
) -> dict[str, Any]:
    """Points (E, S, 2), and a t-SNE view of features (S, d).

    If there are too many, samples are dropped down to 200, then snapshots, then more samples.
    """
    frames = thinned(len(epochs), max(2, min(MOST_FRAMES, most // max(1, 2 * min(points.shape[1], 200)))))
    kept = thinned(points.shape[1], max(50, most // (2 * len(frames))))
    return {
        "frames": [epochs[i] for i in frames],
        "target": target[kept].tolist(),
        "points": packed(points[frames][:, kept]),
        **({} if features is None else {"tsne": packed(_tsne(features)[kept])}),
    }


def _tsne(features: Array) -> Array:
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if len(features) < 4:
        return np.zeros((len(features), 2))
    with threadpool_limits(1):  # so few samples gain nothing from threads, and lose much if the cores are busy
        view = TSNE(perplexity=min(30.0, (len(features) - 1) / 3), init="pca", random_state=0)
        made: Array = view.fit_transform(features)
    return made


def _cosines(cosines: Array, epochs: Sequence[int], most: int, label: str, notes: list[str]) -> dict[str, Any]:
    numbers = cosines.shape[1] * cosines.shape[2]
    if numbers > most:
        notes.append(f"No cosine matrix of {label}: with {cosines.shape[1]} classes the page would be too large.")
        return {}
    frames = thinned(len(epochs), min(MOST_FRAMES, most // numbers))
    return {"cosines": {"frames": [epochs[i] for i in frames], **packed(cosines[frames], small=True)}}
