"""Finished runs measured once more: what `observe` functions start from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lastlayer.data import Split
from lastlayer.papers.engine.artifact import Labels
from lastlayer.runners import Placement
from lastlayer.runs import RunFolder
from lastlayer.training import load_data
from lastlayer.training.engine.evaluate import Outputs, outputs
from lastlayer.training.load import load
from lastlayer.training.trial import DataChoice, Trial

Done = Sequence[tuple[Labels, int, RunFolder]]  # the finished runs of an artifact: labels, seed, folder


@dataclass(frozen=True)
class Finished:
    """A run and what its network makes of its training samples, on the CPU."""

    labels: Labels
    seed: int
    trial: Trial
    train: Outputs


def on_training_samples(done: Done, plan: Placement) -> Iterator[Finished]:
    """Each run with its features and logits, computed where the plan trains; data of consecutive runs is read once."""
    on_gpu = plan.device != "cpu" and torch.cuda.is_available()
    device = "cpu" if not on_gpu else "cuda" if plan.device == "auto" else plan.device
    read: tuple[DataChoice, Split] | None = None
    for labels, seed, folder in done:
        loaded = load(folder, device)
        if read is None or read[0] != loaded.trial.data:
            read = loaded.trial.data, load_data(loaded.trial.data, plan.data_root).train
        made = outputs(loaded.network, read[1])
        yield Finished(
            labels,
            seed,
            loaded.trial,
            Outputs(made.features.cpu(), made.logits.cpu(), made.target.cpu(), made.accuracy),
        )
