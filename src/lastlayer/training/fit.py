"""How one trial runs: a plain loop that yields after each step, so that many trials can share a device.

Tests: tests/training/test_fit.py, tests/training/test_resume.py.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lastlayer._core.precision import threads
from lastlayer.data import Dataset, Split
from lastlayer.runs import RunFolder
from lastlayer.training.build import LOSS, Network, build, changed_code, code_of, own_modules
from lastlayer.training.check import check_inputs
from lastlayer.training.engine import evaluate
from lastlayer.training.engine.checkpoint import Logger, Saver, make_logger
from lastlayer.training.engine.evaluate import Outputs
from lastlayer.training.engine.evidence import evidence
from lastlayer.training.engine.feed import Feed
from lastlayer.training.engine.ranks import Ranks
from lastlayer.training.engine.state import DivergedError, State
from lastlayer.training.engine.step import Step, step
from lastlayer.training.facts import Facts, load_data
from lastlayer.training.load import load
from lastlayer.training.machine import describe_machine
from lastlayer.training.trial import Trial

NOTHING: Mapping[str, Any] = {"epoch": -1, "history": (), "snapshots": (), "seconds": 0.0}  # what a new run begins with

CANDIDATE_SECONDS = 5.0  # a candidate that is younger is trained anew rather than resumed

Prepare = Callable[[State, Feed], Step]


@dataclass(frozen=True)
class Progress:
    """How far a trial is. Loss and accuracy are those of the last finished epoch of training."""

    epoch: int  # how many are finished
    epochs: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    measuring: bool = False  # whether it measures and does not train


def fit(
    trial: Trial,
    run: RunFolder | str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    dataset: Dataset | None = None,
    tensorboard: str | Path | None = None,
    prepare: Prepare | None = None,
    ranks: Ranks | None = None,
    trust: Collection[str] = (),
) -> Generator[Progress, None, dict[str, Any]]:
    """Train and measure one trial. If a run folder holds a part of it, go on from there.

    This is a generator: it yields after each step and returns the result. `finish_fit` runs it to its end.

    Args:
        trial: what to train.
        run: folder to keep it in; None keeps nothing.
        device: where to train.
        data_root: where data sets lie.
        dataset: the trial's data, if they are loaded already.
        tensorboard: folder to log to for TensorBoard, which must be installed.
        prepare: makes steps faster. It is called once before the first step, with the state and the feed, and returns
            the function that takes each step.
        ranks: the processes that share the trial with this one. The first of them writes the run folder.
        trust: modules that the run of the teacher may name. Those that the trial itself names are trusted.

    Raises:
        DivergedError: if the loss becomes NaN. The run has then failed, and keeps its last checkpoint.
    """
    trial = trial.resolved(data_root)
    folder = RunFolder(run) if isinstance(run, str | Path) else run
    runs = None if folder is None else folder.path.parent
    saved = None
    if ranks is not None:  # every rank reads before the first one begins to write
        saved = None if folder is None else folder.load_checkpoint(device)
        ranks.fabric.barrier()
        folder = folder if ranks.rank == 0 else None
    with contextlib.nullcontext() if folder is None else folder.locked():
        if folder is not None and folder.status == "done":
            result = folder.result()
            if result["trial"] != trial.to_dict():
                raise ValueError(f"{folder.path} holds another trial: choose another folder")
            return result
        if folder is not None:
            folder.start(trial.to_dict())
        patience = 0.0 if trial.evaluations else CANDIDATE_SECONDS
        try:
            with make_logger(tensorboard, trial) as log, Saver(folder, torch.device(device), patience) as saver:
                given = load_data(trial.data, data_root) if dataset is None else dataset
                state, feed = begin(trial, given, device, _load_teacher(trial, runs, trust), ranks)
                if saved is None and folder is not None:
                    saved = folder.load_checkpoint(device)
                where = "the run" if folder is None else str(folder.path)
                past = NOTHING if saved is None else _resume(state, saved, where)
                with threads(past.get("threads") if state.device.type == "cpu" else None):
                    return (yield from _fit(state, feed, past, folder, log, saver, prepare))
        except Exception as error:
            if folder is not None:
                with contextlib.suppress(OSError):  # on a full disk the caller must still hear the reason itself
                    folder.fail(_reason(error))
            raise


def begin(
    trial: Trial,
    dataset: Dataset,
    device: torch.device | str = "cpu",
    teacher: Network | None = None,
    ranks: Ranks | None = None,
) -> tuple[State, Feed]:
    """The state and the batches of a resolved trial before its first step."""
    facts = Facts.of(dataset)
    check_inputs(trial, facts)
    state = State(trial, facts, device, teacher, ranks)
    return state, Feed(dataset, state)


def finish_fit(steps: Generator[Progress, None, dict[str, Any]]) -> dict[str, Any]:
    """Run a trial to its end and return its result."""
    return evaluate.finish(steps)


def _resume(state: State, saved: dict[str, Any], where: str) -> dict[str, Any]:
    """Load the state of a checkpoint, and return what the run has behind it.

    Raises:
        ValueError: if the data have changed since.
    """
    trial, facts = state.trial, state.facts
    if saved.get("checksums", facts.checksums) != facts.checksums:
        raise ValueError(f"{trial.data.name} has changed since {where} began: delete that folder to train anew")
    for part in changed_code(trial, saved.get("code", {})):
        warnings.warn(
            f"{part} has changed since {where} began. The run goes on with the code as it is now. To train anew, "
            "delete that folder",
            stacklevel=2,
        )
    state.load_state_dict(saved)
    return {**saved, "snapshots": [{name: tensor.cpu() for name, tensor in one.items()} for one in saved["snapshots"]]}


def _fit(
    state: State,
    feed: Feed,
    past: Mapping[str, Any],
    folder: RunFolder | None,
    log: Logger,
    saver: Saver,
    prepare: Prepare | None,
) -> Generator[Progress, None, dict[str, Any]]:
    """Train epoch by epoch. After each, measure if it is time, and keep what a later process needs to go on."""
    trial, epochs = state.trial, state.trial.schedule.epochs
    if not trial.evaluations and feed.dataset.validation is None:
        raise ValueError("evaluations=0 measures validation samples alone, and there are none: set data.holdout too")
    take_step: Step = functools.partial(step, state, feed) if prepare is None else prepare(state, feed)
    measured_after = evaluate.evaluation_epochs(epochs, trial.evaluations)
    pictured_after = evaluate.snapshot_epochs(measured_after)
    chosen = evaluate.snapshot_samples(feed.dataset.test, state.facts.num_classes)
    history, pictures = list(past["history"]), list(past["snapshots"])
    last: Outputs | None = None  # of the test samples, after the last epoch
    began = time.perf_counter() - past["seconds"]
    if folder is not None:
        folder.keep_metrics_before(past["epoch"] + 1)
    while True:
        line: dict[str, Any] = {"epoch": state.epoch, **state.last}
        if state.epoch and trial.evaluations and feed.dataset.validation is not None:
            line["validation"] = {"accuracy": (yield from _validate(state, feed.dataset.validation))}
        if state.epoch in measured_after and state.epoch not in {entry["epoch"] for entry in history}:
            line["train"], line["test"], picture, last = yield from _measure(state, feed.dataset, chosen)
            if state.epoch < epochs:
                last = None  # so that its memory is free while the next epochs train
            history.append(dict(line))
            if state.epoch in pictured_after:
                pictures = [*map(evaluate.compact, pictures), picture]
        line["seconds"] = time.perf_counter() - began
        log(line)
        if folder is not None and state.epoch > past["epoch"]:
            rest = {
                "history": history,
                "snapshots": pictures,
                "seconds": line["seconds"],
                "threads": torch.get_num_threads(),
                "checksums": dict(state.facts.checksums),
                "code": code_of(trial),
            }
            must = state.epoch == epochs and trial.evaluations > 0  # nobody goes on from a candidate that has ended
            saver.save(state.epoch, line, {**state.state_dict(), **rest}, must=must)
        if state.epoch == epochs:
            break
        yield from train_epoch(state, feed, take_step)
    while not saver.is_idle:
        yield _progress(state, measuring=True)
    saver.wait()
    result = yield from _result(state, feed.dataset, history or [line], time.perf_counter() - began)
    if folder is None:
        return result
    if last is None and trial.evaluations:  # they were measured before the run was interrupted
        last = yield from _read_test(state, feed.dataset)
    remembered = state.loss.state_dict().items()  # a loss of the user's own may remember more than tensors
    weights = state.network.state_dict()
    weights |= {f"{LOSS}{name}": value for name, value in remembered if isinstance(value, Tensor)}
    shown = evaluate.finished_snapshots(sorted(pictured_after), pictures) if pictures else None
    folder.finish(result, weights, shown, None if last is None else evidence(state.loss, last))
    return folder.result()


def train_epoch(state: State, feed: Feed, take_step: Step) -> Iterator[Progress]:
    """Train for one epoch, yielding after each step.

    Raises:
        DivergedError: if the loss, or a parameter after the last step, is no longer finite.
    """
    feed.begin_epoch(state.begin_epoch())
    first = state.epoch * state.steps_per_epoch
    for number in range(first, first + state.steps_per_epoch):
        take_step()
        if state.has_diverged():
            break
        yield _progress(state, number + 1)
    yield from _until_finished(state, _progress(state, number + 1))
    state.finish_epoch()


def _progress(state: State, number: int | None = None, *, measuring: bool = False) -> Progress:
    number = state.epoch * state.steps_per_epoch if number is None else number
    loss, accuracy = state.last.get("loss"), state.last.get("accuracy")
    return Progress(state.epoch, state.trial.schedule.epochs, number, state.steps, loss, accuracy, measuring)


def _until_finished(state: State, progress: Progress) -> Iterator[Progress]:
    """Yield until the device has done what it was given, so that others can be given work meanwhile."""
    if state.device.type == "cuda":
        reached = torch.cuda.Event()  # type: ignore[no-untyped-call]
        reached.record()
        while not reached.query():  # type: ignore[no-untyped-call]
            yield progress


def _read(state: State, split: Split) -> Generator[Progress, None, Outputs]:
    """What the network makes of a split, yielding before each batch."""
    progress = _progress(state, measuring=True)
    made = yield from evaluate.read(state.network, split, progress)
    yield from _until_finished(state, progress)
    return made


def _read_test(state: State, dataset: Dataset, network: Network | None = None) -> Generator[Progress, None, Outputs]:
    """What the network, or another one, makes of the test samples and of those of unknown classes."""
    progress = _progress(state, measuring=True)
    made = yield from evaluate.read_test(state.network if network is None else network, dataset, progress)
    yield from _until_finished(state, progress)
    return made


def _validate(state: State, validation: Split) -> Generator[Progress, None, float]:
    """Validation accuracy now. The network is kept if it is the best so far."""
    made = yield from _read(state, validation)
    state.keep_if_best(made.accuracy)
    return made.accuracy


def _measure(
    state: State, dataset: Dataset, chosen: Tensor
) -> Generator[Progress, None, tuple[dict[str, float], dict[str, float], dict[str, Tensor], Outputs]]:
    """Measures on training and test samples, a picture of the test samples chosen, and what was made of all of them."""
    train = yield from _read(state, dataset.train)
    test = yield from _read_test(state, dataset)
    _check_finite(state, "training", train)
    _check_finite(state, "test", test)
    return (
        evaluate.measure(state.network, state.loss, dataset, train, on_test=False),
        evaluate.measure(state.network, state.loss, dataset, test, on_test=True),
        evaluate.snapshot(test, chosen),
        test,
    )


def _check_finite(state: State, part: str, made: Outputs) -> None:
    """Raise DivergedError if a logit is not finite."""
    if not bool(made.logits.isfinite().all()):
        what = f"the logits of the {part} samples are not finite in evaluation mode after the update"
        raise state.diverged(max(state.epoch * state.steps_per_epoch - 1, 0), what)


def _result(
    state: State, dataset: Dataset, history: list[dict[str, Any]], seconds: float
) -> Generator[Progress, None, dict[str, Any]]:
    """What result.json says of a trial that has ended."""
    trial = state.trial
    result: dict[str, Any] = {
        "trial": trial.to_dict(),
        "measures": {part: history[-1][part] for part in ("train", "test") if part in history[-1]},
        "history": history,
        "seconds": seconds,
        "parameters": sum(p.numel() for p in state.network.parameters()),
        "data": state.facts.to_dict(),
        "machine": describe_machine(state.device),
        "code": code_of(trial),
    }
    if dataset.validation is not None:
        made = yield from _read(state, dataset.validation)
        if trial.evaluations:
            values = evaluate.measure(state.network, state.loss, dataset, made, on_test=False)
        else:
            _check_finite(state, "validation", made)
            with evaluate.evaluation(state.network):
                values = evaluate.score(state.loss, made)
        result["measures"]["validation"] = values
    if state.best is not None:
        best = build(trial, state.facts)[0].to(state.device)
        best.load_state_dict(state.best["network"])
        made = yield from _read_test(state, dataset, best)
        result["best"] = {
            "epoch": state.best["epoch"],
            "validation_accuracy": state.best["accuracy"],
            "test": evaluate.measure(best, state.loss, dataset, made, on_test=True),
        }
    return result


def _load_teacher(trial: Trial, runs: Path | None, trust: Collection[str]) -> Network | None:
    """The teacher's network: from a run's folder, or from the run of that name beside this one."""
    if trial.teacher is None:
        return None
    beside = None if runs is None else runs / trial.teacher
    folder = beside if beside is not None and beside.exists() else trial.teacher
    return load(folder, trust=[*own_modules(trial), *trust]).network


def _reason(error: Exception) -> dict[str, Any]:
    if isinstance(error, DivergedError):
        return {"error": str(error), **error.details}
    return {"error": f"{type(error).__name__}: {error}"}
