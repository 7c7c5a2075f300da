"""A step of a training as a captured CUDA graph of compiled kernels, or as near to that as it can be."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lastlayer.runners import conv3x3
from lastlayer.training import streaming
from lastlayer.training.steps import Training, extract, objective

WARM_UP_STEPS = 3
MOST_SHAPES = 256  # models one process may compile

Step = Callable[[], None]
Extract = Callable[[nn.Module, Tensor], Tensor]


def accelerate(training: Training, *, convolutions: bool = True, alone: bool = True) -> None:
    """Let a training on a GPU run its step as a captured graph of compiled kernels, or as near to that as it can.

    Convolutions of few channels in bfloat16 are our own, unless `convolutions` is False. If they fail they are cuDNN's,
    if capture fails the step runs compiled, if compiling fails as it is; each fall is said. The training is left as it
    was.

    Raises:
        torch.OutOfMemoryError: where memory runs out beside others, that is unless `alone`: with fewer of them the step
            may be what it would be without them.
    """
    if training.device.type != "cuda":
        return
    training.network.train()
    with _one_choice_of_kernels():
        training.faster_step = fastest_step(training, convolutions=convolutions, alone=alone)


def fastest_step(
    training: Training,
    *,
    convolutions: bool = True,
    alone: bool = True,
    compiled: Extract | None = None,
    capture: Callable[[Training], Step] | None = None,
) -> Step:
    compiled = compiled or compile_extract()
    replacements: dict[nn.Module, nn.Module] = {}
    levels: list[tuple[str, Callable[[Training], Step], dict[nn.Module, nn.Module]]]
    levels = [("compiled kernels", _run_once, replacements)]
    if training.resident:  # otherwise each step takes a batch from the host: nothing to capture
        capture = capture or captured
        levels.insert(0, ("a CUDA graph", capture, replacements))
        if convolutions and training.trial.precision == "bfloat16" and (ours := _replacements(training)):
            levels.insert(0, ("a CUDA graph with convolutions of our own", capture, ours))
    for level, make, replacements in levels:
        before = _snapshot(training)
        training.objective = functools.partial(objective, extract=using(compiled, replacements))
        try:
            step = make(training)
            if not all(conv3x3.shares_state(copied, own) for own, copied in replacements.items()):
                raise RuntimeError("a step of the model sets other parameters or buffers")
            return step
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) and not alone:
                raise
            reason = (str(error).splitlines() or [""])[0]
            warnings.warn(
                f"{training.trial.model.name} with {training.trial.loss.name} does not run as {level} "
                f"({type(error).__name__}: {reason[:200]}); going on without",
                stacklevel=2,
            )
            # of a capture that failed, torch may go on to believe that the generator is in it: it would draw no more
            training.generator = torch.Generator(training.device)
        finally:
            _restore(training, before)
    training.objective = objective
    return _one_choice_of_kernels()(training.step)


def _replacements(training: Training) -> dict[nn.Module, nn.Module]:
    """What convolves by our kernels in place of the backbones of the network and its teacher."""
    networks = [training.network] + ([] if training.teacher is None else [training.teacher])
    found = {network.backbone: conv3x3.replacement(network.backbone) for network in networks}
    return {backbone: copied for backbone, copied in found.items() if copied is not None}


@contextlib.contextmanager
def _one_choice_of_kernels() -> Iterator[None]:
    """Convolutions timed once for a shape and process, then fixed; only such as give the same bits each time."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


@functools.cache
def compile_extract(backend: str | Callable[..., Any] = "inductor") -> Extract:
    """One for all, so that every training of the same shape takes the same kernels.

    The backbone alone is compiled, once for all losses and their settings: compiling head and loss gains nothing in a
    pack, where other trials fill the gaps between small kernels, and keeps all of them waiting for seconds.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)
    return torch.compile(extract, dynamic=False, backend=backend)


def using(compiled: Extract, replacements: dict[nn.Module, nn.Module]) -> Extract:
    """Features by compiled kernels, of the backbones or of what stands in for them."""

    def features(backbone: nn.Module, inputs: Tensor) -> Tensor:
        backbone = replacements.get(backbone, backbone)
        conv3x3.narrow_weights(backbone)
        return compiled(backbone, inputs)

    return features


def _run_once(training: Training) -> Step:
    if not training.resident:  # a batch to try it on; an epoch begins with batches of its own
        order = training.order[: training.part]
        training.stream = streaming.batches(training.dataset.train, order, training.part, training.device)
    training.step()
    torch.cuda.synchronize(training.device)
    return _one_choice_of_kernels()(training.step)


def captured(training: Training) -> Step:
    """The step as a graph; its warm-up has changed the training."""
    stream = torch.cuda.current_stream(training.device)
    if stream == torch.cuda.default_stream(training.device):  # which cannot be captured; a lane of a pack has its own
        stream = torch.cuda.Stream(training.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(training.device))
    graph = torch.cuda.CUDAGraph()
    try:
        _capture(training, graph, stream)
    finally:  # what undoes the warm-up comes on the current one
        torch.cuda.current_stream(training.device).wait_stream(stream)
    return graph.replay


def _capture(training: Training, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            training.step()
        training.optimiser.zero_grad(set_to_none=True)
        graph.register_generator_state(training.generator)
        stream.synchronize()
        gc.collect()  # nothing may be freed by chance while capturing
        # thread_local, and by hand: torch.cuda.graph would stop the other trials and empty their caches
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            training.step()
        finally:
            graph.capture_end()


def _snapshot(training: Training) -> dict[str, Any]:
    return {
        "values": {name: tensor.detach().clone() for name, tensor in _tensors(training).items()},
        "optimiser": {
            id(p): {name: v.clone() for name, v in state.items() if isinstance(v, torch.Tensor)}
            for p, state in training.optimiser.state.items()
        },
        "generator": training.generator.get_state(),
        "number": training.number,
    }


def _restore(training: Training, before: dict[str, Any]) -> None:
    """Undo the warm-up in place: a captured graph knows tensors by their address."""
    with torch.no_grad():
        for name, tensor in _tensors(training).items():
            if name in before["values"]:  # a loss of the user's own may make a buffer in its first call
                tensor.copy_(before["values"][name])
        for parameter, state in training.optimiser.state.items():
            kept = before["optimiser"].get(id(parameter), {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    # momentum from zero is what the first step would have started with
                    value.copy_(kept[name]) if name in kept else value.zero_()
    training.generator.set_state(before["generator"])
    training.number = before["number"]


def _tensors(training: Training) -> dict[str, torch.Tensor]:
    """What a step changes, but for the state of the optimiser; a module's extra state may be anything, and is left."""
    counters = ("cursor", "total", "correct", "first_bad", "rate")
    named = {
        **{f"network.{name}": value for name, value in _state(training.network).items()},
        **{f"loss.{name}": value for name, value in _state(training.loss).items()},
        **{name: getattr(training, name) for name in counters},
    }
    return {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}


def _state(module: torch.nn.Module) -> dict[str, Any]:
    """Parameters and buffers, those that are not saved included."""
    return {**dict(module.named_buffers()), **module.state_dict()}
