"""The state of a training: everything that a step changes. Nothing outside this file writes to it.

Tests: tests/training/engine/test_state.py.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lastlayer.training.build import Network, build, make_optimiser, rate_factor
from lastlayer.training.engine.ranks import Ranks
from lastlayer.training.facts import Facts
from lastlayer.training.trial import Trial


class DivergedError(RuntimeError):
    """The loss became NaN or infinite. `details` says at which step and what else is known."""

    def __init__(self, message: str, details: dict[str, Any]) -> None:
        super().__init__(message)
        self.details = details


class State:
    """A trial in progress: its network, loss, optimiser and generator, and the sums of its epoch.

    The learning rate, the number of the step and the sums are tensors on the device. A step never waits for the
    device, so that a GPU can capture it once and replay it.

    Attributes:
        trial: resolved.
        facts: what is known of its data.
        network, loss: what is trained.
        teacher: the network to distill from, or None. It does not change.
        ranks: the processes that share the trial, or None.
        batch_size: samples per step, over all ranks.
        steps_per_epoch, steps: how many steps an epoch and the whole training have.
        epoch: how many epochs are finished.
        last: loss and accuracy of the last finished epoch.
        best: validation accuracy, epoch and weights of the best epoch, if there is a validation set.
        cursor: the number of the next step, a scalar tensor.
    """

    def __init__(
        self,
        trial: Trial,
        facts: Facts,
        device: torch.device | str = "cpu",
        teacher: Network | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.trial, self.facts, self.ranks, self.device = trial, facts, ranks, torch.device(device)
        group = None if ranks is None else torch.distributed.group.WORLD
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(trial.seed)  # torch.manual_seed would also seed every GPU
            network, loss = build(trial, facts, group)
            self._dropout = torch.get_rng_state()
        self.network, self.loss = network.to(self.device), loss.to(self.device)
        if self.device.type == "cuda" and len(facts.in_shape) == 3:
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if self.device.type == "cuda" and ranks is not None:
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)  # type: ignore[no-untyped-call]
        self.teacher = None if teacher is None else teacher.to(self.device).eval()
        self.generator = torch.Generator(self.device).manual_seed(trial.seed)
        self._draws = _draws(trial, self.network, self.loss)
        self.batch_size = min(trial.batch_size, facts.samples["train"])
        self.steps_per_epoch = facts.samples["train"] // self.batch_size
        self.steps = trial.schedule.epochs * self.steps_per_epoch
        peak = trial.optimiser.lr or 0.0
        rates = [peak * rate_factor(trial.schedule, step, self.steps) for step in range(self.steps)]
        self.rates = torch.tensor(rates, device=self.device)
        self._planned: list[float] = self.rates.tolist()  # the same numbers for the CPU
        self.rate = torch.tensor(peak, device=self.device)
        self.optimiser = make_optimiser(trial.optimiser, self.network, self.rate)
        self.epoch = 0
        self.last: dict[str, float] = {}
        self.best: dict[str, Any] | None = None
        self.cursor = torch.zeros((), dtype=torch.int64, device=self.device)
        self.total = torch.zeros((), device=self.device)  # sum of the losses of this epoch
        self.correct = torch.zeros((), dtype=torch.int64, device=self.device)
        self.first_bad = torch.zeros((), dtype=torch.int64, device=self.device)  # step whose loss is not finite

    # a step

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """The precision of the forward pass."""
        if self.trial.precision == "bfloat16":
            return torch.autocast(self.device.type, torch.bfloat16)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def own_draws(self) -> Iterator[None]:
        """Dropout draws from torch's global generator: lend it the trial's own state for one step."""
        if not self._draws:
            yield
        elif self.device.type == "cuda":
            # Lend the generator's state itself, not its value. A graph captured meanwhile keeps it, and its replays
            # leave the global generator alone, which other trials borrow too.
            index = self.generator.device.index  # None for "cuda", the current device
            common = torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]
            before = common.graphsafe_get_state()
            common.graphsafe_set_state(self.generator)
            try:
                yield
            finally:
                common.graphsafe_set_state(before)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(self._dropout)
                yield
                self._dropout = torch.get_rng_state()

    def update(self) -> None:
        """Move the parameters along their gradients, at the learning rate of this step."""
        if self.device.type == "cpu":
            for group in self.optimiser.param_groups:
                group["lr"] = self._planned[int(self.cursor)]
        else:  # rates[cursor] would make the CPU wait for the cursor. A step that is tried may lie past the last one
            self.rate.copy_(self.rates.gather(0, self.cursor.clamp(max=self.steps - 1).reshape(1)).squeeze(0))
        self.optimiser.step()

    def count(self, loss: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a step to the sums of the epoch.

        Args:
            loss: of the batch, without its graph.
            logits: (N, K), or the predicted classes, (N,).
            labels: (N,).
        """
        self.total += loss
        self.correct += ((logits if logits.dim() == 1 else logits.argmax(1)) == labels).count_nonzero()
        if self.device.type != "cpu" or self.ranks is not None:
            self.first_bad.copy_(torch.where(loss.isfinite(), self.first_bad, self.first_bad.minimum(self.cursor)))
        self.cursor += 1

    # an epoch

    def begin_epoch(self) -> torch.Generator:
        """Set the sums to zero and return the generator that draws the order of the samples."""
        self.network.train()
        self.cursor.fill_(self.epoch * self.steps_per_epoch)
        self.total.zero_()
        self.correct.zero_()
        self.first_bad.fill_(self.steps)
        if self.ranks is None:
            return self.generator
        # the order is the same on every rank, also after a resume; augmentations differ
        self.generator.manual_seed(self._seed_of_epoch + 101 * (self.ranks.rank + 1))
        return torch.Generator(self.device).manual_seed(self._seed_of_epoch)

    @property
    def _seed_of_epoch(self) -> int:
        return self.trial.seed + 1_000_003 * self.epoch

    def has_diverged(self) -> bool:
        """Whether the loss of the last step is not finite. Always False on a GPU and with several ranks.

        Asking would wait for the GPU, and a rank that stops alone would keep the others waiting.
        """
        if self.device.type != "cpu" or self.ranks is not None or math.isfinite(self.total.item()):
            return False
        self.first_bad.copy_(self.cursor - 1)
        return True

    def finish_epoch(self) -> None:
        """Note loss and accuracy of the epoch.

        Raises:
            DivergedError: if a loss or a parameter is not finite.
        """
        if self.ranks is not None:
            self.total.copy_(self.ranks.mean(self.total))
            self.correct.copy_(self.ranks.mean(self.correct.double()) * self.ranks.count)
        if int(self.first_bad) < self.steps:
            raise self.diverged(int(self.first_bad), "the loss is not finite")
        if not all(torch.stack([p.isfinite().all() for p in self.network.parameters()]).tolist()):
            raise self.diverged(int(self.cursor) - 1, "the parameters are not finite after the update")
        self.epoch += 1
        self.last = {
            "loss": float(self.total) / self.steps_per_epoch,
            "accuracy": float(self.correct) / (self.steps_per_epoch * self.batch_size),
        }

    def diverged(self, step: int, what: str) -> DivergedError:
        """The error to raise if `what` happened at a step, with everything that is known about it."""
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

    def keep_if_best(self, accuracy: float) -> None:
        """Keep the network if its validation accuracy is the highest so far."""
        if self.best is None or accuracy > self.best["accuracy"]:
            kept = {name: value.clone() for name, value in self.network.state_dict().items()}
            self.best = {"accuracy": accuracy, "epoch": self.epoch, "network": kept}

    # leaving and coming back

    def state_dict(self) -> dict[str, Any]:
        """Everything that a later process needs to continue to the same bits."""
        return {
            "epoch": self.epoch,
            "network": self.network.state_dict(),
            "loss": self.loss.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "dropout": self._dropout,
            "last": self.last,
            "best": self.best,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go back to what `state_dict` saved, on this device or on another kind of device."""
        self.epoch = saved["epoch"]
        self.network.load_state_dict(saved["network"])
        self.loss.load_state_dict(saved.get("loss", {}), strict=False)  # the user may have edited a loss of their own
        devices_own = ("lr", "capturable")
        own = [{name: group[name] for name in devices_own if name in group} for group in self.optimiser.param_groups]
        self.optimiser.load_state_dict(saved["optimiser"])
        for group, kept in zip(self.optimiser.param_groups, own, strict=True):
            group.update(kept)
        drawn = saved["generator"].cpu()
        if len(drawn) == len(self.generator.get_state()):
            self.generator.set_state(drawn)
        else:  # saved on another kind of device, which has another kind of generator
            self.generator.manual_seed(self._seed_of_epoch)
        self._dropout = saved["dropout"].cpu()
        self.last = saved["last"]
        self.best = saved["best"]

    def snapshot(self) -> dict[str, Any]:
        """Copies of all that a step changes, for `undo`."""
        return {
            "tensors": {name: tensor.detach().clone() for name, tensor in self._tensors().items()},
            "optimiser": {
                id(p): {name: v.clone() for name, v in moments.items() if isinstance(v, Tensor)}
                for p, moments in self.optimiser.state.items()
            },
            "generator": self.generator.get_state(),
        }

    def undo(self, before: Mapping[str, Any]) -> None:
        """Go back to a `snapshot`, in place: a captured graph knows tensors by their addresses."""
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if name in before["tensors"]:  # a loss of the user's own may make a buffer in its first call
                    tensor.copy_(before["tensors"][name])
            for parameter, moments in self.optimiser.state.items():
                kept = before["optimiser"].get(id(parameter), {})
                for name, value in moments.items():
                    if isinstance(value, Tensor):  # a moment that was not there before starts from zero
                        value.copy_(kept[name]) if name in kept else value.zero_()
        self.generator.set_state(before["generator"])

    def renew_generator(self) -> None:
        """Take a new generator. After a failed capture, torch may treat the old one as still captured."""
        self.generator = torch.Generator(self.device)

    def _tensors(self) -> dict[str, Tensor]:
        """What a step changes, except for the optimiser's moments. Buffers that are not saved are among them."""
        counters = ("cursor", "total", "correct", "first_bad", "rate")
        named: dict[str, Any] = {name: getattr(self, name) for name in counters}
        for what, module in (("network", self.network), ("loss", self.loss)):
            content = dict(module.named_buffers()) | module.state_dict()
            named |= {f"{what}.{name}": value for name, value in content.items()}
        return {name: value for name, value in named.items() if isinstance(value, Tensor)}  # extra state is no tensor


def _draws(trial: Trial, network: Network, loss: nn.Module) -> bool:
    """Whether a step may draw from torch's global generator. The user's own model, head or loss always may."""
    if ":" in trial.model.name or not all(type(m).__module__.startswith("lastlayer.") for m in (network.head, loss)):
        return True
    return any(isinstance(m, nn.modules.dropout._DropoutNd) for m in network.modules())
