"""How one trial runs: a plain loop that yields after each step, so that many can share a device."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lastlayer import data, losses
from lastlayer.heads import Head, LargeMarginHead
from lastlayer.linear_loss.plan import SMALL as MANY_LOGITS
from lastlayer.losses import Target, large_margin
from lastlayer.runs import RunFolder
from lastlayer.training import measuring, streaming
from lastlayer.training.large import judge_by_parts
from lastlayer.training.logging import Logger, make_logger
from lastlayer.training.machine import describe_machine
from lastlayer.training.measuring import Outputs
from lastlayer.training.network import Network
from lastlayer.training.optimise import make_optimiser, rate_factor
from lastlayer.training.parts import check_inputs, load_data, make_loss, make_network
from lastlayer.training.ranks import Ranks
from lastlayer.training.saving import Saver
from lastlayer.training.trial import Trial


class DivergedError(RuntimeError):
    """The loss became NaN or infinite; `details` says at which step and with which statistics."""

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Progress:
    """How far a trial is; loss and accuracy are those of the last whole epoch of training."""

    epoch: int
    epochs: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments): what a runner may compile."""
    return function(*arguments)


def objective(
    network: Network,
    loss: losses.Loss,
    teacher: Network | None,
    inputs: Tensor,
    target: Target,
    call: Callable[..., Any] = call,
) -> tuple[Tensor, Tensor]:
    """The loss and the plain logits of normalised inputs."""
    features = call(network.backbone, inputs)
    judged: tuple[Tensor, Tensor] = call(judge, network.head, loss, features, target, teach(teacher, inputs, call))
    return judged


def teach(teacher: Network | None, inputs: Tensor, call: Callable[..., Any] = call) -> tuple[Tensor, Tensor] | None:
    """The teacher's logits and features."""
    if teacher is None:
        return None
    with torch.no_grad():
        features = call(teacher.backbone, inputs)
        return teacher.head(features), features


def judge(
    head: Head, loss: losses.Loss, features: Tensor, target: Target, taught: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The loss and the plain logits of features, for the four ways in which losses want their arguments.

    Of logits too many to hold there are the decided classes, (N,), instead.
    """
    if taught is None and len(features) * head.num_classes > MANY_LOGITS:
        by_parts: tuple[Tensor, Tensor] | None = judge_by_parts(head, loss, features, target)
        if by_parts is not None:
            return by_parts
    logits = head(features)
    if isinstance(head, LargeMarginHead):
        head.step += 1
        options = {**loss.hyperparameters(), "margin": head.margin, "lam": head.lam}
        return large_margin(features, head.weight, target, **options), logits
    if taught is None:
        return loss(logits, target), logits
    if isinstance(loss, losses.FeatureNormDistillationLoss):
        return loss(logits, features, *taught, target), logits
    return loss(logits, taught[0], target), logits


class Training:
    """A trial in progress: its network, optimiser and generator, and where it stands.

    A step reads the samples' order, the learning rate and its own number from tensors on the device and adds to sums
    there, so that it needs nothing of the host: on a GPU it can be captured once and replayed.

    Args:
        trial: resolved.
        dataset: what `load_data(trial.data)` gives.
        device: where to train; the data is moved there whole if it fits, else batch by batch.
        teacher: the network to distill from.
        ranks: the processes it is shared with, if it spans several devices.
    """

    def __init__(
        self,
        trial: Trial,
        dataset: data.Dataset,
        device: torch.device | str = "cpu",
        teacher: Network | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        check_inputs(trial, dataset)
        self.trial = trial
        self.ranks = ranks
        self.device = torch.device(device)
        self.resident = streaming.fits(dataset, self.device)
        self.dataset = dataset.to(self.device) if self.resident else dataset
        with torch.random.fork_rng():
            torch.manual_seed(trial.seed)
            self.network = make_network(trial, dataset).to(self.device)
            self.dropout_state = torch.get_rng_state()
        if self.device.type == "cuda" and len(dataset.in_shape) == 3:
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.loss = make_loss(trial, dataset).to(self.device)
        if ranks is not None:
            if self.device.type == "cuda":
                self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
            if "group" in self.loss.hyperparameters():  # it couples the samples of a batch, so of all parts of it
                setattr(self.loss, "group", torch.distributed.group.WORLD)  # noqa: B010
        self.teacher = None if teacher is None else teacher.to(self.device).eval()
        self.generator = torch.Generator(self.device).manual_seed(trial.seed)
        self.batch_size = min(trial.batch_size, len(dataset.train))
        self.steps_per_epoch = len(dataset.train) // self.batch_size
        self.steps = trial.schedule.epochs * self.steps_per_epoch
        peak = trial.optimiser.lr or 0.0
        rates = [peak * rate_factor(trial.schedule, step, self.steps) for step in range(self.steps)]
        self.rates = torch.tensor(rates, device=self.device)
        self.planned = self.rates.tolist()  # the same numbers, for the host
        self.rate = torch.tensor(peak, device=self.device)
        self.optimiser = make_optimiser(trial.optimiser, self.network, self.rate)
        self.epoch = 0
        self.last: dict[str, float] = {}
        self.best: dict[str, Any] | None = None
        self.order = torch.arange(len(dataset.train), device=self.device)
        self.part = self.batch_size if ranks is None else ranks.part(self.batch_size)  # of a batch, on this rank
        self.first = 0 if ranks is None else ranks.rank * self.part
        self.offsets = torch.arange(self.part, device=self.device) + self.first
        self.stream: Iterator[tuple[Tensor, Tensor]] = iter(())  # of batches, where the data is not on the device
        self.cursor = torch.zeros((), dtype=torch.int64, device=self.device)  # number of the next step
        self.number = 0  # the same for the host, on the CPU, where it takes every step itself
        self.total = torch.zeros((), device=self.device)  # of the losses of this epoch
        self.correct = torch.zeros((), dtype=torch.int64, device=self.device)
        self.first_bad = torch.zeros((), dtype=torch.int64, device=self.device)
        # of a model from elsewhere nobody knows what it draws
        self.draws = ":" in trial.model.name or any(
            isinstance(m, nn.modules.dropout._DropoutNd) for m in self.network.modules()
        )
        # a runner may put something faster in the place of these two
        self.objective: Callable[..., tuple[Tensor, Tensor]] = objective
        self.run_step: Callable[[], None] = self.step

    def state(self) -> dict[str, Any]:
        """Everything a later process needs to go on as if nothing had happened."""
        return {
            "epoch": self.epoch,
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "dropout": self.dropout_state,
            "last": self.last,
            "best": self.best,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a state."""
        self.epoch = state["epoch"]
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate if self.device.type != "cpu" else group["lr"]
        self.generator.set_state(state["generator"].cpu())
        self.dropout_state = state["dropout"].cpu()
        self.last = state["last"]
        self.best = state["best"]

    def train_epoch(self) -> Iterator[Progress]:
        """Train for one epoch, yielding after each step.

        Raises:
            DivergedError: when the loss, or a parameter after the last step, is no longer finite.
        """
        self.network.train()
        if self.ranks is not None:  # the same order on every rank, now and after a resume
            self.generator.manual_seed(self.trial.seed + 1_000_003 * self.epoch)
        torch.randperm(len(self.order), generator=self.generator, device=self.device, out=self.order)
        if self.ranks is not None:  # and augmentations of their own
            self.generator.manual_seed(self.trial.seed + 1_000_003 * self.epoch + 101 * (self.ranks.rank + 1))
        if not self.resident:
            self.stream = streaming.batches(self.dataset.train, self._own_order(), self.part, self.device)
        self.number = self.epoch * self.steps_per_epoch
        self.cursor.fill_(self.number)
        self.total.zero_()
        self.correct.zero_()
        self.first_bad.fill_(self.steps)
        run_step = self._step_with_own_dropout if self.draws and self.device.type == "cpu" else self.run_step
        for step in range(self.epoch * self.steps_per_epoch, (self.epoch + 1) * self.steps_per_epoch):
            run_step()
            # at once where looking costs nothing; a rank that left alone would keep the others waiting
            if self.device.type == "cpu" and self.ranks is None and not math.isfinite(self.total.item()):
                self.first_bad.fill_(step)
                break
            yield self._progress(step + 1)
        yield from self._until_finished(step + 1)
        if self.ranks is not None:
            self.total.copy_(self.ranks.mean(self.total))
            self.correct.copy_(self.ranks.mean(self.correct.double()) * self.ranks.count)
        bad = int(self.first_bad)
        if bad < self.steps:
            raise self.diverged(bad, "the loss is not finite")
        if not all(torch.stack([p.isfinite().all() for p in self.network.parameters()]).tolist()):
            raise self.diverged(step, "the parameters are not finite after the update")
        self.epoch += 1
        self.last = {
            "loss": float(self.total) / self.steps_per_epoch,
            "accuracy": float(self.correct) / (self.steps_per_epoch * self.batch_size),
        }

    def _progress(self, step: int) -> Progress:
        epochs = self.trial.schedule.epochs
        return Progress(self.epoch, epochs, step, self.steps, self.last.get("loss"), self.last.get("accuracy"))

    def _until_finished(self, step: int) -> Iterator[Progress]:
        """Yield until the device has done what it was given, so that others can be given work meanwhile."""
        if self.device.type == "cuda":
            reached = torch.cuda.Event()  # type: ignore[no-untyped-call]
            reached.record()
            while not reached.query():  # type: ignore[no-untyped-call]
                yield self._progress(step)

    def step(self) -> None:
        """One step, from the order of the samples to the update of the parameters, without a word from the host."""
        inputs, answer, target = self.draw()
        with self.autocast():
            loss, logits = self.objective(self.network, self.loss, self.teacher, inputs, answer)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.descend(loss, logits, target)

    def descend(self, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Update the parameters by their gradients, and the sums of the epoch."""
        if self.ranks is not None:
            self.ranks.average_gradients(self.network)
        if self.trial.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(self.network.parameters(), self.trial.optimiser.clip)
        self._set_rate()
        self.optimiser.step()
        self.total += loss.detach()
        self.correct += ((logits if logits.dim() == 1 else logits.argmax(1)) == target).count_nonzero()
        if self.device.type != "cpu" or self.ranks is not None:
            worst = torch.where(loss.detach().isfinite(), self.first_bad, self.first_bad.minimum(self.cursor))
            self.first_bad.copy_(worst)
        self.cursor += 1
        self.number += 1

    def _set_rate(self) -> None:
        if self.device.type == "cpu":
            for group in self.optimiser.param_groups:
                group["lr"] = self.planned[self.number]
        else:  # not rates[cursor]: indexing by a scalar tensor reads it on the host
            self.rate.copy_(self.rates.gather(0, self.cursor.reshape(1)).squeeze(0))

    def _own_order(self) -> Tensor:
        """The samples of this rank, batch after batch."""
        starts = torch.arange(self.steps_per_epoch, device=self.device) * self.batch_size
        return self.order[(starts.unsqueeze(1) + self.offsets).flatten()]

    def _batch(self) -> tuple[Tensor, Tensor]:
        if not self.resident:
            return next(self.stream)
        if self.device.type == "cpu":  # where arithmetic on tensors costs more than a small layer
            start = self.number % self.steps_per_epoch * self.batch_size + self.first
            index = self.order[start : start + self.part]
        else:
            index = self.order[self.cursor % self.steps_per_epoch * self.batch_size + self.offsets]
        return self.dataset.train.inputs[index], self.dataset.train.target[index]

    def draw(self) -> tuple[Tensor, Target, Tensor]:
        """The next batch: normalised inputs, what the loss takes as target, and the labels."""
        chosen, target = self._batch()
        wanted = self.trial.augmentation
        if chosen.dim() == 4:
            chosen = data.augment(
                chosen, padding=wanted.crop, flip=0.5 * wanted.flip, degrees=wanted.rotation, generator=self.generator
            )
        inputs = self.network.normalize(chosen)
        if not (wanted.mixup or wanted.cutmix):
            return inputs, target, target
        mixed, answer = data.mix(
            inputs, target, mixup_alpha=wanted.mixup, cutmix_alpha=wanted.cutmix,
            probability=wanted.mix_probability, generator=self.generator,
        )  # fmt: skip
        return mixed, answer, target

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the forward pass."""
        if self.trial.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    def _step_with_own_dropout(self) -> None:
        """Dropout draws from torch's global generator: lend it this trial's state for one step."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.dropout_state)
            self.run_step()
            self.dropout_state = torch.get_rng_state()

    def diverged(self, step: int, what: str) -> DivergedError:
        """The error to raise, with what is known about it."""
        rate = float(self.rates[step])
        broken = [name for name, p in self.network.named_parameters() if not bool(p.isfinite().all())]
        details = {
            "step": step,
            "epoch": step // self.steps_per_epoch,
            "learning_rate": rate,
            "last_epoch": self.last,
            "parameters_not_finite": broken[:10],
        }
        return DivergedError(
            f"{what} at step {step} (epoch {details['epoch']}, learning rate {rate:.3g}, loss of the "
            f"epoch before {self.last.get('loss', 'none')}): try a smaller learning rate or gradient clipping",
            details,
        )

    def outputs(self, split: data.Split, network: Network | None = None) -> Generator[Progress, None, Outputs]:
        """`measuring.outputs` of the network, or of another, yielding until the device has made them."""
        batches = measuring.outputs_in_turns(self.network if network is None else network, split)
        step = self.epoch * self.steps_per_epoch
        while True:
            try:
                next(batches)
            except StopIteration as stop:
                yield from self._until_finished(step)
                made: Outputs = stop.value
                return made
            yield self._progress(step)

    def keep_best(self) -> Generator[Progress, None, float]:
        """Validation accuracy now; the network is kept if it is the best so far."""
        assert self.dataset.validation is not None
        made = yield from self.outputs(self.dataset.validation)
        accuracy = made.accuracy
        if accuracy is None:
            accuracy = float((made.logits.argmax(1) == made.target).double().mean())
        if self.best is None or accuracy > self.best["accuracy"]:
            kept = {name: value.clone() for name, value in self.network.state_dict().items()}
            self.best = {"accuracy": accuracy, "epoch": self.epoch, "network": kept}
        return accuracy


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
        if state.get("checksums", dataset.checksums) != dict(dataset.checksums):
            where = "the run" if folder is None else str(folder.path)
            raise ValueError(f"{trial.data.name} has changed since {where} began: delete that folder to train anew")
        training.restore(state)
        history, taken, seconds = state["history"], state["snapshots"], state["seconds"]
        if training.device.type == "cpu":  # sums split among another number of threads round otherwise
            torch.set_num_threads(state.get("threads", torch.get_num_threads()))
    if folder is not None:
        folder.keep_metrics_before(0 if state is None else training.epoch + 1)
    if prepare is not None:
        prepare(training)
    wanted = evaluation_epochs(trial.schedule.epochs, trial.evaluations)
    began = time.perf_counter() - seconds
    while True:
        line: dict[str, Any] = {"epoch": training.epoch, **training.last}
        if training.epoch and dataset.validation is not None:
            line["validation"] = {"accuracy": (yield from training.keep_best())}
        if training.epoch in wanted and training.epoch not in {entry["epoch"] for entry in history}:
            line["train"], line["test"], picture = yield from _measure(training, chosen)
            history.append({**line, "epoch": training.epoch})
            taken.append(picture)
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
                },
            )
        if training.epoch == trial.schedule.epochs:
            break
        yield from training.train_epoch()
    saver.wait()
    return (yield from _finish(training, folder, history, taken, chosen, time.perf_counter() - began))


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
    taken: list[dict[str, Tensor]],
    chosen: Tensor,
    seconds: float,
) -> Generator[Progress, None, dict[str, Any]]:
    trial, dataset = training.trial, training.dataset
    result: dict[str, Any] = {
        "trial": trial.to_dict(),
        "measures": {part: history[-1][part] for part in ("train", "test")},
        "history": history,
        "seconds": seconds,
        "parameters": sum(p.numel() for p in training.network.parameters()),
        "data": {
            "name": dataset.name,
            "class_names": list(dataset.class_names),
            "in_shape": list(dataset.in_shape),
            "normalize": {"mean": dataset.mean, "std": dataset.std, "scale": dataset.scale},
            "samples": {"train": len(dataset.train), "test": len(dataset.test)},
            "checksums": dict(dataset.checksums),
            "dtype": str(dataset.train.inputs.dtype).removeprefix("torch."),
            "notes": [*dataset.notes, *(note for note in measuring.limits(dataset) if note not in dataset.notes)],
        },
        "machine": describe_machine(training.device),
    }
    snapshots = measuring.finished_snapshots(
        [entry["epoch"] for entry in history], taken, (yield from training.outputs(dataset.test)), chosen
    )
    weights = training.network.state_dict()
    if dataset.validation is not None:
        made = yield from training.outputs(dataset.validation)
        result["measures"]["validation"] = measuring.measure(
            training.network, training.loss, dataset, made, on_test=False
        )
    if training.best is not None:
        best = make_network(trial, dataset).to(training.device)
        best.load_state_dict(training.best["network"])
        made = yield from training.outputs(dataset.test, best)
        result["best"] = {
            "epoch": training.best["epoch"],
            "validation_accuracy": training.best["accuracy"],
            "test": measuring.measure(best, training.loss, dataset, made, on_test=True),
        }
    if folder is not None:
        folder.finish(result, weights, snapshots)
        return folder.result()
    return result


def _load_teacher(trial: Trial, runs: Path | None) -> Network | None:
    """The teacher's network: a run's folder, or the name of a run beside this one's."""
    if trial.teacher is None:
        return None
    from lastlayer.training.load import load

    beside = None if runs is None else runs / trial.teacher
    return load(beside if beside is not None and beside.exists() else trial.teacher).network
