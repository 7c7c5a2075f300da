"""Running an artifact: choose what is chosen on validation, train the grid, and write down what was observed."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lastlayer.papers._artifact import Artifact, Cell, Grid, Labels, Selection, Size, resolve
from lastlayer.papers._observations import Observations, Row, Store
from lastlayer.runners import Plan, run_trials
from lastlayer.runs import RunFolder
from lastlayer.training.trial import Trial
from lastlayer.training.tuning import HOLDOUT, TUNING_SEED, best_candidate

ABOVE_CHANCE = 1.05  # times the share of the largest class: a run below that on its training set learned nothing

Run = Callable[[Sequence[Trial], Plan, str], None]
Told = Callable[[str], None]
Group = tuple[str, ...]  # labels of the axes for which settings are chosen


def reproduce(
    artifact: Artifact,
    size: Size,
    plan: Plan,
    store: Store,
    *,
    only: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[int] | None = None,
    run: Run | None = None,
    tell: Told = lambda line: None,
) -> Observations:
    """Run what is missing of an artifact and merge what it shows into the store.

    Args:
        artifact: which.
        size: smoke, small or paper.
        plan: where and how trials run.
        store: where observations go.
        only: labels to keep, by axis; all without.
        seeds: instead of the artifact's own.
        run: trains trials; shows progress if it likes. It may leave some failed.
        tell: is told what was chosen and what was left out, a line at a time.

    Returns:
        Everything observed so far at this size.
    """
    wanted = {artifact.name: only or {}}
    return reproduce_all([artifact], size, plan, store, only=wanted, seeds=seeds, run=run, tell=tell)[0]


def reproduce_all(
    artifacts: Sequence[Artifact],
    size: Size,
    plan: Plan,
    store: Store,
    *,
    only: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    seeds: Sequence[int] | None = None,
    run: Run | None = None,
    tell: Told = lambda line: None,
) -> list[Observations]:
    """`reproduce` of several, whose trials run side by side, a trial that several share once.

    One that cannot go on, as when every setting tried for it failed, does not stop the others.

    Args:
        only: labels to keep, by artifact and axis.

    Raises:
        Exception: that of the first that could not go on, after the others are written down.
    """

    def told(name: str) -> Told:
        return tell if len(artifacts) == 1 else lambda line: tell(f"{name}: {line}")

    working = {
        artifact.name: _observed(artifact, size, restricted(artifact, size, (only or {}).get(artifact.name), seeds),
                                 plan, store, told(artifact.name))
        for artifact in artifacts
    }  # fmt: skip
    errors: list[Exception] = []
    try:
        while working:
            batches: dict[str, Sequence[Trial]] = {}
            for name, work in list(working.items()):
                try:
                    batches[name] = next(work)
                except StopIteration:
                    del working[name]
                except Exception as error:
                    del working[name]
                    errors.append(error)
                    if len(artifacts) > 1:
                        told(name)(f"stopped: {error}")
            trials = {trial.identity: trial for batch in batches.values() for trial in batch}
            if trials:
                names = ", ".join(name for name, batch in batches.items() if batch)
                (run or _run_quietly)(list(trials.values()), plan, f"{names}, {size}")
    except BaseException as error:  # Ctrl-C too: what is done counts
        for work in working.values():
            with contextlib.suppress(Exception, type(error)):
                work.throw(error)
        raise
    if errors:
        raise errors[0]
    return [store.read(artifact.name, size) for artifact in artifacts]


Work = Generator[Sequence[Trial], None, None]  # yields what must be trained before it goes on


def _observed(artifact: Artifact, size: Size, grid: Grid, plan: Plan, store: Store, tell: Told) -> Work:
    """Merge what an artifact shows into the store."""
    if artifact.compute is None:
        yield from _trained(artifact, size, grid, plan, store, tell)
        return
    here = _facts_here()  # once, and first: commits made meanwhile have no part in it
    compute = getattr(_module(artifact), artifact.compute)
    store.add(
        artifact.name,
        size,
        [dataclasses.replace(row, facts=here | dict(row.facts)) for row in compute(**grid.arguments)],
    )


def _trained(artifact: Artifact, size: Size, grid: Grid, plan: Plan, store: Store, tell: Told) -> Work:
    """Merge the rows of a grid into the store after training what it does not have yet.

    First come teachers, candidates that need none and cells for which nothing is chosen; then candidates that were
    waiting for a teacher; then teachers of what was chosen without trying anything; then the rest.
    """
    choosing = _Choosing(artifact, size, grid, plan, store)
    stored = [] if artifact.together else store.read(artifact.name, size).rows
    known = {_place(row.labels, row.seed, row.facts.get("run", "")) for row in stored if row.status != "failed"}
    # artifacts share runs, and a last row has every measure; curves and what is observed more it has not
    elsewhere = {} if artifact.curves or artifact.observe else store.finished(artifact.paper, size)

    def missing(cells: Iterable[Cell]) -> list[Trial]:
        made = [(cell, seed, resolve(cell.trial, {"seed": seed})) for cell in cells for seed in grid.seeds]
        return [
            trial
            for cell, seed, trial in made
            if _place(cell.labels, seed, trial.identity) not in known and trial.identity not in elsewhere
        ]

    def teachers_of(cells: Iterable[Cell]) -> list[Trial]:
        return [cell.teacher for cell in cells if cell.teacher is not None]

    def keep(grid: Grid, chosen: Sequence[str], tell: Told) -> None:
        store.add(artifact.name, size, _observe(artifact, grid, plan, chosen, known, elsewhere, tell))

    if (known or elsewhere) and any(len(missing([cell])) < len(grid.seeds) for cell in choosing.possible()):
        path = store.path(artifact.name, size)
        path = path.parent if elsewhere else path
        tell(f"what {path} has already is not run again: delete the file to do so")
    settled = dataclasses.replace(grid, cells=tuple(cell for cell in grid.cells if not choosing.concerns(cell)))
    waiting = [cell for cell in settled.cells if missing([cell])]
    if choosing.untried(taught=True):
        waiting += [cell for cell in grid.cells if choosing.concerns(cell)]
    teachers = teachers_of(waiting)
    chosen = [""] * len(settled.cells)
    try:
        free = missing(cell for cell in settled.cells if cell.teacher is None)
        yield [*teachers, *choosing.untried(taught=False), *free]
        yield choosing.untried(taught=True)
        choosing.keep()
        settled, chosen = choosing.choose(tell)
        left = missing(settled.cells)
        late = teachers_of(cell for cell in settled.cells if missing([cell]))
        yield [teacher for teacher in late if teacher not in teachers]
        yield [trial for trial in left if trial not in free]
    except BaseException:
        try:
            choosing.keep()
        finally:
            keep(settled, chosen, lambda line: None)
        raise
    keep(settled, chosen, tell)


def restricted(
    artifact: Artifact,
    size: Size,
    only: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[int] | None = None,
) -> Grid:
    """The grid of an artifact with some of its labels and seeds.

    Raises:
        ValueError: for a label or an axis that the grid does not have.
    """
    grid = artifact.grid(size)
    for axis, wanted in (only or {}).items():
        there = list(dict.fromkeys(cell.labels.get(axis, "") for cell in grid.cells))
        if axis not in artifact.axes:
            raise ValueError(f"{artifact.name} has no axis {axis!r}; it has {', '.join(artifact.axes) or 'none'}")
        for label in wanted:
            if label not in there:
                have = ", ".join(map(repr, there))  # some have a comma in them
                raise ValueError(f"{artifact.name} at size {size} has no {axis} {label!r}; it has {have}")
        grid = dataclasses.replace(grid, cells=tuple(cell for cell in grid.cells if cell.labels[axis] in wanted))
    return grid if seeds is None else dataclasses.replace(grid, seeds=tuple(seeds))


def all_trials(grid: Grid) -> list[Trial]:
    """Every trial of a grid in the order they run: teachers, candidates, and the rest as before anything is chosen."""
    made = grid.teachers()
    if grid.selection is not None:
        for cell in _groups(grid, grid.selection).values():
            made += candidates(grid.selection, cell)
    return list({trial.identity: trial for trial in (*made, *grid.trials())}.values())


def candidates(selection: Selection, cell: Cell) -> list[Trial]:
    """The trials tried before a cell runs: every combination of the settings chosen, with a part held out."""
    made = []
    for settings in _combinations(cell):
        holdout = {"data.holdout": cell.trial.data.holdout or HOLDOUT, "seed": TUNING_SEED, "evaluations": 1}
        made.append(resolve(cell.trial, {**settings, **selection.settings, **holdout}))
    return made


def _combinations(cell: Cell) -> list[dict[str, Any]]:
    return [dict(zip(cell.over, values, strict=True)) for values in itertools.product(*cell.over.values())]


class _Choosing:
    """What is tried on validation data before the cells of a grid run, and what comes out best."""

    def __init__(self, artifact: Artifact, size: Size, grid: Grid, plan: Plan, store: Store) -> None:
        self.artifact, self.size, self.grid, self.plan, self.store = artifact, size, grid, plan, store
        self.groups: dict[Group, Cell] = {}
        self.tried: dict[Group, list[Trial]] = {}
        if grid.selection is not None:
            self.groups = _groups(grid, grid.selection)
            self.tried = {group: candidates(grid.selection, cell) for group, cell in self.groups.items()}
        stored = store.read(artifact.name, size, tried=True).rows
        self.tested = {row.facts.get("run") for row in stored if row.status == "done"}

    def concerns(self, cell: Cell) -> bool:
        """Whether something is chosen for a cell."""
        return self.grid.selection is not None and _group(self.grid.selection, cell.labels) in self.groups

    def possible(self) -> Iterator[Cell]:
        """Every cell, one for which something is chosen with each combination that may come out best."""
        for cell in self.grid.cells:
            if self.grid.selection is None or not self.concerns(cell):
                yield cell
                continue
            for settings in _combinations(self.groups[_group(self.grid.selection, cell.labels)]):
                yield dataclasses.replace(cell, trial=cell.trial.with_settings(settings))

    def untried(self, *, taught: bool) -> list[Trial]:
        """The candidates that are not written down: those that need a teacher, or those that need none."""
        groups = [group for group, cell in self.groups.items() if (cell.teacher is not None) == taught]
        return [trial for group in groups for trial in self.tried[group] if trial.identity not in self.tested]

    def keep(self) -> None:
        """Merge the candidates that ended into the store."""
        per = () if self.grid.selection is None else self.grid.selection.per
        rows = [
            row
            for group, made in self.tried.items()
            for trial, settings in zip(made, _combinations(self.groups[group]), strict=True)
            for row in _candidate_rows({axis: self.groups[group].labels[axis] for axis in per}, settings, trial,
                                       self.plan.folder(trial))
        ]  # fmt: skip
        self.store.add(self.artifact.name, self.size, rows, tried=True)

    def choose(self, tell: Told) -> tuple[Grid, list[str]]:
        """The grid with the settings that did best, and what was chosen for each cell."""
        if self.grid.selection is None:
            return self.grid, [""] * len(self.grid.cells)
        scores = _scores(self.store.read(self.artifact.name, self.size, tried=True))
        best: dict[Group, dict[str, Any]] = {}
        for group, made in self.tried.items():
            found = [scores.get(trial.identity) for trial in made]
            winner, score = best_candidate(made, found)
            best[group] = _combinations(self.groups[group])[made.index(winner)]
            tell(f"{' '.join(group) or self.artifact.name}: {_text(best[group])}, "
                 f"validation accuracy {score['accuracy']:.4f}, "
                 f"{len(made) - found.count(None)} of {len(made)} candidates done")  # fmt: skip
        cells, chosen = [], []
        for cell in self.grid.cells:
            settings = best.get(_group(self.grid.selection, cell.labels), {})
            cells.append(dataclasses.replace(cell, trial=cell.trial.with_settings(settings)))
            chosen.append(_text(settings))
        return dataclasses.replace(self.grid, cells=tuple(cells)), chosen


def _candidate_rows(labels: Labels, settings: Mapping[str, Any], trial: Trial, folder: RunFolder) -> list[Row]:
    """The row of a candidate that ended in this folder: what it measured on the part held out, and nothing else."""
    labels = {**labels, "tried": _text(settings)}
    if folder.status == "failed":
        return [Row(labels, trial.seed, 0, {}, "failed", {"run": trial.identity})]
    if folder.status != "done":
        return []
    result = folder.result()
    values = {f"validation.{name}": value for name, value in result["measures"]["validation"].items()}
    return [Row(labels, trial.seed, trial.schedule.epochs, values, "done", _facts(result, trial.identity))]


def _scores(tried: Observations) -> dict[str, dict[str, float]]:
    """What candidates that are done measured on validation data, by their identity."""
    return {
        row.facts["run"]: {name.removeprefix("validation."): value for name, value in row.values.items()}
        for row in tried.rows
        if row.status == "done"
    }


def _observe(
    artifact: Artifact,
    grid: Grid,
    plan: Plan,
    chosen: Sequence[str],
    known: Collection[tuple[object, ...]],
    elsewhere: Mapping[str, Row],
    tell: Told,
) -> list[Row]:
    """The rows of the runs that ended and are not known yet, here or elsewhere."""
    rows: list[Row] = []
    done: list[tuple[Labels, int, RunFolder]] = []
    for cell, selected in zip(grid.cells, chosen, strict=True):
        for seed in grid.seeds:
            trial = resolve(cell.trial, {"seed": seed})
            if _place(cell.labels, seed, trial.identity) in known:
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
                    rows.append(Row(cell.labels, seed, 0, {}, "failed", {"run": trial.identity, "selected": selected}))
                continue
            found = _rows(artifact, cell, seed, folder.result(), selected, trial.identity)
            if found[-1].status == "chance":
                tell(f"no result: {where}: training accuracy at the level of chance")
            else:
                done.append((cell.labels, seed, folder))
            rows += found
    if artifact.observe is None:
        return rows
    return _with_more(rows, getattr(_module(artifact), artifact.observe)(done, plan))


def _place(labels: Labels, seed: int, identity: str) -> tuple[object, ...]:
    """Where a run stands in the observations; the same run may stand in two lines of a table."""
    return (*Row(labels, seed, 0, {}).place, identity)


def _with_more(rows: Iterable[Row], observed: Iterable[Row]) -> list[Row]:
    """Rows with what was observed of the same evaluations, and what was observed besides."""
    by_key = {row.key: row for row in rows}
    for more in observed:
        same = by_key.get(more.key)
        by_key[more.key] = more if same is None else dataclasses.replace(same, values={**same.values, **more.values})
    return list(by_key.values())


def _rows(
    artifact: Artifact, cell: Cell, seed: int, result: Mapping[str, Any], selected: str, identity: str
) -> list[Row]:
    history = result["history"] if artifact.curves else result["history"][-1:]
    facts = {"selected": selected, **_facts(result, identity)}
    status = "chance" if _is_chance(result) else "done"
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
        rows.append(Row(cell.labels, seed, int(entry["epoch"]), values, status, facts))
    return rows


def _facts(result: Mapping[str, Any], identity: str) -> dict[str, str]:
    return {
        "seconds": f"{result['seconds']:.1f}",
        "run": identity,
        "commit": str(result["machine"]["git"] or ""),
        "machine": str(result["machine"]["device"]),
    }


def _is_chance(result: Mapping[str, Any]) -> bool:
    share = result["data"].get("largest_class", 1 / len(result["data"]["class_names"]))
    return bool(result["measures"]["train"]["accuracy"] <= ABOVE_CHANCE * share)


def _module(artifact: Artifact) -> Any:
    return importlib.import_module(f"lastlayer.papers.{artifact.paper}")


def _groups(grid: Grid, selection: Selection) -> dict[Group, Cell]:
    """The first cell of each group that has something to choose."""
    groups: dict[Group, Cell] = {}
    for cell in grid.cells:
        if cell.over:
            groups.setdefault(_group(selection, cell.labels), cell)
    return groups


def _group(selection: Selection, labels: Labels) -> Group:
    return tuple(labels[axis] for axis in selection.per)


def _text(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _run_quietly(trials: Sequence[Trial], plan: Plan, title: str) -> None:
    for _ in run_trials(trials, plan):
        pass


def _facts_here() -> dict[str, str]:
    import torch

    from lastlayer.training.machine import describe_machine

    machine = describe_machine(torch.device("cpu"))
    return {"commit": str(machine["git"] or ""), "machine": str(machine["device"])}
