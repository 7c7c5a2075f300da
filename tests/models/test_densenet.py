"""DenseNet-121."""

import torch

from lastlayer import models


def test_final_relu_decides_the_sign_of_features() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 3, 16, 16)
    assert (models.create("densenet121", (3, 16, 16), growth=4)(x) >= 0).all()
    assert (models.create("densenet121", (3, 16, 16), final_relu=False, growth=4)(x) < 0).any()
