"""Embeddings of a few classes, far from standard, in two files; and a limit of logits that a test can reach."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lastlayer.training import facts

K, D = 5, 6


def points(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(0).normal(size=(K, D))
    target = np.arange(count) % K
    features = 30 + 10 * (centres[target] + 1.5 * random.normal(size=(count, D)))
    return features.astype(np.float32), target


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """600 rows to train on and 200 to test on."""
    paths = tmp_path / "train.safetensors", tmp_path / "test.safetensors"
    for path, count, seed in zip(paths, (600, 200), (1, 2), strict=True):
        features, target = points(count, seed)
        save_file({"features": torch.from_numpy(features), "target": torch.from_numpy(target)}, path)
    return paths


@pytest.fixture
def largest_logits(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Sets how many logits are held at once. That is a limit of memory, so a test needs a smaller one."""
    return lambda most: monkeypatch.setattr(facts, "LARGEST_LOGITS", most)
