"""A published table or figure as data: the grid of trials behind it, at three sizes, read from one TOML file a paper.

The file of a paper holds:

    [paper]             id, title
    [settings]          of every trial, by the dotted names of `Trial.with_settings`
    [smoke]             settings laid over every artifact at smoke size
    [choices.NAME]      what the paper leaves open: value, reason, and settings if it changes any
    [axes.NAME]         an axis that several artifacts have
    [artifacts.NAME]
        like                    another artifact, whose keys hold where this one has none of its own
        where, shows            "Table 1", and one line on what it shows
        published               CSV of the printed numbers: label columns, column, value, std
        columns                 {title = spec}: a spec is split.measure, as in "test.accuracy", after an optional
                                "1-" or "-" and before an optional "%"
        choices                 names of the choices it takes
        settings                laid over the paper's
        seeds                   how many
        axes.NAME.POINT         settings of one value of a label; may also hold columns of its own, and under small or
                                smoke settings for that size alone
        axes.NAME               or {setting, values}: a point for each value of one setting, named by the value; or the
                                name of an axis of the paper's
        cases                   [{when = {axis = [points]}, ...}]: what holds for some combinations of points alone:
                                settings laid over those of the points; select (setting = [values], added to select's
                                over); teacher (settings laid over the cell's own: the run to distill from);
                                drop = true for combinations that are not run
        select                  {over = {setting = [values]}, per = [axes], settings}: chosen on a validation split
                                first; settings are laid over the candidates alone, as for shorter ones
        average                 an axis: a line "Average" for the mean over all its points, beside the printed one
        curves                  true keeps the measures of every evaluation, not only the last; a list of split.measure
                                keeps those alone before the last
        figure                  {x, y, log}: which line chart to draw; x is an axis or "epoch"
        compute                 name of a function that makes the numbers where there is nothing to train
        observe                 name of a function that measures more on the finished runs
        together                true where observe compares runs with each other, so that it needs all of them at hand
        small, smoke, paper     {note, seeds, settings, keep = {axis = [points]}, cases, select, arguments}; paper has
                                only to keep the published points of an axis that also has stand-ins; cases are added
        arguments               of compute, at paper size
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from types import ModuleType
from typing import Any, Literal, get_args

from lastlayer._core.registry import nearest
from lastlayer.training.trial import ModelChoice, Trial

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
PAPERS = ("sln", "equal_losses", "logit_separation", "normalized_scaling", "bn_wd", "all_losses")
SMOKE_POINTS = 2  # of each axis, and as many seeds, where the artifact does not say which

Settings = Mapping[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Choice:
    """Something the paper leaves open, settled here.

    Attributes:
        value: what was chosen.
        reason: why, or where it comes from.
        settings: of the trials, where the choice changes any.
    """

    value: str
    reason: str
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Selection:
    """How settings are chosen on a validation split before the trials of an artifact run; from which, each cell says.

    Attributes:
        per: labels that each have a choice of their own.
        settings: of the candidates alone.
    """

    per: tuple[str, ...]
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """One place in the table.

    Attributes:
        labels: where it stands.
        trial: without a seed of its own.
        columns: how they are read.
        over: candidate values by setting, chosen on validation; all combinations are tried with one seed.
        teacher: the trial whose run it distills from, resolved.
    """

    labels: Labels
    trial: Trial
    columns: Mapping[str, str]
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    teacher: Trial | None = None


@dataclass(frozen=True)
class Grid:
    """What an artifact runs at one size.

    Attributes:
        cells: all combinations of the points of the axes.
        seeds: of each cell.
        selection: what is chosen first, if anything.
        note: how this differs from the published setting.
        arguments: of the function of a computed artifact.
    """

    cells: tuple[Cell, ...]
    seeds: tuple[int, ...]
    selection: Selection | None
    note: str
    arguments: Settings

    def trials(self) -> list[Trial]:
        """Every trial with each seed, resolved; cells that share a trial share its runs."""
        resolved = [resolve(cell.trial, {}) for cell in self.cells]
        made = [dataclasses.replace(trial, seed=seed) for trial in resolved for seed in self.seeds]
        return list({trial.identity: trial for trial in made}.values())

    def teachers(self) -> list[Trial]:
        """The trials that others distill from, which must be done before those begin."""
        made = [cell.teacher for cell in self.cells if cell.teacher is not None]
        return list({trial.identity: trial for trial in made}.values())


@dataclass(frozen=True)
class Artifact:
    """A published table or figure, or a check of a theorem.

    Attributes:
        name: such as sln.table1.
        where: in the paper, such as "Table 1".
        shows: one line.
        columns: spec of each column by its title.
        choices: what the paper leaves open, by name.
        published: file of the printed numbers, if it prints any.
        average: the axis over whose points the table has a mean, if any.
        curves: whether the measures of every evaluation are kept, or which of them.
        figure: the line chart to draw, if any.
        compute: name of the function that makes the numbers, where nothing is trained.
        observe: name of the function that measures more on the finished runs.
        together: whether it compares them with each other.
    """

    name: str
    where: str
    shows: str
    columns: Mapping[str, str]
    choices: Mapping[str, Choice]
    published: str | None
    average: str | None
    curves: bool | Sequence[str]
    figure: Mapping[str, Any] | None
    compute: str | None
    observe: str | None
    together: bool
    _content: Mapping[str, Any]
    _layers: tuple[Settings, ...]
    _smoke: Settings

    @property
    def paper(self) -> str:
        """Name of its paper."""
        return self.name.partition(".")[0]

    @property
    def axes(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Settings by axis and point."""
        return {axis: dict(points) for axis, points in self._content.get("axes", {}).items()}

    def grid(self, size: Size) -> Grid:
        """What to run at a size.

        Raises:
            ValueError: for a setting that no trial has.
        """
        own: dict[str, Any] = dict(self._content.get(size, {}))
        keep = own.get("keep", {})
        axes = {axis: self._kept(axis, points, keep.get(axis), size) for axis, points in self.axes.items()}
        select = own.get("select", self._content.get("select", {}))
        cells = []
        if self.compute is None:
            for combination in itertools.product(*(points.items() for points in axes.values())):
                labels = {axis: label for axis, (label, _) in zip(axes, combination, strict=True)}
                cell = self._cell(labels, [point for _, point in combination], select, size)
                if cell is not None:
                    cells.append(cell)
        selection = None
        if any(cell.over for cell in cells):
            selection = Selection(tuple(select.get("per", axes)), select.get("settings", {}))
        published = int(self._content.get("seeds", 1))
        seeds = tuple(range(own.get("seeds", min(published, SMOKE_POINTS) if size == "smoke" else published)))
        arguments = {**self._content.get("arguments", {}), **own.get("arguments", {})}
        return Grid(tuple(cells), seeds, selection, str(own.get("note", "")), arguments)

    def _cell(self, labels: Labels, points: Sequence[Settings], select: Settings, size: Size) -> Cell | None:
        own = self._content.get(size, {})
        columns, layers = dict(self.columns), list(self._layers)
        last = [*([self._smoke] if size == "smoke" else []), own.get("settings", {})]
        for point in points:
            columns |= point.get("columns", {})
            layers.append({name: value for name, value in point.items() if name not in ("columns", *SIZES)})
            last.append(point.get(size, {}))
        over = dict(select.get("over", {}))
        teaching: Settings | None = None
        for case in (*self._content.get("cases", []), *own.get("cases", [])):
            if all(labels[axis] in allowed for axis, allowed in case["when"].items()):
                if case.get("drop"):
                    return None
                layers.append(case.get("settings", {}))
                over |= case.get("select", {}) if select else {}
                teaching = case.get("teacher", teaching)
        if teaching is None:
            return Cell(labels, _lay(*layers, *last), columns, over)
        teacher = resolve(_lay(*layers, teaching, *last), {})
        return Cell(labels, _lay(*layers, *last, {"teacher": teacher.identity}), columns, over, teacher)

    def _kept(self, axis: str, points: Mapping[str, Any], keep: Sequence[str] | None, size: Size) -> dict[str, Any]:
        if keep is None:
            return dict(itertools.islice(points.items(), SMOKE_POINTS if size == "smoke" else None))
        for label in keep:
            if label not in points:
                raise ValueError(f"{self.name}: axis {axis} has no point {label!r}{nearest(label, points)}")
        return {label: points[label] for label in keep}


def artifacts() -> dict[str, Artifact]:
    """Every artifact of every paper, by name."""
    return {name: one for paper in PAPERS for name, one in _read(paper).items()}


def artifact(name: str) -> Artifact:
    """The artifact of a name such as sln.table1.

    Raises:
        ValueError: for an unknown name, with the nearest one.

    Example:
        >>> artifact("sln.table1").where
        'Table 1'
    """
    known = artifacts()
    if name not in known:
        close = nearest(name, [*known, *PAPERS])
        raise ValueError(f"there is no artifact {name!r}{close}; `lastlayer reproduce --list` shows all")
    return known[name]


def module_of(artifact: Artifact) -> ModuleType:
    """The module of the artifact's paper, which has the functions that its TOML file names."""
    return importlib.import_module(f"lastlayer.papers.{artifact.paper}")


_KEYS = {
    "where", "shows", "published", "average", "columns", "choices", "settings", "seeds", "axes", "select", "curves",
    "figure", "compute", "observe", "together", "small", "smoke", "paper", "arguments", "cases", "like",
}  # fmt: skip
_SIZE_KEYS = {"note", "seeds", "settings", "keep", "select", "arguments", "cases"}
_CASE_KEYS = {"when", "settings", "select", "teacher", "drop"}


@functools.cache
def _read(paper: str) -> dict[str, Artifact]:
    return parse(paper, (files("lastlayer.papers") / f"{paper}.toml").read_text())


def parse(paper: str, text: str) -> dict[str, Artifact]:
    """The artifacts of a paper's TOML file, by name.

    Raises:
        ValueError: for a key that means nothing, with the nearest that does.
    """
    content = tomllib.loads(text)
    _only({"paper", "settings", "smoke", "choices", "axes", "artifacts"}, content, f"{paper}.toml")
    choices = {name: Choice(**entry) for name, entry in content.get("choices", {}).items()}
    made, shared = {}, content.get("axes", {})
    for short, entry in content["artifacts"].items():
        name = f"{paper}.{short}"
        if "like" in entry:
            entry = {**content["artifacts"][entry["like"]], **entry}
        _only(_KEYS, entry, name)
        entry["axes"] = {axis: _points(points, shared) for axis, points in entry.get("axes", {}).items()}
        for size in SIZES:
            _only(_SIZE_KEYS, entry.get(size, {}), f"{name}, {size}")
            for case in (*entry.get("cases", []), *entry.get(size, {}).get("cases", [])):
                _check_case(case, entry.get("axes", {}), name)
        _only(set(entry["axes"]), [entry["average"]] if "average" in entry else [], f"{name}, average")
        for choice in entry.get("choices", []):
            _only(set(choices), [choice], f"{name}, choices")
        taken = {choice: choices[choice] for choice in entry.get("choices", [])}
        made[name] = Artifact(
            name=name,
            where=entry["where"],
            shows=entry["shows"],
            columns=entry.get("columns", {}),
            choices=taken,
            published=entry.get("published"),
            average=entry.get("average"),
            curves=entry.get("curves", False),
            figure=entry.get("figure"),
            compute=entry.get("compute"),
            observe=entry.get("observe"),
            together=entry.get("together", False),
            _content=entry,
            _layers=(content.get("settings", {}), *(c.settings for c in taken.values()), entry.get("settings", {})),
            _smoke=content.get("smoke", {}),
        )
    return made


def resolve(trial: Trial, settings: Settings) -> Trial:
    """The trial with some settings, resolved; also where the package of its model is not installed.

    Whoever lists or counts trials need not be able to run them; running one says what is missing.
    """
    trial = trial.with_settings(settings)
    try:
        return trial.resolved()
    except ImportError:
        stand_in = dataclasses.replace(trial, model=ModelChoice()).resolved()
        return dataclasses.replace(stand_in, model=trial.model)


def _lay(*layers: Settings) -> Trial:
    """The trial of some settings, later layers over earlier ones."""
    return Trial().with_settings(*layers)


def _points(axis: str | Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The points of an axis: the paper's own of that name, the values of one setting, or written out."""
    if isinstance(axis, str):
        _only(set(shared), [axis], "axes")
        return _points(shared[axis], shared)
    if set(axis) != {"setting", "values"}:
        return axis
    return {f"{value:g}": {axis["setting"]: value} for value in axis["values"]}


def _only(allowed: set[str], given: Any, where: str) -> None:
    for name in given:
        if name not in allowed:
            raise ValueError(f"{where}: there is no {name!r}{nearest(name, allowed)}")


def _check_case(case: Settings, axes: Mapping[str, Any], where: str) -> None:
    _only(_CASE_KEYS, case, f"{where}, cases")
    _only(set(axes), case["when"], f"{where}, cases")
    for axis, points in case["when"].items():
        _only(set(axes[axis]), points, f"{where}, cases, {axis}")
