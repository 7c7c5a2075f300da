"""Backbones from elsewhere, made by a user's factory, timm or transformers, and how their features are found.

The first of these rules that fits is used:
1. The model has `reset_classifier` and `num_features`, as those of timm. `reset_classifier(0)` makes `forward` return
   the pooled features.
2. The model has an integer `num_features`. Then `forward` must return the features.
3. The output of the last `nn.Linear` in module order is the model's output. This layer is the classifier. It is
   replaced by the identity, and `taken_off` says which layer it was.
Then two inputs of zeros are passed through the model. The output must have shape (2, num_features).

Tests: tests/models/test_external.py.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, cast

import torch
from torch import Tensor, nn

from lastlayer._core.files import default_root
from lastlayer._core.registry import check_trusted, find


def from_factory(path: str, in_shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    """Call `package.module:factory`, any callable that returns an `nn.Module`, and make the model return features.

    The factory is called with the options, and with `in_shape` if it has a parameter of that name. It is never given
    the number of classes, because the head is separate.
    """
    factory = find_factory(path)
    if "in_shape" in inspect.signature(factory).parameters:
        options = {"in_shape": in_shape, **options}
    try:
        model = factory(**options)
    except Exception as error:  # the user's code can raise anything
        raise ValueError(f"model {path!r}: its factory raised {type(error).__name__}: {error}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(f"model {path!r}: the factory returned {type(model).__name__}, not a nn.Module")
    return as_backbone(model, in_shape)


RUNS_CODE = ("trust_remote_code", "checkpoint_path")  # options with which timm or transformers run code from a file


def find_factory(path: str) -> Callable[..., Any]:
    """The callable named by "package.module:factory", from PYTHONPATH or the working folder. ValueError without one."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"model {path!r} must have the form package.module:factory, timm:NAME or hf:NAME")
    return find(module_name, name, f"model {path!r}")


def check_external(name: str) -> None:
    """Raise ValueError or ImportError if a model from elsewhere is not there, without building it."""
    source, _, rest = name.partition(":")
    if source in ("timm", "hf"):
        if not rest:
            raise ValueError(f"model {name!r} must name a model of {source}, as in timm:resnet18")
        _import({"timm": "timm", "hf": "transformers"}[source], name, source)
    else:
        find_factory(name)


def from_timm(name: str, in_shape: tuple[int, ...], options: dict[str, Any]) -> nn.Module:
    """Build `timm.create_model(name, num_classes=0, in_chans=channels, **options)`. ImportError if timm is missing."""
    _check_options("timm", f"timm:{name}", options)
    timm = _import("timm", f"timm:{name}", "timm")
    model = timm.create_model(name, num_classes=0, in_chans=in_shape[0], **options)
    return as_backbone(model, in_shape)


def from_transformers(name: str, options: dict[str, Any]) -> nn.Module:
    """Build a transformers encoder whose features are its pooled output, or else its first token.

    Args:
        name: a folder, one under the data root, or a hub name.
        options: `pretrained` (default False) loads the weights, from safetensors only. All others go to
            `from_pretrained` or to the configuration.
    """
    _check_options("transformers", f"hf:{name}", options)
    transformers = _import("transformers", f"hf:{name}", "hf")
    options = dict(options)
    if (folder := default_root() / name).is_dir():
        name = str(folder)
    if options.pop("pretrained", False):
        # other weight files are pickles, and a pickle runs code
        encoder = transformers.AutoModel.from_pretrained(name, use_safetensors=True, **options)
    else:
        encoder = transformers.AutoModel.from_config(transformers.AutoConfig.from_pretrained(name, **options))
    return Encoder(encoder)


def _check_options(package: str, name: str, options: Mapping[str, Any]) -> None:
    for option in RUNS_CODE:
        if option in options:
            check_trusted(package, f"option {option!r} of model {name!r}")


def _import(package: str, asked: str, extra: str) -> ModuleType:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(
            f"model {asked!r} needs {package}, which is not installed: pip install 'lastlayer[{extra}]'"
        ) from error


class Encoder(nn.Module):
    """A transformers model that returns features.

    It takes images, token numbers (N, L), or token numbers and segments (N, 2, L) as `data.tokenise` makes them.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        config: Any = encoder.config
        width = getattr(config, "hidden_size", None) or config.hidden_sizes[-1]
        self.num_features = int(width)
        self.segments = int(getattr(config, "type_vocab_size", 0) or 0)

    def forward(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            output = self.encoder(pixel_values=x)
        elif x.dim() == 2:
            output = self.encoder(input_ids=x)
        else:
            ids, segments = x.long().unbind(1)  # (N, L) each
            given = {"input_ids": ids, "attention_mask": (segments >= 0).long()}
            if self.segments > 1:
                given["token_type_ids"] = segments.clamp(min=0)
            output = self.encoder(**given)
        pooled = getattr(output, "pooler_output", None)
        features: Tensor = output.last_hidden_state[:, 0] if pooled is None else pooled.flatten(1)
        return features  # (N, d)


def as_backbone(model: nn.Module, in_shape: tuple[int, ...]) -> nn.Module:
    """Make a classifier return its features, by the convention of this module.

    Args:
        model: any module that takes a batch of inputs.
        in_shape: shape of one input.

    Returns:
        The model itself, changed in place: it has `num_features`, and `taken_off` says which layer was removed.

    Raises:
        ValueError: if no features can be found, or the output is not (N, num_features).

    Example:
        >>> model = as_backbone(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), (4,))
        >>> model.num_features, model(torch.zeros(2, 4)).shape
        (8, torch.Size([2, 8]))
    """
    reset = getattr(model, "reset_classifier", None)
    width = getattr(model, "num_features", None)
    if callable(reset) and isinstance(width, int):
        reset(0)
        # some architectures end in a wider layer than num_features says
        width = getattr(model, "head_hidden_size", width)
    elif not isinstance(width, int):
        width = _take_off_classifier(model, in_shape)
    model.num_features = cast(Any, width)  # nn.Module declares its attributes as tensors and modules
    found = tuple(_output(model, in_shape).shape)
    if found != (2, width):
        raise ValueError(
            f"the model returns {found} for 2 inputs of shape {tuple(in_shape)}; features (2, {width})"
            " were expected: give the model an integer `num_features` and let forward return that many"
        )
    return model


def _take_off_classifier(model: nn.Module, in_shape: tuple[int, ...]) -> int:
    linears = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not linears or not linears[-1][0]:
        raise ValueError(
            "the model has neither `num_features` nor a final nn.Linear inside it: give it an integer "
            "`num_features` and let forward return the features"
        )
    name, classifier = linears[-1]
    mark = torch.randn(2, classifier.out_features, generator=torch.Generator().manual_seed(0), device="cpu")
    hook = classifier.register_forward_hook(lambda _module, _inputs, output: mark.to(output, copy=True))
    try:
        output = _output(model, in_shape)
    finally:
        hook.remove()
    if not torch.equal(output, mark.to(output)):
        raise ValueError(
            f"the model has no `num_features`, and its last nn.Linear, {name}, is no classifier: its output is not "
            "the output of the model. If forward returns features, give the model their number as `num_features`, an "
            "integer. If it returns logits, let an nn.Linear make them as the last step"
        )
    model.taken_off = cast(Any, f"{name}, {classifier.in_features} to {classifier.out_features}")
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, nn.Identity())
    return classifier.in_features


def _output(model: nn.Module, in_shape: tuple[int, ...]) -> Tensor:
    """The output of the model for two inputs of zeros, in evaluation mode."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        parameter = next(model.parameters(), torch.zeros(()))
        with torch.no_grad():
            output = model(torch.zeros(2, *in_shape, dtype=parameter.dtype, device=parameter.device))
    except RuntimeError as error:  # torch names two shapes, and not whose they are
        raise ValueError(f"the model does not take inputs of shape {tuple(in_shape)}: {error}") from error
    finally:
        for module, training in modes:
            module.training = training
    if not isinstance(output, Tensor):
        raise ValueError(f"the model returns {type(output).__name__}, not a tensor of features (N, d)")
    return output
