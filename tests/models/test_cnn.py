"""The small convolutional networks, and which sizes and channels they take."""

import pytest
import torch

from lastlayer import models


def test_grey_images_are_seldom_dropped_whole_by_classifier32() -> None:
    torch.manual_seed(0)
    model = models.create("classifier32", (1, 8, 8), dropout=0.5)
    seen: list[torch.Tensor] = []
    model.layers[0].register_forward_hook(lambda module, given, made: seen.append(made))
    model.train()(torch.ones(400, 1, 8, 8))
    left = (seen[0] != 0).flatten(2).all(2)  # (N, 3)
    assert left.shape[1] == 3
    assert 0.05 < (~left).all(1).double().mean() < 0.2  # an eighth, not a half
    assert torch.equal(model.eval()(torch.ones(2, 1, 8, 8)), model(torch.ones(2, 3, 8, 8)))


@pytest.mark.parametrize("channels", [2, 3])
def test_classifier32_made_for_more_channels_refuses_grey_images(channels: int) -> None:
    with pytest.raises(RuntimeError, match=f"to have {channels} channels, but got 1"):
        models.create("classifier32", (channels, 8, 8))(torch.ones(2, 1, 8, 8))
