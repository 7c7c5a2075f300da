"""A published table or figure as data: the trials behind it at three sizes, read from the grids.toml of its paper.

A grids.toml holds:

    [settings]          settings of every trial, by the dotted names of `Trial.with_settings`
    [smoke]             settings laid over every artifact at size smoke
    [choices.NAME]      something the paper leaves open: value, reason, and settings if it changes any
    [axes.NAME]         an axis that several artifacts share
    [artifacts.NAME]
        like                    another artifact; its keys hold for every key that is not given here
        where, shows            where it stands ("Table 1"), and one line on what it shows
        published               file in the folder published/ with the printed numbers: one column per label, then
                                column, value, std
        columns                 {title = spec}. A spec is split.measure, as in "test.accuracy". It may begin with "1-"
                                or "-" and end with "%"
        choices                 names of the choices it takes
        settings                laid over those of the paper
        seeds                   how many seeds
        axes.NAME.POINT         settings of one point of an axis. They may include columns, which replace those of the
                                artifact, and small or smoke settings, which hold at that size only
        axes.NAME               instead of points: {setting, values} makes one point per value of a setting, named by
                                the value; a string is the name of a shared axis
        cases                   [{when = {axis = [points]}, ...}]: what holds only for some combinations of points.
                                settings are laid over those of the points. select adds to the artifact's select.over.
                                teacher holds the settings that make the teacher's trial from the cell's own.
                                drop = true leaves the combinations out
        select                  {over = {setting = [values]}, per = [axes], settings}: settings that are chosen on a
                                validation split before the table runs. settings here hold for the candidates only,
                                for example to train them for fewer epochs
        average                 an axis. The table gets a line "Average", the mean over all points of that axis
        curves                  true keeps the measures of every evaluation, not only of the last one. A list of
                                split.measure keeps only those measures before the last evaluation
        figure                  {x, y, log}: a line chart; x is an axis or "epoch". Or {code, ...}: a function in the
                                paper's figures.py that draws it
        compute                 a function in the paper's theory.py that computes the numbers; nothing is trained
        observe                 a function in the paper's own module that measures more on the finished runs
        together                true if observe compares runs with each other and so needs all of them on this machine
        small, smoke, paper     {note, seeds, settings, keep = {axis = [points]}, cases, select, arguments}: what is
                                different at one size. cases are added to those above. paper is only needed where an
                                axis has stand-ins beside the published points: keep then names the published ones
        arguments               arguments of compute
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
from typing import Any, Literal, get_args

from lastlayer._core.registry import nearest
from lastlayer.training.trial import ModelChoice, Trial

Size = Literal["smoke", "small", "paper"]
SIZES: tuple[Size, ...] = get_args(Size)
PAPERS = ("sln", "equal_losses", "logit_separation", "normalized_scaling", "bn_wd", "all_losses")
SMOKE_POINTS = 2  # how many points of each axis, and how many seeds, a smoke size keeps unless it says so itself
FOLDER = files("lastlayer.papers")

Settings = Mapping[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Paper:
    """What the about.toml of a paper says.

    Attributes:
        title: as printed.
        id: its number in the claims; empty for the one table that no paper has.
        authors: their names in one line.
        year: of publication or submission.
        link: where to read it.
    """

    title: str
    id: str = ""
    authors: str = ""
    year: int | None = None
    link: str = ""


@functools.cache
def about(paper: str) -> Paper:
    """Title, authors, year and link of a paper.

    Example:
        >>> about("logit_separation").year
        2018
    """
    return Paper(**tomllib.loads((FOLDER / paper / "about.toml").read_text()))


@dataclass(frozen=True)
class Choice:
    """Something the paper leaves open and that is settled here.

    Attributes:
        value: what was chosen.
        reason: why, or where it comes from.
        settings: settings of the trials, if the choice changes any.
    """

    value: str
    reason: str
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Search:
    """How settings are chosen on a validation split before an artifact runs. Each cell says what there is to choose.

    Attributes:
        per: axes. Each combination of their points has a choice of its own.
        settings: settings of the candidates only.
    """

    per: tuple[str, ...]
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class GridCell:
    """One place in the table.

    Attributes:
        labels: the point of each axis.
        trial: what is trained; seeds come later.
        columns: spec of each column by its title.
        over: candidate values by setting. All combinations are tried with one seed, and validation decides.
        teacher: the resolved trial whose run it distills from, if any.
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
        cells: one per combination of points.
        seeds: seeds of each cell.
        search: how settings are chosen first, if any are.
        note: how this differs from the published setting.
        arguments: arguments of the function, for an artifact that is computed.
    """

    cells: tuple[GridCell, ...]
    seeds: tuple[int, ...]
    search: Search | None
    note: str
    arguments: Settings

    def trials(self) -> list[Trial]:
        """Every trial with each seed, resolved. Cells that have the same trial share its runs."""
        resolved = [resolve(cell.trial, {}) for cell in self.cells]
        made = [dataclasses.replace(trial, seed=seed) for trial in resolved for seed in self.seeds]
        return list({trial.identity: trial for trial in made}.values())

    def teachers(self) -> list[Trial]:
        """The trials that others distill from. They must be finished before those begin."""
        made = [cell.teacher for cell in self.cells if cell.teacher is not None]
        return list({trial.identity: trial for trial in made}.values())


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A published table or figure, or a check of a theorem.

    Attributes:
        name: paper and short name, such as sln.table1.
        where: its place in the paper, such as "Table 1".
        shows: what it shows, in one line.
        choices: what the paper leaves open, by name.
        columns: spec of each column by its title.
        published: the file of the printed numbers, if the paper prints any.
        average: the axis over whose points the table has a mean, if any.
        curves: whether the measures of every evaluation are kept, or which of them.
        figure: what to draw, if anything.
        compute: name of the function that computes the numbers, if nothing is trained.
        observe: name of the function that measures more on the finished runs, if any.
        together: whether that function compares runs with each other.
    """

    name: str
    where: str
    shows: str
    choices: Mapping[str, Choice]
    columns: Mapping[str, str] = field(default_factory=dict)
    published: str | None = None
    average: str | None = None
    curves: bool | Sequence[str] = False
    figure: Mapping[str, Any] | None = None
    compute: str | None = None
    observe: str | None = None
    together: bool = False
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
        return {axis: dict(points) for axis, points in self._content["axes"].items()}

    def grid(self, size: Size) -> Grid:
        """What to run at a size.

        Raises:
            ValueError: for a setting that no trial has, or a point that an axis does not have.
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
        search = None
        if any(cell.over for cell in cells):
            search = Search(tuple(select.get("per", axes)), select.get("settings", {}))
        published = int(self._content.get("seeds", 1))
        seeds = tuple(range(own.get("seeds", min(published, SMOKE_POINTS) if size == "smoke" else published)))
        arguments = {**self._content.get("arguments", {}), **own.get("arguments", {})}
        return Grid(tuple(cells), seeds, search, str(own.get("note", "")), arguments)

    def _cell(self, labels: Labels, points: Sequence[Settings], select: Settings, size: Size) -> GridCell | None:
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
            return GridCell(labels, _lay(*layers, *last), columns, over)
        teacher = resolve(_lay(*layers, teaching, *last), {})
        return GridCell(labels, _lay(*layers, *last, {"teacher": teacher.identity}), columns, over, teacher)

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
        ValueError: for an unknown name. The message suggests the nearest one.

    Example:
        >>> artifact("sln.table1").where
        'Table 1'
    """
    known = artifacts()
    if name not in known:
        close = nearest(name, [*known, *PAPERS])
        raise ValueError(f"there is no artifact {name!r}{close}; `lastlayer reproduce --list` shows all")
    return known[name]


def code_of(artifact: Artifact, name: str, file: str = "") -> Any:
    """The function that grids.toml names, from a file of the artifact's paper, or from the paper's own module."""
    module = ".".join(filter(None, ("lastlayer.papers", artifact.paper, file)))
    return getattr(importlib.import_module(module), name)


_COPIED = {"where", "shows", "published", "average", "columns", "curves", "figure", "compute", "observe", "together"}
_KEYS = _COPIED | {"choices", "settings", "seeds", "axes", "select", "arguments", "cases", "like", *SIZES}
_SIZE_KEYS = {"note", "seeds", "settings", "keep", "select", "arguments", "cases"}
_CASE_KEYS = {"when", "settings", "select", "teacher", "drop"}


@functools.cache
def _read(paper: str) -> dict[str, Artifact]:
    return parse(paper, (FOLDER / paper / "grids.toml").read_text())


def parse(paper: str, text: str) -> dict[str, Artifact]:
    """The artifacts in the text of a grids.toml, by name.

    Raises:
        ValueError: for a key that means nothing. The message suggests the nearest one that does.
    """
    content = tomllib.loads(text)
    _only({"settings", "smoke", "choices", "axes", "artifacts"}, content, f"{paper}/grids.toml")
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
                _check_case(case, entry["axes"], name)
        _only(set(entry["axes"]), [entry["average"]] if "average" in entry else [], f"{name}, average")
        _only(set(choices), entry.get("choices", []), f"{name}, choices")
        taken = {choice: choices[choice] for choice in entry.get("choices", [])}
        made[name] = Artifact(
            name=name,
            choices=taken,
            **{key: entry[key] for key in _COPIED & entry.keys()},
            _content=entry,
            _layers=(content.get("settings", {}), *(c.settings for c in taken.values()), entry.get("settings", {})),
            _smoke=content.get("smoke", {}),
        )
    return made


def resolve(trial: Trial, settings: Settings) -> Trial:
    """The trial with some settings, resolved, even if the package of its model is not installed.

    To list or count trials one need not be able to run them. Whoever runs such a trial is told what is missing.
    """
    trial = trial.with_settings(settings)
    try:
        return trial.resolved()
    except ImportError:
        stand_in = dataclasses.replace(trial, model=ModelChoice()).resolved()
        return dataclasses.replace(stand_in, model=trial.model)


def _lay(*layers: Settings) -> Trial:
    """The trial of some settings. Later layers win."""
    return Trial().with_settings(*layers)


def _points(axis: str | Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The points of an axis: written out, made from the values of one setting, or those of a shared axis."""
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
