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
from lastlayer.training.engine.feed import Feed
from lastlayer.training.engine.state import State
from lastlayer.training.engine.step import Extract, Step, extract, step

WARM_UP_STEPS = 3
MOST_SHAPES = 256  # models one process may compile

Capture = Callable[[State, Step], Step]


def accelerate(state: State, feed: Feed, *, convolutions: bool = True, alone: bool = True) -> Step:
    """Make a step of a training on a GPU: a captured graph of compiled kernels, or as near to that as it can be.

    Convolutions of few channels in bfloat16 are our own, unless `convolutions` is False. If they fail they are cuDNN's,
    if capture fails the step runs compiled, if compiling fails as it is; each fall is said. The state is left as it
    was.

    Raises:
        torch.OutOfMemoryError: where memory runs out beside others, that is unless `alone`: with fewer of them the step
            may be what it would be without them.
    """
    if state.device.type != "cuda":
        return functools.partial(step, state, feed)
    state.network.train()
    with _one_choice_of_kernels():
        return fastest_step(state, feed, convolutions=convolutions, alone=alone)


def fastest_step(
    state: State,
    feed: Feed,
    *,
    convolutions: bool = True,
    alone: bool = True,
    compiled: Extract | None = None,
    capture: Capture | None = None,
) -> Step:
    compiled = compiled or compile_extract()
    replacements: dict[nn.Module, nn.Module] = {}
    levels: list[tuple[str, Capture, dict[nn.Module, nn.Module]]] = [("compiled kernels", _run_once, replacements)]
    if feed.resident:  # otherwise each step takes a batch from the host: nothing to capture
        capture = capture or captured
        levels.insert(0, ("a CUDA graph", capture, replacements))
        if convolutions and state.trial.precision == "bfloat16" and (ours := _replacements(state)):
            levels.insert(0, ("a CUDA graph with convolutions of our own", capture, ours))
    for level, make, replacements in levels:
        before = state.snapshot()
        feed.offer_one()
        try:
            made = make(state, functools.partial(step, state, feed, using(compiled, replacements)))
            if not all(conv3x3.shares_state(copied, own) for own, copied in replacements.items()):
                raise RuntimeError("a step of the model sets other parameters or buffers")
            return made
        except Exception as error:
            if isinstance(error, torch.OutOfMemoryError) and not alone:
                raise
            reason = (str(error).splitlines() or [""])[0]
            warnings.warn(
                f"{state.trial.model.name} with {state.trial.loss.name} does not run as {level} "
                f"({type(error).__name__}: {reason[:200]}); going on without",
                stacklevel=2,
            )
            state.renew_generator()
        finally:
            state.undo(before)
    return _one_choice_of_kernels()(functools.partial(step, state, feed))


def _replacements(state: State) -> dict[nn.Module, nn.Module]:
    """What convolves by our kernels in place of the backbones of the network and its teacher."""
    networks = [state.network] + ([] if state.teacher is None else [state.teacher])
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


def _run_once(state: State, take_step: Step) -> Step:
    take_step()
    torch.cuda.synchronize(state.device)
    return _one_choice_of_kernels()(take_step)


def captured(state: State, take_step: Step) -> Step:
    """The step as a graph; its warm-up has changed the state."""
    stream = torch.cuda.current_stream(state.device)
    if stream == torch.cuda.default_stream(state.device):  # which cannot be captured; a lane of a pack has its own
        stream = torch.cuda.Stream(state.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(state.device))
    graph = torch.cuda.CUDAGraph()
    try:
        _capture(state, take_step, graph, stream)
    finally:  # what undoes the warm-up comes on the current one
        torch.cuda.current_stream(state.device).wait_stream(stream)
    return graph.replay


def _capture(state: State, take_step: Step, graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream) -> None:
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            take_step()
        state.optimiser.zero_grad(set_to_none=True)
        graph.register_generator_state(state.generator)
        stream.synchronize()
        gc.collect()  # nothing may be freed by chance while capturing
        # thread_local, and by hand: torch.cuda.graph would stop the other trials and empty their caches
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            take_step()
        finally:
            graph.capture_end()
