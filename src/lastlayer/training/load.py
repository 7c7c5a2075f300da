"""A finished run as something to predict with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lastlayer import heads, losses
from lastlayer.data import Normalize
from lastlayer.models import create
from lastlayer.runs import RunFolder
from lastlayer.training.network import LOSS, Network
from lastlayer.training.trial import Trial


@dataclass(frozen=True)
class Loaded:
    """A trained classifier, in evaluation mode.

    Attributes:
        network: inputs as stored (8-bit images, features) to logits; `network.normalize` is the preprocessing.
        loss: what it was trained with; `loss.probabilities(logits)` is what to predict with.
        class_names: in label order.
        trial: how it was trained.
        result: everything measured.
    """

    network: Network = field(repr=False)  # with the result it would fill a terminal many times
    loss: losses.Loss
    class_names: tuple[str, ...]
    trial: Trial
    result: dict[str, Any] = field(repr=False)

    @torch.no_grad()
    def probabilities(self, inputs: Tensor | NDArray[Any]) -> Tensor:
        """Class probabilities (N, K) of inputs (N, ...) as stored.

        Raises:
            TypeError: for floating point where whole numbers were stored: images in [0, 1] would be scaled twice.
            ValueError: when the network cannot take inputs of another shape than it was trained on.
        """
        device = next(self.network.parameters()).device
        inputs = torch.as_tensor(inputs, device=device)
        stored = self.result["data"]["dtype"]
        if inputs.is_floating_point() and not stored.startswith(("float", "bfloat")):
            given = str(inputs.dtype).removeprefix("torch.")
            raise TypeError(
                f"inputs must be {stored}, as stored in training, got {given}: give them as they were read, the "
                "network scales and normalizes by itself"
            )
        shape = tuple(self.result["data"]["in_shape"])
        try:
            logits = self.network(inputs)
        except RuntimeError as error:
            if tuple(inputs.shape[1:]) == shape:
                raise
            wanted = ", ".join(str(size) for size in ("N", *shape))
            raise ValueError(f"inputs must have shape ({wanted}), as in training, got {tuple(inputs.shape)}") from error
        return self.loss.probabilities(logits)

    def predict(self, inputs: Tensor | NDArray[Any]) -> list[str]:
        """The name of the likeliest class of each input (N, ...) as stored.

        Raises:
            ValueError: for inputs whose probabilities are NaN: argmax would take the first NaN for the likeliest class.
        """
        probabilities = self.probabilities(inputs)  # (N, K)
        undecided = probabilities.isnan().any(1).nonzero().flatten().tolist()
        if undecided:
            raise ValueError(
                f"{len(undecided)} of {len(probabilities)} inputs have probabilities that are NaN, the first in row "
                f"{undecided[0]}: look there for values that are NaN, infinite or far beyond those of training"
            )
        return [self.class_names[k] for k in probabilities.argmax(1).tolist()]


def load(run: str | Path | RunFolder, device: torch.device | str = "cpu") -> Loaded:
    """Load the model, the preprocessing and the class names of a finished run.

    Args:
        run: the run's folder.
        device: where to put the network.

    Raises:
        FileNotFoundError: when the run is not done.
        ValueError: when the weights do not fit the model, whose code was changed.
        DamagedFileError: when a file's checksum does not fit.
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(run)
    result = folder.result()
    trial = Trial.from_dict(result["trial"])
    facts = result["data"]
    names = tuple(facts["class_names"])
    options = _without_pretraining(dict(trial.model.options))
    backbone: nn.Module = create(trial.model.name, tuple(facts["in_shape"]), **options)
    head = heads.create(trial.head.name, cast(int, backbone.num_features), len(names), **trial.head.options)
    normalize = facts["normalize"]
    mean, std = (None if normalize[key] is None else tuple(normalize[key]) for key in ("mean", "std"))
    network = Network(Normalize(mean, std, normalize["scale"]), backbone, head)
    weights = folder.tensors("weights")
    remembered = {name.removeprefix(LOSS): weights.pop(name) for name in list(weights) if name.startswith(LOSS)}
    try:
        network.load_state_dict(weights)  # copied from the file's map: the file may go afterwards
    except RuntimeError as error:  # as of a model from elsewhere whose code is another now
        raise ValueError(
            f"the weights of {folder.path} do not fit model {trial.model.name}: bring back the code they were trained "
            f"with ({' '.join(str(error).splitlines()[1].split())})"
        ) from error
    loss = losses.create_for([1] * len(names), trial.loss.name, **trial.loss.options)  # predicting needs no counts
    loss.load_state_dict(remembered, strict=False)  # runs of earlier versions wrote none
    return Loaded(network.to(device).eval(), loss.to(device), names, trial, result)


def _without_pretraining(options: dict[str, Any]) -> dict[str, Any]:
    """Weights come from the run: fetching pretrained ones first would be wasted."""
    return {**options, "pretrained": False} if "pretrained" in options else options
