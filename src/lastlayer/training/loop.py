"""How one trial runs: a plain loop that yields after each step, so that many can share a device."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lastlayer import data
from lastlayer.runs import RunFolder
from lastlayer.training import measuring
from lastlayer.training.build import LOSS, Network, build, changed_code, code_of
from lastlayer.training.check import check_inputs
from lastlayer.training.facts import Facts, load_data
from lastlayer.training.load import load
from lastlayer.training.logging import Logger, make_logger
from lastlayer.training.machine import describe_machine
from lastlayer.training.ranks import Ranks
from lastlayer.training.saving import Saver
from lastlayer.training.steps import DivergedError, Progress, Training
from lastlayer.training.trial import Trial

MOST_SNAPSHOTS = 60


def fit(
    trial: Trial,
    run: RunFolder | str | Path | None = None,
    *,
    device: torch.device | str = "cpu",
    data_root: str | Path | None = None,
    dataset: data.Dataset | None = None,
    tensorboard: str | Path | None = None,
    prepare: Callable[[Training], None] | None = None,
    ranks: Ranks | None = None,
) -> Generator[Progress, None, dict[str, Any]]:
    """Train and measure one trial; resume it where a run folder holds a part of it.

    A generator: it yields after each step and returns the result. `finish_fit` runs it to its end.

    Args:
        trial: what to train.
        run: folder to keep it in; None keeps nothing.
        device: where.
        data_root: where data sets lie.
        dataset: the trial's data, if it is loaded already.
        tensorboard: folder to log to for TensorBoard, which must be installed.
        prepare: called once with the training before its first step, to make its steps faster.
        ranks: the processes this one shares the trial with; the first of them writes the run folder.

    Raises:
        DivergedError: when the loss becomes NaN; the run is then failed and keeps its last checkpoint.
    """
    trial = trial.resolved(data_root)
    folder = RunFolder(run) if isinstance(run, str | Path) else run
    runs = None if folder is None else folder.path.parent
    state = None
    if ranks is not None:  # read by all before the first begins to write
        state = None if folder is None else folder.load_checkpoint(device)
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
        try:
            with make_logger(tensorboard, trial) as log, Saver(folder, torch.device(device)) as saver:
                given = load_data(trial.data, data_root) if dataset is None else dataset
                check_inputs(trial, Facts.of(given))
                training = Training(trial, given, device, _load_teacher(trial, runs), ranks)
                with _same_threads():
                    return (yield from _fit(training, folder, log, saver, prepare, state))
        except Exception as error:
            if folder is not None:
                with contextlib.suppress(OSError):  # on a full disk the reason itself is what the caller must hear
                    folder.fail(_reason(error))
            raise


@contextlib.contextmanager
def _same_threads() -> Iterator[None]:
    """A resumed trial goes on with as many threads as it began with; the next one gets its own number again."""
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _reason(error: Exception) -> dict[str, Any]:
    if isinstance(error, DivergedError):
        return {"error": str(error), **error.details}
    return {"error": f"{type(error).__name__}: {error}"}


def finish_fit(steps: Generator[Progress, None, dict[str, Any]]) -> dict[str, Any]:
    """Run a trial to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: dict[str, Any] = stop.value
            return result


def evaluation_epochs(epochs: int, evaluations: int) -> set[int]:
    """After which epochs to measure: the start, the end, and evenly between.

    Example:
        >>> sorted(evaluation_epochs(30, 3))
        [0, 10, 20, 30]
    """
    return {round(i * epochs / min(evaluations, epochs)) for i in range(min(evaluations, epochs) + 1)}


def snapshot_epochs(evaluations: set[int]) -> set[int]:
    """Which evaluations leave a picture: all, or as many as a film needs, from the first to the last.

    Every checkpoint holds all of them, so their number must not grow with that of the evaluations.
    """
    ordered = sorted(evaluations)
    count = min(len(ordered), MOST_SNAPSHOTS)
    return {ordered[round(i * (len(ordered) - 1) / max(count - 1, 1))] for i in range(count)}


def _fit(
    training: Training,
    folder: RunFolder | None,
    log: Logger,
    saver: Saver,
    prepare: Callable[[Training], None] | None,
    state: dict[str, Any] | None,
) -> Generator[Progress, None, dict[str, Any]]:
    trial, dataset = training.trial, training.dataset
    chosen = measuring.snapshot_samples(training.dataset.test, dataset.num_classes)
    history: list[dict[str, Any]] = []
    taken: list[dict[str, Tensor]] = []
    seconds = 0.0
    if state is None and folder is not None:
        state = folder.load_checkpoint(training.device)
    if state is not None:
        where = "the run" if folder is None else str(folder.path)
        if state.get("checksums", dataset.checksums) != dict(dataset.checksums):
            raise ValueError(f"{trial.data.name} has changed since {where} began: delete that folder to train anew")
        for part in changed_code(trial, state.get("code", {})):
            warnings.warn(
                f"{part} has changed since {where} began, which goes on as the code is now: delete that folder to "
                "train anew",
                stacklevel=2,
            )
        training.restore(state)
        history, seconds = state["history"], state["seconds"]
        taken = [{name: tensor.cpu() for name, tensor in one.items()} for one in state["snapshots"]]
        if training.device.type == "cpu":  # sums split among another number of threads round otherwise
            torch.set_num_threads(state.get("threads", torch.get_num_threads()))
    if folder is not None:
        folder.keep_metrics_before(0 if state is None else training.epoch + 1)
    if prepare is not None:
        prepare(training)
    wanted = evaluation_epochs(trial.schedule.epochs, trial.evaluations)
    pictured = snapshot_epochs(wanted)
    began = time.perf_counter() - seconds
    while True:
        line: dict[str, Any] = {"epoch": training.epoch, **training.last}
        if training.epoch and dataset.validation is not None:
            line["validation"] = {"accuracy": (yield from training.keep_best())}
        if training.epoch in wanted and training.epoch not in {entry["epoch"] for entry in history}:
            line["train"], line["test"], picture = yield from _measure(training, chosen)
            history.append({**line, "epoch": training.epoch})
            if training.epoch in pictured:
                taken = [*map(measuring.compact, taken), picture]
        line["seconds"] = time.perf_counter() - began
        log(line)
        if folder is not None and (state is None or training.epoch > state["epoch"]):
            saver.save(
                training.epoch,
                line,
                {
                    **training.state(),
                    "history": history,
                    "snapshots": taken,
                    "seconds": line["seconds"],
                    "threads": torch.get_num_threads(),
                    "checksums": dict(dataset.checksums),
                    "code": code_of(trial),
                },
                must=training.epoch == trial.schedule.epochs,
            )
        if training.epoch == trial.schedule.epochs:
            break
        yield from training.train_epoch()
    while not saver.is_idle:
        yield training.pause()
    saver.wait()
    pictures = measuring.finished_snapshots(sorted(pictured), taken)
    return (yield from _finish(training, folder, history, pictures, time.perf_counter() - began))


def _measure(
    training: Training, chosen: Tensor
) -> Generator[Progress, None, tuple[dict[str, float], dict[str, float], dict[str, Tensor]]]:
    network, loss, dataset = training.network, training.loss, training.dataset
    train = yield from training.outputs(dataset.train)
    test = yield from training.outputs(dataset.test)
    for part, made in (("training", train), ("test", test)):
        if not bool(made.logits.isfinite().all()):
            what = f"the logits of the {part} samples are not finite in evaluation mode after the update"
            raise training.diverged(max(training.epoch * training.steps_per_epoch - 1, 0), what)
    return (
        measuring.measure(network, loss, dataset, train, on_test=False),
        measuring.measure(network, loss, dataset, test, on_test=True),
        measuring.snapshot(test, chosen),
    )


def _finish(
    training: Training,
    folder: RunFolder | None,
    history: list[dict[str, Any]],
    pictures: dict[str, Tensor],
    seconds: float,
) -> Generator[Progress, None, dict[str, Any]]:
    trial, dataset = training.trial, training.dataset
    result: dict[str, Any] = {
        "trial": trial.to_dict(),
        "measures": {part: history[-1][part] for part in ("train", "test")},
        "history": history,
        "seconds": seconds,
        "parameters": sum(p.numel() for p in training.network.parameters()),
        "data": training.facts.to_dict(),
        "machine": describe_machine(training.device),
        "code": code_of(trial),
    }
    remembered = training.loss.state_dict().items()  # one of the user's own may hold more than tensors
    weights = training.network.state_dict()
    weights |= {f"{LOSS}{name}": value for name, value in remembered if isinstance(value, Tensor)}
    if dataset.validation is not None:
        made = yield from training.outputs(dataset.validation)
        result["measures"]["validation"] = measuring.measure(
            training.network, training.loss, dataset, made, on_test=False
        )
    if training.best is not None:
        best = build(trial, training.facts)[0].to(training.device)
        best.load_state_dict(training.best["network"])
        made = yield from training.outputs(dataset.test, best)
        result["best"] = {
            "epoch": training.best["epoch"],
            "validation_accuracy": training.best["accuracy"],
            "test": measuring.measure(best, training.loss, dataset, made, on_test=True),
        }
    if folder is not None:
        folder.finish(result, weights, pictures)
        return folder.result()
    return result


def _load_teacher(trial: Trial, runs: Path | None) -> Network | None:
    """The teacher's network: a run's folder, or the name of a run beside this one's."""
    if trial.teacher is None:
        return None
    beside = None if runs is None else runs / trial.teacher
    return load(beside if beside is not None and beside.exists() else trial.teacher).network
