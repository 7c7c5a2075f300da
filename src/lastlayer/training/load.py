"""A finished run, loaded to predict with.

Tests: tests/training/test_load.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from lastlayer import losses
from lastlayer._core.registry import names_from
from lastlayer.runs import RunFolder
from lastlayer.training.build import LOSS, Network, build
from lastlayer.training.facts import Facts
from lastlayer.training.trial import Trial


@dataclass(frozen=True)
class Loaded:
    """A trained classifier, in evaluation mode.

    Attributes:
        network: inputs as stored (8-bit images, features) to logits; `network.normalize` is the preprocessing.
        loss: what it was trained with; `loss.probabilities(logits)` is what to predict with.
        class_names: in label order.
        trial: how it was trained.
        result: everything that was measured.
        facts: what is known of the data that it was trained on.
    """

    network: Network = field(repr=False)  # like the result, it would fill many screens
    loss: losses.Loss
    class_names: tuple[str, ...]
    trial: Trial
    result: dict[str, Any] = field(repr=False)
    facts: Facts = field(repr=False)

    @torch.no_grad()
    def probabilities(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        """Class probabilities (N, K) of inputs (N, ...) as stored.

        Raises:
            TypeError: for floating point if whole numbers were stored: images in [0, 1] would be scaled twice.
            ValueError: if the shape differs from that in training and the network cannot take it.
        """
        device = next(self.network.parameters()).device
        inputs = torch.as_tensor(inputs, device=device)
        stored = self.facts.dtype
        if inputs.is_floating_point() and not stored.startswith(("float", "bfloat")):
            given = str(inputs.dtype).removeprefix("torch.")
            raise TypeError(
                f"inputs must be {stored}, as stored in training, got {given}: give them as they were read, the "
                "network scales and normalizes by itself"
            )
        try:
            logits = self.network(inputs)
        except RuntimeError as error:
            if tuple(inputs.shape[1:]) == self.facts.in_shape:
                raise
            wanted = ", ".join(str(size) for size in ("N", *self.facts.in_shape))
            raise ValueError(f"inputs must have shape ({wanted}), as in training, got {tuple(inputs.shape)}") from error
        return self.loss.probabilities(logits)

    def predict(self, inputs: Tensor | NDArray[Any]) -> list[str]:
        """The name of the most probable class of each input (N, ...) as stored.

        Raises:
            ValueError: for inputs whose probabilities are NaN, because argmax would choose the first NaN.
        """
        probabilities = self.probabilities(inputs)  # (N, K)
        undecided = probabilities.isnan().any(1).nonzero().flatten().tolist()
        if undecided:
            raise ValueError(
                f"{len(undecided)} of {len(probabilities)} inputs have probabilities that are NaN, the first in row "
                f"{undecided[0]}: look there for values that are NaN, infinite or far beyond those of training"
            )
        return [self.class_names[k] for k in probabilities.argmax(1).tolist()]


def load(run: str | Path | RunFolder, device: torch.device | str = "cpu", *, trust: Collection[str] = ()) -> Loaded:
    """Load the model, the preprocessing and the class names of a finished run.

    No code that the run names is imported or called, unless it is part of this library or you trust its module.

    Args:
        run: the run's folder.
        device: where to put the network.
        trust: modules of your own model, loss or head, such as ["my_package.nets"].

    Raises:
        FileNotFoundError: if the run is not done.
        UntrustedError: if the run names code that is not trusted. It is a ValueError.
        ValueError: if the weights do not fit the model because its code has changed.
        DamagedFileError: if a file does not have the checksum that was noted for it.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    result = folder.result()
    trial, facts = Trial.from_dict(result["trial"]), Facts.from_dict(result["data"])
    # the weights come from the run: none are downloaded
    built = trial.with_settings({"model.pretrained": False}) if "pretrained" in trial.model.options else trial
    with names_from(str(folder.path), trust):
        network, loss = build(built, facts)
    weights = folder.tensors("weights")
    remembered = {name.removeprefix(LOSS): weights.pop(name) for name in list(weights) if name.startswith(LOSS)}
    try:
        network.load_state_dict(weights)  # copies them, so that the file may be deleted
    except RuntimeError as error:  # such as a user's own model whose code has changed
        raise ValueError(
            f"the weights of {folder.path} do not fit model {trial.model.name}: bring back the code they were trained "
            f"with ({' '.join(str(error).splitlines()[1].split())})"
        ) from error
    loss.load_state_dict(remembered, strict=False)  # runs of earlier versions have no tensors of the loss
    return Loaded(network.to(device).eval(), loss.to(device), facts.class_names, trial, result, facts)
