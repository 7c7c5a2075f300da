"""A step of a training as a captured CUDA graph of compiled kernels, or as near to that as it can be."""

from __future__ import annotations

import contextlib
import functools
import gc
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from lastlayer.runners.stack import Stack
from lastlayer.training.loop import Training, call, objective

WARM_UP_STEPS = 3
MOST_SHAPES = 256  # losses and models one process may compile

Step = Callable[[], None]


def fastest_step(trainings: Sequence[Training], *, stacked: bool) -> Step:
    """A step of every training, as fast as it can be.

    Stacked if asked for; what does not stack runs each by itself, as a graph, else compiled, else as it is. Each fall
    is said once. The trainings are left as they were.
    """
    with _one_choice_of_kernels():
        return _fastest_step(trainings, stacked)


@contextlib.contextmanager
def _one_choice_of_kernels() -> Iterator[None]:
    """Convolutions timed once for a shape and process, then fixed; only such as give the same bits each time."""
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic
    torch.backends.cudnn.benchmark = torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


def _fastest_step(trainings: Sequence[Training], stacked: bool) -> Step:
    on_gpu = trainings[0].device.type == "cuda"
    if stacked:
        try:
            return _tried(trainings, functools.partial(_stacked_graph if on_gpu else _stack, trainings))
        except Exception as error:
            _say(trainings[0], "a stack with others", error)
    steps = [_alone(training) if on_gpu else training.step for training in trainings]

    def one_after_another() -> None:
        for step in steps:
            step()

    return one_after_another


def _stack(trainings: Sequence[Training]) -> Step:
    stack = Stack(trainings)
    stack.step()
    return stack.step


def _stacked_graph(trainings: Sequence[Training]) -> Step:
    return _captured(Stack(trainings, _compiled()).step, trainings)


def _alone(training: Training) -> Step:
    training.objective = functools.partial(objective, call=_compiled())
    if not training.resident:  # each step takes a batch from the host: nothing to capture
        return training.step
    try:
        return _tried([training], functools.partial(_captured, training.step, [training]))
    except Exception as error:
        _say(training, "a CUDA graph", error)
    try:
        return _tried([training], functools.partial(_run_once, training))
    except Exception as error:
        _say(training, "compiled kernels", error)
    training.objective = objective
    return training.step


def _run_once(training: Training) -> Step:
    training.step()
    torch.cuda.synchronize(training.device)
    return training.step


def _say(training: Training, level: str, error: Exception) -> None:
    reason = (str(error).splitlines() or [""])[0]
    warnings.warn(
        f"{training.trial.model.name} with {training.trial.loss.name} does not run as {level} "
        f"({type(error).__name__}: {reason[:200]}); going on without",
        stacklevel=2,
    )


@functools.cache
def _compiled() -> Any:
    """`call`, compiled: one for all, so that every training of the same shape takes the same kernels."""
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)
    # channels last also for the grouped convolutions of a stack, where it would be left out
    return torch.compile(call, dynamic=False, options={"force_layout_optimization": True})


def _captured(step: Step, trainings: Sequence[Training]) -> Step:
    """The step as a graph; its warm-up has changed the trainings."""
    device = trainings[0].device
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            step()
        for training in trainings:
            training.optimiser.zero_grad(set_to_none=True)
            graph.register_generator_state(training.generator)
        stream.synchronize()
        gc.collect()  # nothing may be freed by chance while capturing
        # thread_local, and by hand: torch.cuda.graph would stop the other lanes and empty their caches
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            step()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph.replay


def _tried(trainings: Sequence[Training], make: Callable[[], Step]) -> Step:
    """What `make` gives, the trainings put back to where they were before it."""
    before = [_snapshot(training) for training in trainings]
    try:
        return make()
    finally:
        for training, kept in zip(trainings, before, strict=True):
            _restore(training, kept)


def _snapshot(training: Training) -> dict[str, Any]:
    tensors = [*training.network.state_dict().values(), *_counters(training)]
    return {
        "values": [tensor.detach().clone() for tensor in tensors],
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
        tensors = [*training.network.state_dict().values(), *_counters(training)]
        for tensor, value in zip(tensors, before["values"], strict=True):
            tensor.copy_(value)
        for parameter, state in training.optimiser.state.items():
            kept = before["optimiser"].get(id(parameter), {})
            for name, value in state.items():
                if isinstance(value, torch.Tensor):
                    # momentum from zero is what the first step would have started with
                    value.copy_(kept[name]) if name in kept else value.zero_()
    training.generator.set_state(before["generator"])
    training.number = before["number"]


def _counters(training: Training) -> list[torch.Tensor]:
    return [training.cursor, training.total, training.correct, training.first_bad, training.rate]
