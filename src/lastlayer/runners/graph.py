"""A training step as a captured CUDA graph of compiled kernels, or as near to that as possible."""

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


def accelerate(
    state: State,
    feed: Feed,
    *,
    convolutions: bool = True,
    alone: bool = True,
    compiled: Extract | None = None,
    capture: Capture | None = None,
) -> Step:
    """Make the step of a training. On a GPU it is a captured graph of compiled kernels, if that can be made.

    Convolutions of few channels in bfloat16 are our own, unless `convolutions` is False. If these fail, cuDNN's are
    used. If capture fails, the step runs compiled; if compiling fails, it runs as it is. Warns each time it falls back.
    The state is left as it was.

    `compiled` computes features by compiled kernels; if given, all of this is done on a CPU too. `capture` makes a
    graph of a step.

    Raises:
        torch.OutOfMemoryError: if memory runs out and the trial is not `alone` on the GPU. When fewer trials run, the
            step can be made as it would be without them.
    """
    if state.device.type != "cuda" and compiled is None:
        return functools.partial(step, state, feed)
    state.network.train()
    compiled, capture = compiled or compile_extract(), capture or captured
    levels: list[tuple[str, Capture, dict[nn.Module, nn.Module]]] = [("compiled kernels", _run_once, {})]
    if feed.resident:  # otherwise each step takes a batch from the CPU, which a graph cannot do
        levels.insert(0, ("a CUDA graph", capture, {}))
        if convolutions and state.trial.precision == "bfloat16" and (ours := _replacements(state)):
            levels.insert(0, ("a CUDA graph with convolutions of our own", capture, ours))
    for level, make, replacements in levels:
        before = state.snapshot()
        feed.offer_one()
        take_step = _one_choice_of_kernels()(functools.partial(step, state, feed, using(compiled, replacements)))
        try:
            made = make(state, take_step)
            if not all(conv3x3.shares_state(copied, own) for own, copied in replacements.items()):
                raise RuntimeError("a step of the model sets other parameters or buffers")
            return functools.partial(_call, made, take_step)
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


def _call(made: Step, keeps: Step) -> None:
    """Run a step, and keep alive all that it was made from: a graph knows its tensors by their addresses alone."""
    made()


def _replacements(state: State) -> dict[nn.Module, nn.Module]:
    """For the backbones of the network and its teacher, the copies that convolve by our kernels."""
    networks = [state.network] + ([] if state.teacher is None else [state.teacher])
    found = {network.backbone: conv3x3.replacement(network.backbone) for network in networks}
    return {backbone: copied for backbone, copied in found.items() if copied is not None}


@contextlib.contextmanager
def _one_choice_of_kernels() -> Iterator[None]:
    """cuDNN times its convolutions once per shape, then keeps one; only such as give the same bits each time."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


@functools.cache
def compile_extract(backend: str | Callable[..., Any] = "inductor") -> Extract:
    """The backbone, compiled once per process, so that all trainings of the same shape use the same kernels.

    Head and loss are not compiled. In a pack that gains nothing, because other trials fill the gaps between small
    kernels, and all trials would wait for seconds whenever a new loss is compiled.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)
    return torch.compile(extract, dynamic=False, backend=backend)


def using(compiled: Extract, replacements: dict[nn.Module, nn.Module]) -> Extract:
    """Features by compiled kernels, of a backbone or of its replacement."""

    def features(backbone: nn.Module, inputs: Tensor) -> Tensor:
        backbone = replacements.get(backbone, backbone)
        conv3x3.narrow_weights(backbone)
        return compiled(backbone, inputs)

    return features


def _run_once(state: State, take_step: Step) -> Step:
    take_step()
    if state.device.type == "cuda":  # where an error shows only once the kernels have run
        torch.cuda.synchronize(state.device)
    return take_step


def captured(state: State, take_step: Step) -> Step:
    """The step as a graph. The steps that warm it up change the state."""
    current = torch.cuda.current_stream(state.device)
    stream = current  # a lane of a pack has one of its own
    if current == torch.cuda.default_stream(state.device):  # which cannot be captured
        stream = torch.cuda.Stream(state.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
    graph = torch.cuda.CUDAGraph()
    try:
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
    finally:  # the current stream then undoes the warm-up
        current.wait_stream(stream)
    return graph.replay
