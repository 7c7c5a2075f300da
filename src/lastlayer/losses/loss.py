"""What a loss is: the Module made from its function, what it says of itself, and the registry of losses by name.

To add a loss, add one file to this folder: a function, and a class that names the function and is registered.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lastlayer._core.precision import at_least_float32
from lastlayer._core.registry import Registry, find, nearest, options_of, split_path
from lastlayer.losses.forms import ClassForm, RowForm
from lastlayer.losses.target import Target

COMMON = {"weight": None, "class_weight": None, "ignore_index": -100, "reduction": "mean"}


@dataclass(frozen=True)
class NeededHead:
    """The head that a loss needs."""

    name: str  # in `lastlayer.heads`
    options: Mapping[str, Any] = field(default_factory=dict)  # the head must have them; one made for the loss gets them
    shared: tuple[str, ...] = ()  # hyperparameters of the loss that a head made for it takes over
    only: bool = False  # whether no other loss can use this head


class Loss(nn.Module):
    """A loss as a Module. It holds hyperparameters and calls its function. It has no weights to learn.

    The keyword arguments are those of the function. Tensors among them become buffers, so they move with the module.

    Its class says what kind of loss it is. Code elsewhere reads this and never asks for a loss by name.

    Attributes:
        num_classes: the number of classes, or None to take it from the logits of each call.
        takes: the names of the inputs before the target, in order: ("logits",) for most losses.
        takes_layer: whether it takes features and weight, and makes the logits itself.
        needs_teacher: whether some inputs come from a teacher network.
        needs_counts: whether the number of training samples per class must be given.
        needed_head: the head that the loss needs; None if any head will do.
        couples_batch: whether the loss compares samples of a batch with each other.
        aligned: whether a small enough loss implies logit separation (Keren et al., 2018).
        sums_to_one: whether `probabilities` sum to 1. If not, `log_single` says how calibration judges the loss.
        complexity: 0 for cross-entropy, 1 for another loss without settings of its own, 2 for one with settings. If
            losses do equally well, the simplest is recommended.
        learning_rate, weight_decay: where to start a search with SGD and momentum 0.9.
        probe_rate: the learning rate of AdamW for a linear head on fixed features. It is the one that did best on
            Gaussian classes, 20,000 rows of 100 classes and 100,000 rows of 1,000.
        in_pieces: whether `linear_loss` may compute it a few samples at a time. If so, its mean divides by what that of
            `cross_entropy` divides by, and reduction "none" gives one value per sample. False for a loss of your own,
            unless its class says otherwise.
        row_form, class_form: how `linear_loss` computes the loss, by kernels from rows of logits and from tiles of
            classes; None if it knows no way. A derived class may compute something else, so it inherits neither.
    """

    function: ClassVar[Callable[..., Tensor]]
    takes: ClassVar[tuple[str, ...]]
    takes_layer: ClassVar[bool]
    needs_teacher: ClassVar[bool]
    needs_counts: ClassVar[bool]
    needed_head: ClassVar[NeededHead | None] = None
    couples_batch: ClassVar[bool] = False
    aligned: ClassVar[bool] = False
    sums_to_one: ClassVar[bool] = True
    complexity: ClassVar[int] = 2
    learning_rate: ClassVar[float] = 0.1
    weight_decay: ClassVar[float] = 1e-4
    probe_rate: ClassVar[float] = 0.01
    in_pieces: ClassVar[bool] = False
    row_form: ClassVar[RowForm | None] = None
    class_form: ClassVar[ClassForm | None] = None
    _common_forward: ClassVar[Callable[..., Tensor] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = inspect.Parameter("num_classes", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
        cls.__signature__ = inspect.Signature([own, *cls._parameters_of_function()])  # type: ignore[attr-defined]
        hyperparameters = {p.name: p.default for p in cls._parameters_of_function()}
        inputs = [name for name in inspect.signature(cls.function).parameters if name not in hyperparameters]
        cls.takes = tuple(itertools.takewhile(lambda name: name != "target", inputs))
        cls.takes_layer = cls.takes == ("features", "weight")
        cls.needs_teacher = any(name.startswith("teacher") for name in cls.takes)
        cls.needs_counts = hyperparameters.get("counts") is inspect.Parameter.empty
        cls.row_form, cls.class_form = vars(cls).get("row_form"), vars(cls).get("class_form")
        if cls.forward is Loss.forward:
            # torch.compile counts recompilations per code object and gives up after eight. So each loss gets its own.
            code = Loss.forward.__code__.replace(co_name=f"forward of {cls.__name__}")
            own_forward = functools.update_wrapper(FunctionType(code, globals()), Loss.forward)
            del own_forward.__wrapped__  # torch.compile would follow it back to the common code
            own_forward.__module__, own_forward.__qualname__ = cls.__module__, f"{cls.__qualname__}.forward"
            cls._common_forward = cls.forward = own_forward  # type: ignore[method-assign]
        ours = cls.only_calls_function() and cls.function.__module__.startswith("lastlayer.losses.")
        cls.in_pieces = vars(cls).get("in_pieces", ours)

    @classmethod
    def only_calls_function(cls) -> bool:
        """Whether a call does no more than call the function: False for a subclass with a `forward` of its own."""
        return cls.forward is cls._common_forward

    @classmethod
    def _parameters_of_function(cls) -> list[inspect.Parameter]:
        parameters = inspect.signature(cls.function).parameters.values()
        return [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]

    def __init__(self, num_classes: int | None = None, **hyperparameters: Any) -> None:
        super().__init__()
        if num_classes is not None and (not isinstance(num_classes, int | np.integer) or num_classes < 1):
            raise ValueError(f"num_classes must be a positive integer or None, got {num_classes!r}")
        self.num_classes = None if num_classes is None else int(num_classes)
        known = {p.name: p.default for p in self._parameters_of_function()}
        for name in hyperparameters:
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no argument {name!r}{nearest(name, known)}")
        self._names = tuple(known)
        self._inputs = (*self.takes, "target")
        for name, default in known.items():
            value = hyperparameters.get(name, default)
            if value is inspect.Parameter.empty:
                raise TypeError(f"{type(self).__name__} needs {name}=..., which has no default")
            if isinstance(value, np.generic):
                value = value.item()  # the compiler would treat a NumPy number as a tensor
            if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
                value = torch.as_tensor(value)
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                self.register_buffer(name, value)
            else:
                setattr(self, name, value)

    def hyperparameters(self) -> dict[str, Any]:
        """The keyword arguments of the function, with their present values."""
        return {name: getattr(self, name) for name in self._names}

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        """The loss of the inputs, by position or by name. A hyperparameter given by name holds for this call only."""
        self.check_classes(*inputs, *(named[name] for name in self._inputs[len(inputs) :] if name in named))
        return type(self).function(*inputs, **{**self.hyperparameters(), **named})

    def check_classes(self, *inputs: Any) -> None:
        """Raise ValueError if the inputs of a call have a different number of classes than this loss was made for."""
        if self.num_classes is not None and (found := self.count_classes(*inputs)) not in (None, self.num_classes):
            raise ValueError(
                f"{type(self).__name__} was made for num_classes={self.num_classes}, but was given {found} classes "
                f"(shape {tuple(inputs[0].shape)})"
            )

    def for_head(self, head: nn.Module) -> Loss:
        """This loss, with the hyperparameters that the head sets for the present training step; most heads set none."""
        return self

    def from_features(
        self, head: nn.Module, features: Tensor, target: Target, teacher: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss and the plain logits (N, K) of a batch of features (N, d), the input of the head.

        `teacher` are the teacher's logits and features, if the loss needs them.
        """
        logits = head(features)
        if self.takes_layer:
            return self.for_head(head)(features, head.weight, target), logits
        if self.needs_teacher and teacher is None:
            raise ValueError("this loss needs a teacher: give its logits and features as teacher=")
        known = {"features": features}
        if teacher is not None:
            known["teacher_logits"], known["teacher_features"] = teacher
        more = [known[name] for name in self.takes[1:] if name in known]
        return self(logits, *more, target), logits

    @staticmethod
    def count_classes(*inputs: Any) -> int | None:
        """The number of classes in the inputs of a call. None if the inputs are wrong, which the function reports."""
        if not inputs or not isinstance(inputs[0], Tensor) or inputs[0].dim() == 0:
            return None
        return inputs[0].shape[min(1, inputs[0].dim() - 1)]

    def probabilities(self, logits: Tensor) -> Tensor:
        """The probabilities to predict with: softmax over the classes of logits (N, K, ...) or (K,), in float32."""
        scores = self.scores(logits)
        return F.softmax(scores, dim=min(1, scores.dim() - 1))

    def log_single(self, logits: Tensor) -> Tensor | None:
        """The logarithm of the probability of a class that its logit states by itself, without the other logits.

        None for most losses, whose single logits state none. If a loss has such a number, it is the probability at the
        loss's minimum, for each class by itself.
        """
        return None

    def single(self, logits: Tensor) -> Tensor | None:
        """The probability of each class by its logit alone, without the other logits; None if the loss gives none.

        At most 1: a logit that states more is cut off.

        Example:
            >>> from lastlayer import losses
            >>> losses.create("self-norm").single(torch.tensor([[0.0, -1.0]]))
            tensor([[1.0000, 0.3679]])
            >>> losses.create("ce").single(torch.zeros(2)) is None
            True
        """
        log = self.log_single(logits)
        return None if log is None else log.exp().clamp(max=1.0)

    def posterior(self, logits: Tensor) -> Tensor:
        """The probabilities of the classes if each sample has exactly one, which sum to 1. Calibration judges them.

        They are `probabilities`, unless those do not sum to 1. Then they are the numbers of `single` divided by their
        sum.
        """
        log = None if self.sums_to_one else self.log_single(logits)
        return self.probabilities(logits) if log is None else F.softmax(log, dim=min(1, log.dim() - 1))

    def probability_formula(self) -> str:
        """The formula that turns logits z into probabilities, written so that one can compute it without lastlayer.

        Example:
            >>> from lastlayer import losses
            >>> losses.create("ls").probability_formula(), losses.create("sln", 10).probability_formula()
            ('softmax(z)', 'softmax(z / (0.2 ||z||^0.7))')
        """
        own = type(self).probabilities is not Loss.probabilities or type(self).scores is not Loss.scores
        return f"{type(self).__name__}.probabilities(z)" if own else "softmax(z)"

    def scores(self, logits: Tensor) -> Tensor:
        """The logits as they enter the softmax of the loss."""
        return at_least_float32(logits)

    def extra_repr(self) -> str:
        shown: dict[str, Any] = {"num_classes": self.num_classes} if self.num_classes is not None else {}
        for name, value in self.hyperparameters().items():
            if name in COMMON and not isinstance(value, Tensor) and value == COMMON[name]:
                continue
            shown[name] = f"tensor{tuple(value.shape)}" if isinstance(value, Tensor) else value
        return ", ".join(f"{name}={value}" for name, value in shown.items())


@dataclass(frozen=True)
class Entry:
    """One name in the registry: the Module that it makes, and the hyperparameters that it sets."""

    name: str
    module: type[Loss]
    hyperparameters: dict[str, Any]

    @property
    def options(self) -> list[str]:
        """The hyperparameters that a trial may set."""
        return list(options_of(self.module, without=("num_classes", "reduction", "group")))


_registry: Registry[Entry] = Registry("loss", "package.module.LossClass")
_Module = TypeVar("_Module", bound=type[Loss])


def register(name: str, **hyperparameters: Any) -> Callable[[_Module], _Module]:
    """Class decorator that makes a loss known to `create` under a name. The name may set hyperparameters."""
    return _registry.adding(name, lambda module: Entry(name, module, hyperparameters))


def available() -> list[str]:
    """The names that `create` knows, in alphabetical order.

    Example:
        >>> from lastlayer import losses
        >>> "sln" in losses.available()
        True
    """
    return _registry.names()


def entry(name: str) -> Entry:
    """The registry's entry for a name, or an entry for a loss of your own. ValueError for an unknown name.

    A loss of your own is named "package.module.name" or "package.module:name". It may be a class derived from `Loss`,
    a loss class of torch.nn, or a function of (logits, target). See `as_loss`.
    """
    path = None if name in _registry else split_path(name)
    if path is not None:
        from lastlayer.losses.wrap import class_of

        return Entry(name, class_of(find(*path, f"loss {name!r}"), name), {})
    return _registry.get(name, _name_by_function(name))


def _name_by_function(name: str) -> str:
    """The registered name for a spelling such as SLN or CrossEntropy, which follows the loss's function."""
    functions = {_registry.get(key).module.function.__name__.replace("_", ""): key for key in reversed(available())}
    return functions.get(name.lower().replace("_", "").replace("-", "").removesuffix("loss"), name.lower())


def name_of(loss: Loss) -> str:
    """The name of a loss: the first name that its class is registered under, else the import path of its class."""
    for name in available():
        if _registry.get(name).module is type(loss):
            return name
    return f"{type(loss).__module__}.{type(loss).__qualname__}"  # contains a dot, so it is never a registered name


def create(name: str, num_classes: int | None = None, **hyperparameters: Any) -> Loss:
    """Make a loss by name.

    Args:
        name: one of `available()`, or "package.module.LossClass" for a loss of your own.
        num_classes: the number of classes. None takes it from the logits of each call.
        hyperparameters: keyword arguments of the loss's function. One without a default must be given.

    Example:
        >>> from lastlayer import losses
        >>> losses.create("sln", num_classes=100, gamma=0.6)
        SoftLogitNormLoss(num_classes=100, gamma=0.6, tau=None, label_smoothing=0.0)
        >>> losses.create("ls")
        CrossEntropyLoss(temperature=1.0, label_smoothing=0.1)
    """
    found = entry(name)
    return found.module(num_classes, **{**found.hyperparameters, **hyperparameters})


def create_for(class_counts: Sequence[int] | Tensor, name: str, **hyperparameters: Any) -> Loss:
    """Make a loss by name, for data with this many training samples per class. A loss that needs the counts gets them.

    Example:
        >>> from lastlayer import losses
        >>> losses.create_for([90, 10], "logit-adjusted")
        LogitAdjustedLoss(num_classes=2, counts=tensor(2,), tau=1.0)
    """
    if entry(name).module.needs_counts:
        hyperparameters.setdefault("counts", class_counts)
    return create(name, len(class_counts), **hyperparameters)
