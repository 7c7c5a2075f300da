"""Running an artifact: choose what is chosen on validation, train the grid, and write down what was observed."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

from lastlayer.data import CorruptFileError
from lastlayer.papers.engine.artifact import Artifact, Grid, GridCell, Size, code_of, distinct, resolve, teachers_of
from lastlayer.papers.engine.choose import Choosing, Tell, candidates, groups_of
from lastlayer.papers.engine.record import made_on, observe
from lastlayer.papers.engine.store import Observations, Store, place_of
from lastlayer.runners import Placement, run_trials
from lastlayer.training.check import check_at_hand
from lastlayer.training.machine import describe_machine
from lastlayer.training.trial import Trial

Run = Callable[[Sequence[Trial], Placement, str], None]


def _run_quietly(trials: Sequence[Trial], plan: Placement, title: str) -> None:
    for _ in run_trials(trials, plan):
        pass


def reproduce(
    artifact: Artifact,
    size: Size,
    plan: Placement,
    store: Store,
    *,
    only: Mapping[str, Sequence[str]] | None = None,
    seeds: Sequence[int] | None = None,
    run: Run = _run_quietly,
    tell: Tell = lambda line: None,
) -> Observations:
    """`reproduce_all` of one artifact. `only` has the labels to keep by axis."""
    wanted = {artifact.name: only or {}}
    return reproduce_all([artifact], size, plan, store, only=wanted, seeds=seeds, run=run, tell=tell)[0]


def reproduce_all(
    artifacts: Sequence[Artifact],
    size: Size,
    plan: Placement,
    store: Store,
    *,
    only: Mapping[str, Mapping[str, Sequence[str]]] | None = None,
    seeds: Sequence[int] | None = None,
    run: Run = _run_quietly,
    tell: Tell = lambda line: None,
) -> list[Observations]:
    """Run what is missing of some artifacts and merge what they show into the store.

    Their trials run side by side, a trial that several share once. An artifact that cannot go on, as when its data set
    is not there or every setting tried for it failed, does not stop the others.

    Args:
        only: labels to keep, by artifact and axis; all without.
        seeds: instead of the artifacts' own.
        run: trains trials; shows progress if it likes. It may leave some failed.
        tell: is told what was chosen and what was left out, a line at a time.

    Returns:
        Everything observed so far of each at this size.

    Raises:
        Exception: that of the first that could not go on, after the others are written down.
    """

    def told(name: str) -> Tell:
        return tell if len(artifacts) == 1 else lambda line: tell(f"{name}: {line}")

    working = {
        artifact.name: _observed(artifact, size, restricted(artifact, size, (only or {}).get(artifact.name), seeds),
                                 plan, store, told(artifact.name))
        for artifact in artifacts
    }  # fmt: skip
    errors: list[Exception] = []
    at_hand: set[str] = set()
    try:
        while working:
            batches: dict[str, Sequence[Trial]] = {}
            for name, work in list(working.items()):
                try:
                    batch = next(work)
                    _refuse_lacking(batch, plan, at_hand)
                    batches[name] = batch
                except StopIteration:
                    del working[name]
                except Exception as error:
                    working.pop(name).close()  # what is done counts
                    errors.append(error)
                    if len(artifacts) > 1:
                        told(name)(f"stopped: {error}")
            trials = {trial.identity: trial for batch in batches.values() for trial in batch}
            if trials:
                names = ", ".join(name for name, batch in batches.items() if batch)
                run(list(trials.values()), plan, f"{names}, {size}")
    except BaseException as error:  # Ctrl-C too: what is done counts
        for work in working.values():
            with contextlib.suppress(Exception, type(error)):
                work.throw(error)
        raise
    if errors:
        raise errors[0]
    return [store.read(artifact.name, size) for artifact in artifacts]


def _refuse_lacking(trials: Sequence[Trial], plan: Placement, at_hand: set[str]) -> None:
    """Raise if a package or a data set is missing or damaged, before anything trains and every trial fails of it.

    The message says how to get it, and how to do without it if that is possible. `at_hand` are data sets that were
    found whole before; those found now are added.
    """
    left = [trial for trial in trials if plan.folder(trial).status != "done"]
    needing: dict[tuple[str | None, ...], Trial] = {}
    for trial in left:
        needing.setdefault((trial.model.name, trial.data.name, trial.data.unknown_from), trial)
    lacking: list[ImportError | OSError | CorruptFileError] = []
    for trial in needing.values():
        try:
            check_at_hand(trial, plan.data_root, at_hand)
        except (ImportError, OSError, CorruptFileError) as error:
            lacking.append(error)
    if lacking:
        without = ["or leave it out with --only"] if len(lacking) < len(needing) else []
        raise type(lacking[0])("\n".join([*dict.fromkeys(map(str, lacking)), *without]))


Work = Generator[Sequence[Trial], None, None]  # yields what must be trained before it goes on


def _observed(artifact: Artifact, size: Size, grid: Grid, plan: Placement, store: Store, tell: Tell) -> Work:
    """Merge what an artifact shows into the store."""
    if artifact.compute is None:
        yield from _trained(artifact, size, grid, plan, store, tell)
        return
    here = made_on(describe_machine())  # before it computes: a commit made meanwhile is not the code that ran
    computed = code_of(artifact, artifact.compute, "theory")(**grid.arguments)
    store.add(artifact.name, size, [dataclasses.replace(row, facts=here) for row in computed])


def _trained(artifact: Artifact, size: Size, grid: Grid, plan: Placement, store: Store, tell: Tell) -> Work:
    """Merge the rows of a grid into the store after training what it does not have yet.

    First come teachers, candidates that need none and cells for which nothing is chosen; then candidates that were
    waiting for a teacher; then teachers of what was chosen without trying anything, beside what needs none; then the
    rest.
    """
    choosing = Choosing(artifact, size, grid, plan, store)
    stored = [] if artifact.together else store.read(artifact.name, size).rows
    known = {(row.place, row.facts.get("run", "")) for row in stored if row.status != "failed"}
    # artifacts share runs: the last row of another has every measure, but no curve and nothing that `observe` adds
    elsewhere = {} if artifact.curves or artifact.observe else store.finished(artifact.paper, size)

    def missing(cells: Iterable[GridCell]) -> list[Trial]:
        made = [(cell, resolve(cell.trial, seed=seed)) for cell in cells for seed in grid.seeds]
        new = [one for cell, one in made if (place_of(cell.labels, one.seed), one.identity) not in known]
        return [trial for trial in new if trial.identity not in elsewhere]

    def keep(grid: Grid, chosen: Sequence[str], tell: Tell) -> None:
        store.add(artifact.name, size, observe(artifact, grid, plan, chosen, known, elsewhere, tell))

    if (known or elsewhere) and any(len(missing([cell])) < len(grid.seeds) for cell in choosing.possible()):
        file = store.path(artifact.name, size)
        where, which = (file.parent, "files there") if elsewhere else (file, "file")
        tell(f"what {where} has already is not run again: delete the {which} to do so")
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
        left = [trial for trial in missing(settled.cells) if trial not in free]
        late = teachers_of(cell for cell in settled.cells if missing([cell]))
        late = [teacher for teacher in late if teacher not in teachers]
        beside = [trial for trial in left if trial.teacher is None] if late else []
        yield [*late, *beside]
        yield [trial for trial in left if trial not in beside]
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
    """The grid of an artifact with some of its labels and seeds. ValueError for a label or an axis that it lacks."""
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


def count_unfinished(artifact: Artifact, grid: Grid, observed: Observations) -> int:
    """How many runs of a grid are not among what was observed, or failed."""
    if artifact.compute is not None:
        return 0
    ended = {row.place for row in observed.rows if row.status != "failed"}
    wanted = [place_of(cell.labels, seed) for cell in grid.cells for seed in grid.seeds]
    return sum(place not in ended for place in wanted)


def all_trials(grid: Grid) -> list[Trial]:
    """Every trial of a grid in the order they run: teachers, candidates, and the rest as before anything is chosen."""
    made = teachers_of(grid.cells)
    if grid.search is not None:
        for cell in groups_of(grid, grid.search).values():
            made += candidates(grid.search, cell)
    return distinct([*made, *grid.trials()])
