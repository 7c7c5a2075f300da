"""The base class of all heads, the registry of heads by name, and the plain linear head."""

import math
import reprlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastlayer._core.labels import INTEGERS, outside
from lastlayer._core.registry import Registry, check_options, find, options_of, split_path


class Head(nn.Module):
    """Turns features into logits: `F.linear(head.features(x), *head.linear())`.

    A head defines what it does to the features (`features`) and to its parameters (`linear`). This class computes the
    logits from them, for all classes or for some.

    Attributes:
        weight: raw parameters, (num_classes, in_features). Write to them in place.
        bias: raw parameters, (num_classes,), or None.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("num_classes", num_classes)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        self.in_features = int(in_features)
        self.num_classes = int(num_classes)

    def features(self, x: Tensor) -> Tensor:
        """The features that the weight multiplies, (..., in_features). Measure geometry on these."""
        return x

    def linear(self, classes: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The equivalent linear layer on `features(x)`: a weight (K, d), and a bias (K,) that is added, or None.

        Args:
            classes: indices (m,) of the classes whose rows to read. None reads all.
        """
        return select(self.weight, classes), None if self.bias is None else select(self.bias, classes)

    def forward(self, x: Tensor) -> Tensor:
        """All logits, (..., num_classes), of x (..., in_features)."""
        self._check(x)
        return self._product(x, None)

    def logit(self, x: Tensor, k: int | Sequence[int] | Tensor) -> Tensor:
        """The logits of some classes only, `head(x)[..., k]`. The cost does not depend on num_classes.

        Args:
            x: (..., in_features).
            k: one class, for a result of shape (...), or several, (m,), for a result of shape (..., m). Their range is
                checked, unless they are a tensor on a GPU, because the CPU would have to wait for the GPU.
        """
        self._check(x)
        classes = self._classes(k)
        logits = self._product(x, classes.reshape(-1))
        return logits.squeeze(-1) if classes.dim() == 0 else logits

    def _product(self, x: Tensor, classes: Tensor | None) -> Tensor:
        try:
            return F.linear(self.features(x), *self.linear(classes))
        except RuntimeError as error:  # not checked earlier: under autocast and in some heads two dtypes are allowed
            if x.dtype is self.weight.dtype or "type" not in str(error):
                raise
            raise TypeError(
                f"x is {x.dtype} and the head's weight {self.weight.dtype}: give x.to({self.weight.dtype}) "
                "or convert the head"
            ) from error

    def norm_weight(self) -> Tensor | None:
        """The weight gamma of the batch norm that makes the features, (d,). None if the head has no batch norm."""
        return None

    def _classes(self, k: int | Sequence[int] | Tensor) -> Tensor:
        """Class indices as int64 on the weight's device, of shape (m,) or ()."""
        classes = k if isinstance(k, Tensor) else _as_tensor(k)
        if classes.dim() > 1 or (classes.numel() and classes.dtype not in INTEGERS):
            raise TypeError(f"k must be a class index 0..{self.num_classes - 1} or a list of them, got {_shown(k)}")
        classes = classes.long()
        # Checked before the index reaches a GPU: after an index out of range, the process cannot use the GPU any more.
        may_read = classes.device.type == "cpu" and not torch.compiler.is_compiling()
        if may_read and (wrong := outside(classes, self.num_classes)) is not None:
            raise ValueError(f"k must lie in 0..{self.num_classes - 1}, got {wrong}")
        return classes.to(self.weight.device)

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a tensor, got {type(x).__name__}")
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(f"x must have shape (..., {self.in_features}), got {tuple(x.shape)}")

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, num_classes={self.num_classes}"


def _as_tensor(k: object) -> Tensor:
    """Integers as int64, all else as floats, which the caller refuses. NumPy can read more arrays than torch."""
    if torch.compiler.is_compiling():
        return torch.as_tensor(k)
    try:
        array = np.asarray(k)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "iu" or (array.size and array.max() > np.iinfo(np.int64).max):
        return torch.empty(array.shape, dtype=torch.float64)
    return torch.from_numpy(array.astype(np.int64))


def _shown(k: object) -> str:
    return f"{k.dtype} {tuple(k.shape)}" if isinstance(k, Tensor) else reprlib.repr(k)


def select(rows: Tensor, classes: Tensor | None) -> Tensor:
    """The rows of some classes, or all rows."""
    return rows if classes is None else rows.index_select(0, classes)


def initial_weight(num_classes: int, in_features: int) -> nn.Parameter:
    """A new weight, drawn as in `torch.nn.Linear`: uniform between -1 / sqrt(in_features) and 1 / sqrt(in_features)."""
    weight = nn.Parameter(torch.empty(num_classes, in_features))
    nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    return weight


_registry: Registry[type[Head]] = Registry("head", "package.module.HeadClass")
_Class = TypeVar("_Class", bound=type[Head])


def register(name: str) -> Callable[[_Class], _Class]:
    """Class decorator that makes a head known to `create` under a name."""
    return _registry.adding(name, lambda head: head)


def available() -> list[str]:
    """The names that `create` knows, in alphabetical order."""
    return _registry.names()


def class_of(name: str) -> type[Head]:
    """The class for a name. A head of your own is named "package.module.HeadClass" or "package.module:HeadClass"."""
    path = None if name in _registry else split_path(name)
    if path is None:
        return _registry.get(name)
    found = find(*path, f"head {name!r}")
    if not (isinstance(found, type) and issubclass(found, Head)):
        raise ValueError(f"head {name!r} is not a class derived from lastlayer.heads.Head (CONTRIBUTING.md shows one)")
    return found


def options(name: str) -> dict[str, Any]:
    """The options that a head takes, with their defaults."""
    return options_of(class_of(name), without=("in_features", "num_classes", "generator"))


def create(name: str, in_features: int, num_classes: int, **given: Any) -> Head:
    """Make a head by name.

    Args:
        name: one of `available()`, or "package.module.HeadClass" for a head of your own.
        in_features, num_classes: d and K.
        given: the options of the head.

    Example:
        >>> from lastlayer import heads
        >>> heads.create("normalized", 4, 3, scale=8.0)
        NormalizedHead(in_features=4, num_classes=3, scale=8, bias=True)
    """
    check_options(f"head {name}", given, options(name))
    return class_of(name)(in_features, num_classes, **given)


@register("linear")
class LinearHead(Head):
    """A linear layer, with the same starting weights as `torch.nn.Linear`.

        logits = W h + b

    Paper: none, the standard layer.
    Tests: tests/heads/test_head.py::test_logits

    Example:
        >>> import torch
        >>> head = LinearHead(4, 3)
        >>> x = torch.randn(2, 4)
        >>> torch.equal(head.logit(x, [2, 0]), head(x)[:, [2, 0]])
        True
    """

    def __init__(self, in_features: int, num_classes: int, bias: bool = True) -> None:
        super().__init__(in_features, num_classes)
        self.weight = initial_weight(num_classes, in_features)
        bound = in_features**-0.5
        self.bias = nn.Parameter(torch.empty(num_classes).uniform_(-bound, bound)) if bias else None
