"""The steps of one trial: its network, optimiser, generator and data, and what a step does with them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lastlayer import data, losses
from lastlayer.heads import Head
from lastlayer.linear_loss.plan import SMALL as MANY_LOGITS
from lastlayer.losses import Target
from lastlayer.training import measuring, streaming
from lastlayer.training.build import Network, build
from lastlayer.training.facts import Facts
from lastlayer.training.large import judge_by_parts
from lastlayer.training.measuring import Outputs
from lastlayer.training.optimise import make_optimiser, rate_factor
from lastlayer.training.ranks import Ranks
from lastlayer.training.trial import Trial


class DivergedError(RuntimeError):
    """The loss became NaN or infinite; `details` says at which step and with which statistics."""

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True)
class Progress:
    """How far a trial is; loss and accuracy are those of the last whole epoch of training."""

    epoch: int  # whole ones behind it
    epochs: int
    step: int
    steps: int
    loss: float | None
    accuracy: float | None
    measuring: bool = False  # and not training


def extract(backbone: nn.Module, inputs: Tensor) -> Tensor:
    """The features of normalised inputs."""
    features: Tensor = backbone(inputs)
    return features


def judge(
    head: Head, loss: losses.Loss, features: Tensor, target: Target, taught: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The loss and the plain logits of features.

    If the logits would not fit in memory, returns the predicted classes, shape (N,), in their place.
    """
    if taught is None and len(features) * head.num_classes > MANY_LOGITS:
        by_parts: tuple[Tensor, Tensor] | None = judge_by_parts(head, loss, features, target)
        if by_parts is not None:
            return by_parts
    return loss.from_features(head, features, target, taught)


def objective(
    network: Network,
    loss: losses.Loss,
    teacher: Network | None,
    inputs: Tensor,
    target: Target,
    extract: Callable[..., Tensor] = extract,
) -> tuple[Tensor, Tensor]:
    """The loss and the plain logits of normalised inputs; a runner may have a faster way to the features."""
    taught = None
    if teacher is not None:
        with torch.no_grad():
            features = extract(teacher.backbone, inputs)
            taught = teacher.head(features), features
    return judge(network.head, loss, extract(network.backbone, inputs), target, taught)


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
        self.trial = trial
        self.ranks = ranks
        self.device = torch.device(device)
        self.resident = streaming.fits(dataset, self.device)
        self.dataset = dataset.to(self.device) if self.resident else dataset
        self.facts = Facts.of(dataset)
        group = None if ranks is None else torch.distributed.group.WORLD
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(trial.seed)  # not torch.manual_seed, which sets those of all GPUs too
            network, loss = build(trial, self.facts, group)
            self.dropout_state = torch.get_rng_state()
        self.network, self.loss = network.to(self.device), loss.to(self.device)
        if self.device.type == "cuda" and len(dataset.in_shape) == 3:
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if ranks is not None and self.device.type == "cuda":
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
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
        # of a model or a loss from elsewhere nobody knows what it draws
        elsewhere = ":" in trial.model.name or not type(self.loss).__module__.startswith("lastlayer.")
        self.draws = elsewhere or any(isinstance(m, nn.modules.dropout._DropoutNd) for m in self.network.modules())
        # a runner may put something faster in the place of these two
        self.objective: Callable[..., tuple[Tensor, Tensor]] = objective
        self.faster_step: Callable[[], None] | None = None

    def state(self) -> dict[str, Any]:
        """Everything a later process needs to go on as if nothing had happened."""
        return {
            "epoch": self.epoch,
            "network": self.network.state_dict(),
            "loss": self.loss.state_dict(),
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
        self.loss.load_state_dict(state.get("loss", {}), strict=False)  # one of the user's own may have been edited
        devices_own = ("lr", "capturable")
        own = [{name: group[name] for name in devices_own if name in group} for group in self.optimiser.param_groups]
        self.optimiser.load_state_dict(state["optimiser"])
        for group, kept in zip(self.optimiser.param_groups, own, strict=True):
            group.update(kept)
        drawn = state["generator"].cpu()
        if len(drawn) == len(self.generator.get_state()):
            self.generator.set_state(drawn)
        else:  # begun on another kind of device, whose generator is of another kind
            self.generator.manual_seed(self._seed_of_epoch)
        self.dropout_state = state["dropout"].cpu()
        self.last = state["last"]
        self.best = state["best"]

    @property
    def _seed_of_epoch(self) -> int:
        return self.trial.seed + 1_000_003 * self.epoch

    def train_epoch(self) -> Iterator[Progress]:
        """Train for one epoch, yielding after each step.

        Raises:
            DivergedError: when the loss, or a parameter after the last step, is no longer finite.
        """
        self.network.train()
        if self.ranks is not None:  # the same order on every rank, now and after a resume
            self.generator.manual_seed(self._seed_of_epoch)
        torch.randperm(len(self.order), generator=self.generator, device=self.device, out=self.order)
        if self.ranks is not None:  # and augmentations of their own
            self.generator.manual_seed(self._seed_of_epoch + 101 * (self.ranks.rank + 1))
        if not self.resident:
            self.stream = streaming.batches(self.dataset.train, self._own_order(), self.part, self.device)
        self.number = self.epoch * self.steps_per_epoch
        self.cursor.fill_(self.number)
        self.total.zero_()
        self.correct.zero_()
        self.first_bad.fill_(self.steps)
        for step in range(self.epoch * self.steps_per_epoch, (self.epoch + 1) * self.steps_per_epoch):
            self.run_step()
            # at once where looking costs nothing; a rank that left alone would keep the others waiting
            if self.device.type == "cpu" and self.ranks is None and not math.isfinite(self.total.item()):
                self.first_bad.fill_(step)
                break
            yield self._progress(step + 1)
        yield from self._until_finished(self._progress(step + 1))
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

    def _progress(self, step: int, *, measuring: bool = False) -> Progress:
        epochs, last = self.trial.schedule.epochs, self.last
        return Progress(self.epoch, epochs, step, self.steps, last.get("loss"), last.get("accuracy"), measuring)

    def _until_finished(self, progress: Progress) -> Iterator[Progress]:
        """Yield until the device has done what it was given, so that others can be given work meanwhile."""
        if self.device.type == "cuda":
            reached = torch.cuda.Event()  # type: ignore[no-untyped-call]
            reached.record()
            while not reached.query():  # type: ignore[no-untyped-call]
                yield progress

    def run_step(self) -> None:
        """One step, the fastest way there is."""
        # not self.step kept in an attribute: in such a circle an ended training would wait for the garbage collector
        (self.faster_step or self.step)()

    def step(self) -> None:
        """One step, from the order of the samples to the update of the parameters, without a word from the host."""
        with self._own_draws() if self.draws else contextlib.nullcontext():
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
            # the steps that try a training out may be more than it has
            self.rate.copy_(self.rates.gather(0, self.cursor.clamp(max=self.steps - 1).reshape(1)).squeeze(0))

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

    @contextlib.contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Dropout draws from torch's global generator: lend it this trial's state for one step.

        On a GPU that is the state of the trial's generator itself, not its value: a graph captured meanwhile takes it
        along, and its replays leave the global one, which other trials borrow too, alone.
        """
        if self.device.type == "cuda":
            index = self.generator.device.index  # None of "cuda", which is the device that is current
            common = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
            before = common.graphsafe_get_state()
            common.graphsafe_set_state(self.generator)
            try:
                yield
            finally:
                common.graphsafe_set_state(before)
            return
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.dropout_state)
            yield
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

    def pause(self) -> Progress:
        """What to yield between epochs, where something is waited for."""
        return self._progress(self.epoch * self.steps_per_epoch, measuring=True)

    def outputs(self, split: data.Split, network: Network | None = None) -> Generator[Progress, None, Outputs]:
        """`measuring.outputs` of the network, or of another, yielding until the device has made them."""
        batches = measuring.outputs_in_turns(self.network if network is None else network, split)
        progress = self.pause()
        while True:
            yield progress  # before the first batch too, which may take long
            try:
                next(batches)
            except StopIteration as stop:
                yield from self._until_finished(progress)
                made: Outputs = stop.value
                return made

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
