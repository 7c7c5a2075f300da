"""Weight initialisation shared by the convolutional networks."""

from torch import nn


def he_normal(model: nn.Module) -> None:
    """Draw convolutions from N(0, 2 / (k^2 out)) (He et al. 2015, backward form); batch norm at 1 and 0."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
