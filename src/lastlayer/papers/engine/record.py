"""What is kept of runs that ended, and what `observe` functions are given to measure more.

There is one record per evaluation, with what it measured and where it was made.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lastlayer._core.files import describe_damage
from lastlayer.data import Split
from lastlayer.papers.engine.artifact import Artifact, Grid, GridCell, Labels, code_of, resolve
from lastlayer.papers.engine.store import Record, place_of
from lastlayer.runners import Placement, resolve_device
from lastlayer.runs import DamagedFileError, RunFolder
from lastlayer.training import DataChoice, Trial, load, load_data
from lastlayer.training.engine.evaluate import Outputs, outputs

ABOVE_CHANCE = 1.05  # times the share of the largest class: below this training accuracy a run learned nothing

Done = Sequence[tuple[Labels, int, RunFolder]]  # the finished runs of an artifact: labels, seed, folder


def observe(
    artifact: Artifact,
    grid: Grid,
    placement: Placement,
    chosen: Sequence[str],
    known: Collection[tuple[object, ...]],
    elsewhere: Mapping[str, Record],
    tell: Callable[[str], None],
) -> list[Record]:
    """The records of the runs of a grid that ended and are not known yet.

    Args:
        grid: with the settings that were chosen for its cells.
        chosen: what was chosen for each cell, in words.
        known: places and identities of runs that the store has already.
        elsewhere: records of other artifacts by run. A run that is among them is not read from its folder.
        tell: is told of each run without a result, and why.
    """
    rows: list[Record] = []
    done: list[tuple[Labels, int, RunFolder]] = []
    for cell, selected in zip(grid.cells, chosen, strict=True):
        for seed in grid.seeds:
            trial = resolve(cell.trial, seed=seed)
            if (place_of(cell.labels, seed), trial.identity) in known:
                continue
            if trial.identity in elsewhere:
                same = elsewhere[trial.identity]
                rows.append(dataclasses.replace(same, labels=cell.labels, facts={**same.facts, "selected": selected}))
                continue
            folder = placement.folder(trial)
            where = f"{' '.join(cell.labels.values())}, seed {seed}"
            if folder.status == "failed":
                tell(f"no result: {where}: {folder.failure()['error']}")
                facts = {"run": trial.identity, "selected": selected}
                rows.append(Record(cell.labels, seed, 0, {}, "failed", facts))
                continue
            if folder.status != "done":
                tell(f"no result: {where}: {folder.status}")
                continue
            try:
                result = folder.result()
            except DamagedFileError as error:  # the other runs count; this one trains again once its folder is gone
                tell(f"no result: {where}: {describe_damage(folder.path, error)}")
                continue
            found = _records(artifact, cell, seed, result, selected, trial.identity)
            if found[-1].status == "chance":
                tell(f"no result: {where}: training accuracy at the level of chance")
            else:
                done.append((cell.labels, seed, folder))
            rows += found
    if artifact.observe is None:
        return rows
    by_key = {row.key: row for row in rows}
    for more in code_of(artifact, artifact.observe)(done, placement):  # more values of these runs, or more rows
        old = by_key.get(more.key)
        by_key[more.key] = more if old is None else dataclasses.replace(old, values={**old.values, **more.values})
    return list(by_key.values())


def _records(
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
    return {"seconds": f"{result['seconds']:.1f}", "run": identity, **made_on(result["machine"])}


def made_on(machine: Mapping[str, Any]) -> dict[str, str]:
    """Commit and machine, from what `describe_machine` says."""
    return {"commit": str(machine["git"] or ""), "machine": str(machine["device"])}


def is_chance(result: Mapping[str, Any]) -> bool:
    """Whether a run did no better on its training set than always answering the largest class.

    The better of the accuracies with and without the bias counts. At a very small scale the biases alone decide,
    however well the features are separated.
    """
    share = result["data"].get("largest_class", 1 / len(result["data"]["class_names"]))
    train = result["measures"]["train"]
    return bool(max(train["accuracy"], train.get("unbiased_accuracy", 0.0)) <= ABOVE_CHANCE * share)


@dataclass(frozen=True)
class Finished:
    """A run and what its network makes of its training samples, on the CPU."""

    labels: Labels
    seed: int
    trial: Trial
    train: Outputs


def on_training_samples(done: Done, placement: Placement) -> Iterator[Finished]:
    """Each run with the features and logits of its training samples.

    They are computed on the device on which the runs train. Data that consecutive runs share is read once.
    """
    device = resolve_device(placement.device) if torch.cuda.is_available() else "cpu"
    read: tuple[DataChoice, Split] | None = None
    for labels, seed, folder in done:
        loaded = load(folder, device)
        if read is None or read[0] != loaded.trial.data:
            read = loaded.trial.data, load_data(loaded.trial.data, placement.data_root).train
        made = outputs(loaded.network, read[1])
        train = Outputs(made.features.cpu(), made.logits.cpu(), made.target.cpu())
        yield Finished(labels, seed, loaded.trial, train)
