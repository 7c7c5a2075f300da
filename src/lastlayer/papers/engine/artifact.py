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
                                validation split before the table runs. settings here hold for the candidates only
        average                 an axis. The table gets a line "Average", the mean over all points of that axis
        curves                  true keeps the measures of every evaluation, not only of the last one. A list of
                                split.measure keeps only those measures before the last evaluation
        figure                  {x, y, log}: a line chart. y are columns; x is an axis or "epoch".
                                {x = "epoch", y, range, right}: a panel per combination of labels, with y on the left
                                axis, which has this range, and the column right on the right axis.
                                {maps, x, y, powers}: heat maps over the axes x and y, one per column and point of the
                                axis maps. Columns in powers are shown in powers of ten.
                                {code, ...}: a function in the paper's figures.py that draws it
        compute                 a function in the paper's theory.py that computes the numbers; nothing is trained
        observe                 a function in the paper's own module that measures more on the finished runs
        together                true if observe compares runs with each other and so needs all of them on this machine
        small, smoke, paper     {note, seeds, settings, keep = {axis = [points]}, cases, select, arguments}: what is
                                different at one size. cases are added to those above. paper is only needed where an
                                axis has stand-ins beside the published points: keep then names the published ones
        arguments               arguments of compute
"""

import dataclasses
import functools
import importlib
import itertools
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    """What the about.toml of a paper says."""

    title: str
    id: str = ""  # its number in claims.csv; empty for all_losses, which is no paper
    authors: str = ""
    year: int | None = None  # of publication or submission
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
    """Something that the paper leaves open and that is settled here."""

    value: str  # what was chosen
    reason: str  # why, or where it comes from
    settings: Settings = field(default_factory=dict)  # of the trials, if the choice changes any


@dataclass(frozen=True)
class Search:
    """How settings are chosen on a validation split before an artifact runs. Each cell says what there is to choose."""

    per: tuple[str, ...]  # axes; each combination of their points has a choice of its own
    settings: Settings = field(default_factory=dict)  # of the candidates only


@dataclass(frozen=True)
class GridCell:
    """One place in the table."""

    labels: Labels  # the point of each axis
    trial: Trial  # what is trained; seeds come later
    columns: Mapping[str, str]  # spec of each column by its title
    # candidate values by setting: all combinations are tried with one seed, and validation decides
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    teacher: Trial | None = None  # the resolved trial whose run it distills from


@dataclass(frozen=True)
class Grid:
    """What an artifact runs at one size."""

    cells: tuple[GridCell, ...]  # one per combination of points
    seeds: tuple[int, ...]  # of each cell
    search: Search | None  # how settings are chosen first, if any are
    note: str  # how this differs from the published setting
    arguments: Settings  # of the function, for an artifact that is computed

    def trials(self) -> list[Trial]:
        """Every trial with each seed, resolved. Cells that have the same trial share its runs."""
        resolved = distinct(resolve(cell.trial) for cell in self.cells)
        return [dataclasses.replace(trial, seed=seed) for trial in resolved for seed in self.seeds]


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """A published table or figure, or a check of a theorem. The keys of grids.toml above say what each field is."""

    name: str  # paper and short name, such as sln.table1
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
        """What to run at a size. ValueError for a setting that no trial has, or a point that an axis does not have."""
        own: dict[str, Any] = dict(self._content.get(size, {}))
        keep = own.get("keep", {})
        axes = {axis: self._kept(axis, points, keep.get(axis), size) for axis, points in self.axes.items()}
        select = own.get("select", self._content.get("select", {}))
        labels = () if self.compute else itertools.product(*axes.values())
        found = (self._cell(dict(zip(axes, chosen, strict=True)), axes, select, size) for chosen in labels)
        cells = tuple(cell for cell in found if cell is not None)
        search = None
        if any(cell.over for cell in cells):
            search = Search(tuple(select.get("per", axes)), select.get("settings", {}))
        published = int(self._content.get("seeds", 1))
        seeds = tuple(range(own.get("seeds", min(published, SMOKE_POINTS) if size == "smoke" else published)))
        arguments = {**self._content.get("arguments", {}), **own.get("arguments", {})}
        return Grid(cells, seeds, search, str(own.get("note", "")), arguments)

    def _cell(
        self, labels: Labels, axes: Mapping[str, Mapping[str, Settings]], select: Settings, size: Size
    ) -> GridCell | None:
        """The cell of these labels; None where a case leaves it out."""
        own = self._content.get(size, {})
        columns, layers = dict(self.columns), list(self._layers)
        last = [*([self._smoke] if size == "smoke" else []), own.get("settings", {})]
        for point in (axes[axis][label] for axis, label in labels.items()):
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
            return GridCell(labels, Trial().with_settings(*layers, *last), columns, over)
        teacher = resolve(Trial().with_settings(*layers, teaching, *last))
        trial = Trial().with_settings(*layers, *last, {"teacher": teacher.identity})
        return GridCell(labels, trial, columns, over, teacher)

    def _kept(self, axis: str, points: Mapping[str, Any], keep: Sequence[str] | None, size: Size) -> dict[str, Any]:
        if keep is None:
            return dict(itertools.islice(points.items(), SMOKE_POINTS if size == "smoke" else None))
        _only(points, keep, f"{self.name}, keep, {axis}")
        return {label: points[label] for label in keep}


def artifacts() -> dict[str, Artifact]:
    """Every artifact of every paper, by name."""
    return {name: one for paper in PAPERS for name, one in _read(paper).items()}


def artifact(name: str) -> Artifact:
    """The artifact of a name such as sln.table1. For an unknown name, the ValueError suggests the nearest one.

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
    """The artifacts in the text of a grids.toml, by name; ValueError for an unknown key."""
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
                _only(_CASE_KEYS, case, f"{name}, cases")
                _only(entry["axes"], case["when"], f"{name}, cases")
                for axis, points in case["when"].items():
                    _only(entry["axes"][axis], points, f"{name}, cases, {axis}")
        _only(entry["axes"], [entry["average"]] if "average" in entry else [], f"{name}, average")
        _only(choices, entry.get("choices", []), f"{name}, choices")
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


def teachers_of(cells: Iterable[GridCell]) -> list[Trial]:
    """The trials that those of some cells distill from. They must be finished before those begin."""
    return distinct(cell.teacher for cell in cells if cell.teacher is not None)


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Each trial once, in the order of its first place."""
    return list({trial.identity: trial for trial in trials}.values())


def resolve(trial: Trial, *, seed: int | None = None) -> Trial:
    """The trial, perhaps with another seed, resolved even if the package of its model is not installed.

    Trials can be listed and counted without that package. Only running one needs it, and then says what is missing.
    """
    if seed is not None:
        trial = dataclasses.replace(trial, seed=seed)
    try:
        return trial.resolved()
    except ImportError:
        stand_in = dataclasses.replace(trial, model=ModelChoice()).resolved()
        return dataclasses.replace(stand_in, model=trial.model)


def _points(axis: str | Mapping[str, Any], shared: Mapping[str, Any]) -> Mapping[str, Any]:
    """The points of an axis: written out, made from the values of one setting, or those of a shared axis."""
    if isinstance(axis, str):
        _only(shared, [axis], "axes")
        return _points(shared[axis], shared)
    if set(axis) != {"setting", "values"}:
        return axis
    return {f"{value:g}": {axis["setting"]: value} for value in axis["values"]}


def _only(allowed: Collection[str], given: Iterable[str], where: str) -> None:
    """Refuse a name that is not allowed."""
    for name in given:
        if name not in allowed:
            raise ValueError(f"{where}: there is no {name!r}{nearest(name, allowed)}")
