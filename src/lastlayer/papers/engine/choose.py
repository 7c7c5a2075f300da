"""What is chosen on validation data before a grid runs: the candidates, what they measured, and which did best."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lastlayer._core.files import describe_damage
from lastlayer.papers.engine.artifact import Artifact, Grid, GridCell, Labels, Search, Size, resolve
from lastlayer.papers.engine.record import facts_of
from lastlayer.papers.engine.store import Observations, Record, Store
from lastlayer.runners import Placement
from lastlayer.runs import DamagedFileError, RunFolder
from lastlayer.training import Trial
from lastlayer.training.tuning import best, held_out

Tell = Callable[[str], None]
Group = tuple[str, ...]  # the points for which settings are chosen together


class Choosing:
    """What is tried on validation data before the cells of a grid run, and what comes out best."""

    def __init__(self, artifact: Artifact, size: Size, grid: Grid, placement: Placement, store: Store) -> None:
        self.artifact, self.size, self.grid, self.placement, self.store = artifact, size, grid, placement, store
        self.groups: dict[Group, GridCell] = {}
        self.tried: dict[Group, list[Trial]] = {}
        if grid.search is not None:
            self.groups = groups_of(grid, grid.search)
            self.tried = {group: candidates(grid.search, cell) for group, cell in self.groups.items()}
        stored = store.read(artifact.name, size, tried=True).rows
        self.tested = {row.facts.get("run") for row in stored if row.status == "done"}

    def concerns(self, cell: GridCell) -> bool:
        """Whether something is chosen for a cell."""
        return self.grid.search is not None and _group(self.grid.search, cell.labels) in self.groups

    def possible(self) -> Iterator[GridCell]:
        """Every cell. A cell for which something is chosen comes once per combination that may do best."""
        for cell in self.grid.cells:
            if self.grid.search is None or not self.concerns(cell):
                yield cell
                continue
            for settings in _combinations(self.groups[_group(self.grid.search, cell.labels)]):
                yield dataclasses.replace(cell, trial=cell.trial.with_settings(settings))

    def untried(self, *, taught: bool) -> list[Trial]:
        """The candidates that the store does not have: those that need a teacher, or those that need none."""
        groups = [group for group, cell in self.groups.items() if (cell.teacher is not None) == taught]
        return [trial for group in groups for trial in self.tried[group] if trial.identity not in self.tested]

    def keep(self) -> None:
        """Merge the candidates that ended into the store."""
        per = () if self.grid.search is None else self.grid.search.per
        rows: list[Record] = []
        for group, made in self.tried.items():
            labels = dict(zip(per, group, strict=True))
            for trial, settings in zip(made, _combinations(self.groups[group]), strict=True):
                rows += _candidate_records(labels, settings, trial, self.placement.folder(trial))
        self.store.add(self.artifact.name, self.size, rows, tried=True)

    def choose(self, tell: Tell) -> tuple[Grid, list[str]]:
        """The grid with the settings that did best, and for each cell what was chosen, in words."""
        if self.grid.search is None:
            return self.grid, [""] * len(self.grid.cells)
        scores = _scores(self.store.read(self.artifact.name, self.size, tried=True))
        winners: dict[Group, dict[str, Any]] = {}
        for group, made in self.tried.items():
            found = [scores.get(trial.identity) for trial in made]
            place = best(found)
            if place is None:
                where = f"see lastlayer status {self.placement.root}"
                raise ValueError(f"every setting tried for {made[0].loss.name} failed: {where}")
            winners[group] = _combinations(self.groups[group])[place]
            tell(
                f"{' '.join(group) or self.artifact.name}: {_text(winners[group])}, "
                f"validation accuracy {(found[place] or {})['accuracy']:.4f}, "
                f"{len(made) - found.count(None)} of {len(made)} candidates done"
            )
        cells, chosen = [], []
        for cell in self.grid.cells:
            settings = winners.get(_group(self.grid.search, cell.labels), {})
            cells.append(dataclasses.replace(cell, trial=cell.trial.with_settings(settings)))
            chosen.append(_text(settings))
        return dataclasses.replace(self.grid, cells=tuple(cells)), chosen


def candidates(search: Search, cell: GridCell) -> list[Trial]:
    """What is tried before a cell runs: a trial per combination of settings, with part of the training set held out."""
    return [
        held_out(resolve(cell.trial.with_settings(settings, search.settings, {"evaluations": 1})))
        for settings in _combinations(cell)
    ]


def groups_of(grid: Grid, search: Search) -> dict[Group, GridCell]:
    """The first cell of each group that has something to choose."""
    groups: dict[Group, GridCell] = {}
    for cell in grid.cells:
        if cell.over:
            groups.setdefault(_group(search, cell.labels), cell)
    return groups


def _group(search: Search, labels: Labels) -> Group:
    return tuple(labels[axis] for axis in search.per)


def _combinations(cell: GridCell) -> list[dict[str, Any]]:
    return [dict(zip(cell.over, values, strict=True)) for values in itertools.product(*cell.over.values())]


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _candidate_records(labels: Labels, settings: Mapping[str, Any], trial: Trial, folder: RunFolder) -> list[Record]:
    """The record of a candidate that ended: what it measured on the part held out, and nothing else."""
    labels = {**labels, "tried": _text(settings)}
    if folder.status == "failed":
        return [Record(labels, trial.seed, 0, {}, "failed", {"run": trial.identity})]
    if folder.status != "done":
        return []
    try:
        result = folder.result()
    except DamagedFileError as error:  # without this one, another might be chosen
        raise DamagedFileError(describe_damage(folder.path, error)) from error
    values = {f"validation.{name}": value for name, value in result["measures"]["validation"].items()}
    return [Record(labels, trial.seed, trial.schedule.epochs, values, "done", facts_of(result, trial.identity))]


def _scores(tried: Observations) -> dict[str, dict[str, float]]:
    """What finished candidates measured on validation data, by their identity."""
    return {
        row.facts["run"]: {name.removeprefix("validation."): value for name, value in row.values.items()}
        for row in tried.rows
        if row.status == "done"
    }
