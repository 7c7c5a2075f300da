"""What was observed: one CSV file per artifact and size, with one row per cell, seed and evaluation.

The columns are the labels of the artifact; seed; epoch; status (done, failed, chance); every measure as split.name;
then selected (settings chosen on validation), seconds, run, commit and machine. Tables, figures and verdicts read
nothing else. So runs of several days and machines add up. What was tried to choose settings on validation data is in a
second file of the same form, which has one more label: what was tried.
"""

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lastlayer._core.files import locked, write_atomically
from lastlayer.papers.engine.artifact import SIZES, Labels, Size

_FACTS = ("selected", "seconds", "run", "commit", "machine")


class NotRunError(LookupError):
    """What was asked for has not been run."""


@dataclass(frozen=True)
class Record:
    """One evaluation of one run, or one result of a computation."""

    labels: Labels  # of its cell
    seed: int
    epoch: int  # after which it was measured
    values: Mapping[str, float]  # by split.measure
    status: str = "done"  # or failed; or chance, for a run that learned nothing
    facts: Mapping[str, str] = field(default_factory=dict)  # selected, seconds, run, commit, machine

    @property
    def place(self) -> tuple[object, ...]:
        """Its cell and seed. Later observations of a place replace all earlier ones."""
        return place_of(self.labels, self.seed)

    @property
    def key(self) -> tuple[object, ...]:
        """Its place and epoch."""
        return (*self.place, self.epoch)

    def __getitem__(self, measure: str) -> float:
        """A measure that a verdict rests on; NotRunError if it was not measured or is NaN.

        Every comparison with NaN is false. So a NaN would decide a verdict without being noticed.
        """
        value = self.values.get(measure)
        if value is None or math.isnan(value):
            where = ", ".join([*(f"{name} {label}" for name, label in self.labels.items()), f"seed {self.seed}"])
            raise NotRunError(f"{measure} {'was not measured' if value is None else 'is not a number'} ({where})")
        return value


def place_of(labels: Labels, seed: int) -> tuple[object, ...]:
    """The place of a run among the observations."""
    return (*sorted(labels.items()), seed)


@dataclass(frozen=True)
class Observations:
    """The rows of one artifact at one size."""

    artifact: str
    size: Size
    rows: tuple[Record, ...]

    def final(self, **labels: str) -> list[Record]:
        """The last row of each finished run with these labels, in the order of the file; NotRunError without any."""
        last: dict[tuple[object, ...], Record] = {}
        for row in self._matching(labels):
            if row.status == "done" and (row.place not in last or row.epoch >= last[row.place].epoch):
                last[row.place] = row
        if not last:
            named = ", ".join(f"{name} {value}" for name, value in labels.items()) or "anything"
            raise NotRunError(f"{self.artifact} ({self.size}): no finished run of {named}")
        return list(last.values())

    def column(self, measure: str, **labels: str) -> list[float]:
        """A measure of each finished run with these labels, at its end; NotRunError as `values`."""
        return [self._value(row, measure) for row in self.final(**labels)]

    def values(self, measure: str, **labels: str) -> dict[int, float]:
        """A measure at the end of training, by seed, of the one cell with these labels.

        It is called "test.accuracy", or "test.accuracy%" for a hundred times as much. NotRunError if it was not run or
        not measured, or is not a number; ValueError if several cells have these labels.
        """
        found: dict[int, float] = {}
        for row in self.final(**labels):
            if row.seed in found:
                raise ValueError(f"{self.artifact}: {labels} leaves several cells, among them {dict(row.labels)}")
            found[row.seed] = self._value(row, measure)
        return found

    def curve(self, measure: str, seed: int, **labels: str) -> dict[int, float]:
        """A measure by epoch, of one run; NotRunError as `values`."""
        rows = [row for row in self._matching(labels) if row.seed == seed and row.status == "done"]
        if not rows:
            raise NotRunError(f"{self.artifact} ({self.size}): no finished run of {labels} with seed {seed}")
        return {row.epoch: self._value(row, measure) for row in sorted(rows, key=lambda row: row.epoch)}

    def points(self, axis: str) -> list[str]:
        """The labels of an axis that occur, in the order of the file; ValueError if the rows have no such axis."""
        if missing := next((row for row in self.rows if axis not in row.labels), None):
            have = ", ".join(missing.labels) or "none"
            raise ValueError(f"{self.artifact} ({self.size}): its rows have no label {axis!r}; they have {have}")
        return list(dict.fromkeys(row.labels[axis] for row in self.rows))

    def combinations(self, *axes: str) -> list[dict[str, str]]:
        """The combinations of labels of some axes that occur, in the order of the file."""
        seen = dict.fromkeys(tuple((axis, row.labels[axis]) for axis in axes) for row in self.rows)
        return [dict(labels) for labels in seen]

    def merged(self, newer: Sequence[Record]) -> "Observations":
        """The rows with newer ones added. Newer rows replace all old ones of the same cell and seed."""
        replaced = {row.place for row in newer}
        kept = [row for row in self.rows if row.place not in replaced]
        return replace(self, rows=tuple({row.key: row for row in (*kept, *newer)}.values()))

    def _matching(self, labels: Mapping[str, str]) -> Iterator[Record]:
        return (row for row in self.rows if all(row.labels.get(name) == value for name, value in labels.items()))

    def _value(self, row: Record, measure: str) -> float:
        try:
            value = row[measure.removesuffix("%")]
            return 100 * value if measure.endswith("%") else value
        except NotRunError as missing:
            raise NotRunError(f"{self.artifact} ({self.size}): {missing}") from None


def read_spec(spec: str, values: Mapping[str, float]) -> float:
    """The value of a column: split.measure, perhaps with "1-" or "-" before and "%" after it; NaN if not measured.

    Example:
        >>> read_spec("1-test.auprc%", {"test.auprc": 0.9375})
        6.25
    """
    sign, _, name = spec.removesuffix("%").rpartition("-")
    value = values.get(name, math.nan)
    if spec.startswith(("1-", "-")):
        value = float(sign or 0) - value
    return 100 * value if spec.endswith("%") else value


class Store:
    """The folder of all observations: PAPER/ARTIFACT-SIZE.csv and PAPER/ARTIFACT-SIZE-tried.csv. It need not exist."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._parsed: dict[Path, tuple[tuple[int, ...], tuple[Record, ...]]] = {}  # a scorecard reads each ten times

    def path(self, name: str, size: Size, *, tried: bool = False) -> Path:
        """The file of an artifact at a size, or of what was tried on validation data for it."""
        paper, _, short = name.partition(".")
        return self.folder / paper / f"{short}-{size}{'-tried' * tried}.csv"

    def sizes(self, name: str) -> list[Size]:
        """The sizes at which there are observations, the largest last."""
        return [size for size in SIZES if self.path(name, size).exists()]

    def read(self, name: str, size: Size, *, tried: bool = False) -> Observations:
        """The observations of an artifact at a size; without rows if there is no file.

        For a file of another form, the ValueError names the file and the line.
        """
        path = self.path(name, size, tried=tried)
        return Observations(name, size, self._rows(path) if path.exists() else ())

    def finished(self, paper: str, size: Size) -> dict[str, Record]:
        """The last row of every run that ended, of all artifacts of a paper, by the run's identity."""
        found: dict[str, Record] = {}
        for path in sorted((self.folder / paper).glob(f"*-{size}.csv")):
            for row in self._rows(path):
                run = row.facts.get("run", "")
                if run and row.status != "failed" and (run not in found or row.epoch >= found[run].epoch):
                    found[run] = row
        return found

    def size_of_evidence(self, name: str, largest: Size = "paper") -> Size | None:
        """The largest size up to this one that has a finished run. Smoke is no evidence."""
        for size in reversed(self.sizes(name)):
            counts = 0 < SIZES.index(size) <= SIZES.index(largest)
            if counts and any(row.status == "done" for row in self.read(name, size).rows):
                return size
        return None

    def evidence(self, name: str, largest: Size = "paper") -> Observations:
        """The observations at `size_of_evidence`; NotRunError if there is none."""
        size = self.size_of_evidence(name, largest)
        if size is None:
            raise NotRunError(f"{name} has not been run at size small or paper")
        return self.read(name, size)

    def add(self, name: str, size: Size, rows: Sequence[Record], *, tried: bool = False) -> Path:
        """Merge rows into the file of an artifact and return its path.

        A crash leaves the old file or the new one. Processes that add to the same file take turns.
        """
        path = self.path(name, size, tried=tried)
        if rows:
            with locked(path.parent / ".lock"):
                merged = self.read(name, size, tried=tried).merged(rows)
                write_atomically(path, _format(merged).encode())
        return path

    def _rows(self, path: Path) -> tuple[Record, ...]:
        """The rows of a file, parsed again only where it has changed."""
        now = path.stat()
        version = (now.st_ino, now.st_mtime_ns, now.st_size)
        if path not in self._parsed or self._parsed[path][0] != version:
            self._parsed[path] = (version, tuple(_parse(path)))
        return self._parsed[path][1]


def _format(observed: Observations) -> str:
    labels = list(dict.fromkeys(name for row in observed.rows for name in row.labels))
    measures = sorted({name for row in observed.rows for name in row.values})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*labels, "seed", "epoch", "status", *measures, *_FACTS])
    for row in observed.rows:
        named = [row.labels.get(name, "") for name in labels]
        values = [repr(row.values[name]) if name in row.values else "" for name in measures]
        facts = [row.facts.get(name, "") for name in _FACTS]
        writer.writerow([*named, row.seed, row.epoch, row.status, *values, *facts])
    return out.getvalue()


def _parse(path: Path) -> Iterator[Record]:
    try:
        reader = csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline=""))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} holds no observations: it is not text ({error.reason})") from error
    names = list(reader.fieldnames or [])
    if not {"seed", "epoch", "status"} <= set(names):
        raise ValueError(f"{path} holds no observations: it has no columns seed, epoch and status")
    labels = names[: names.index("seed")]
    measures = [name for name in names[names.index("status") + 1 :] if name not in _FACTS]
    for number, line in enumerate(reader, start=2):
        if None in line or None in line.values():
            raise ValueError(f"{path}, line {number}: it does not have the {len(names)} columns of the first line")
        try:
            yield Record(
                {name: line[name] for name in labels},
                int(line["seed"]),
                int(line["epoch"]),
                {name: float(line[name]) for name in measures if line[name]},
                line["status"],
                {name: line[name] for name in _FACTS if line.get(name)},
            )
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
