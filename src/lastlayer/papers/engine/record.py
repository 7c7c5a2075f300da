"""What is written down of runs that ended: a row for each evaluation, with what it measured and where it was made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from lastlayer._core.files import describe_damage
from lastlayer.papers.engine.artifact import Artifact, Grid, GridCell, Labels, code_of, resolve
from lastlayer.papers.engine.store import Record
from lastlayer.runners import Placement
from lastlayer.runs import DamagedFileError, RunFolder

ABOVE_CHANCE = 1.05  # times the share of the largest class: a run below that on its training set learned nothing


def observe(
    artifact: Artifact,
    grid: Grid,
    plan: Placement,
    chosen: Sequence[str],
    known: Collection[tuple[object, ...]],
    elsewhere: Mapping[str, Record],
    tell: Callable[[str], None],
) -> list[Record]:
    """The rows of the runs that ended and are not known yet, here or elsewhere."""
    rows: list[Record] = []
    done: list[tuple[Labels, int, RunFolder]] = []
    for cell, selected in zip(grid.cells, chosen, strict=True):
        for seed in grid.seeds:
            trial = resolve(cell.trial, {"seed": seed})
            if place_of(cell.labels, seed, trial.identity) in known:
                continue
            if trial.identity in elsewhere:
                same = elsewhere[trial.identity]
                rows.append(dataclasses.replace(same, labels=cell.labels, facts={**same.facts, "selected": selected}))
                continue
            folder = plan.folder(trial)
            where = f"{' '.join(cell.labels.values())}, seed {seed}"
            if folder.status != "done":
                reason = folder.failure()["error"] if folder.status == "failed" else folder.status
                tell(f"no result: {where}: {reason}")
                if folder.status == "failed":
                    rows.append(
                        Record(cell.labels, seed, 0, {}, "failed", {"run": trial.identity, "selected": selected})
                    )
                continue
            try:
                result = folder.result()
            except DamagedFileError as error:  # the others count; without this one's folder it is trained anew
                tell(f"no result: {where}: {describe_damage(folder.path, error)}")
                continue
            found = _rows(artifact, cell, seed, result, selected, trial.identity)
            if found[-1].status == "chance":
                tell(f"no result: {where}: training accuracy at the level of chance")
            else:
                done.append((cell.labels, seed, folder))
            rows += found
    if artifact.observe is None:
        return rows
    return _with_more(rows, code_of(artifact, artifact.observe)(done, plan))


def place_of(labels: Labels, seed: int, identity: str) -> tuple[object, ...]:
    """Where a run stands in the observations; the same run may stand in two lines of a table."""
    return (*Record(labels, seed, 0, {}).place, identity)


def _with_more(rows: Iterable[Record], observed: Iterable[Record]) -> list[Record]:
    """The rows, with what was observed of the same evaluations put in and other observed rows added."""
    by_key = {row.key: row for row in rows}
    for more in observed:
        same = by_key.get(more.key)
        by_key[more.key] = more if same is None else dataclasses.replace(same, values={**same.values, **more.values})
    return list(by_key.values())


def _rows(
    artifact: Artifact, cell: GridCell, seed: int, result: Mapping[str, Any], selected: str, identity: str
) -> list[Record]:
    history = result["history"] if artifact.curves else result["history"][-1:]
    facts = {"selected": selected, **facts_of(result, identity)}
    status = "chance" if is_chance(result) else "done"
    rows = []
    for entry in history:
        parts = [part for part in ("train", "validation", "test") if part in entry]
        values = {f"{part}.{name}": value for part in parts for name, value in entry[part].items()}
        if entry is history[-1]:
            extra = {part: measures for part, measures in result["measures"].items() if part not in ("train", "test")}
            if "best" in result:
                extra["best"] = result["best"]["test"]
            values |= {f"{part}.{name}": value for part, measures in extra.items() for name, value in measures.items()}
        elif not isinstance(artifact.curves, bool):
            values = {name: values[name] for name in artifact.curves if name in values}
        rows.append(Record(cell.labels, seed, int(entry["epoch"]), values, status, facts))
    return rows


def facts_of(result: Mapping[str, Any], identity: str) -> dict[str, str]:
    """Time, identity, commit and machine of a run."""
    return {
        "seconds": f"{result['seconds']:.1f}",
        "run": identity,
        "commit": str(result["machine"]["git"] or ""),
        "machine": str(result["machine"]["device"]),
    }


def is_chance(result: Mapping[str, Any]) -> bool:
    """Whether a run did no better on its training set than always answering the largest class.

    Without its bias neither: at a very small scale biases alone decide, however well the features are apart.
    """
    share = result["data"].get("largest_class", 1 / len(result["data"]["class_names"]))
    train = result["measures"]["train"]
    return bool(max(train["accuracy"], train.get("unbiased_accuracy", 0.0)) <= ABOVE_CHANCE * share)
