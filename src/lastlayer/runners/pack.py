"""Many trials on one GPU at once: each captured as a CUDA graph, each on a stream of its own.

A small network leaves most of a large GPU idle, and launching its kernels one by one costs more than running them. Here
a whole step, from drawing the batch to updating the parameters, is compiled, captured once and replayed; a pack of
trials takes turns, a replay each, and the device overlaps them. The host does nothing a step but start replays.
"""

from __future__ import annotations

import functools
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch

from lastlayer.data import Dataset
from lastlayer.runners._events import Event, Plan, Reporter
from lastlayer.training.loop import Progress, Training, fit, objective
from lastlayer.training.trial import Trial

WARM_UP_STEPS = 3
LARGEST_PACK = 8
MOST_SHAPES = 64  # losses and models one process may compile
MEMORY_SHARE = 0.8  # of the free memory that a pack may plan to take


def run_packed(
    trials: Sequence[Trial], pending: deque[int], plan: Plan, device: torch.device, dataset: Dataset | None = None
) -> Iterator[Event]:
    """Run the pending trials, as many at a time as the pack holds, each on its own stream.

    The result of a trial does not depend on its companions: it has its own generator, its own buffers, and its steps
    come in their own order.
    """
    running: dict[int, tuple[Generator[Progress, None, Any], torch.cuda.Stream, Reporter]] = {}
    size = plan.pack or 1
    measured = plan.pack is not None
    free_before = torch.cuda.mem_get_info(device)[0]
    while pending or running:
        while pending and len(running) < size:
            index = pending.popleft()
            yield Event(index, "start")
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            running[index] = (_fit(trials[index], plan, device, dataset), stream, Reporter(index))
        for index, (steps, stream, reporter) in list(running.items()):
            try:
                with torch.cuda.stream(stream):
                    progress = next(steps)
            except StopIteration:
                del running[index]
                yield Event(index, "done")
            except Exception as error:  # the others go on; the run folder has the reason
                del running[index]
                yield Event(index, "failed", message=f"{type(error).__name__}: {error}")
            else:
                if not measured:
                    size, measured = _pack_size(device, free_before), True
                yield from reporter(progress)


def _fit(trial: Trial, plan: Plan, device: torch.device, dataset: Dataset | None) -> Generator[Progress, None, Any]:
    return fit(
        trial,
        plan.folder(trial),
        device=device,
        data_root=plan.data_root,
        dataset=dataset,
        tensorboard=plan.tensorboard,
        prepare=accelerate,
    )


def _pack_size(device: torch.device, free_before: int) -> int:
    """How many trials like the first one fit, up to eight: more streams than that no longer overlap."""
    taken = max(free_before - torch.cuda.mem_get_info(device)[0], 1)
    return max(1, min(LARGEST_PACK, int(MEMORY_SHARE * free_before / taken)))


def accelerate(training: Training) -> None:
    """Let a training on a GPU run its step as a captured graph of compiled kernels, or as near to that as it can.

    If capture fails the step runs compiled, if compiling fails as it is; each fall is said once.
    """
    if training.device.type != "cuda":
        return
    training.network.train()
    if not training.resident:  # each step takes a batch from the host: nothing to capture
        training.objective = _compiled_objective()
        return
    for level, speed_up in (("a CUDA graph", _capture_compiled), ("compiled kernels", _compile)):
        before = _snapshot(training)
        try:
            training.run_step = speed_up(training)
            return
        except Exception as error:
            training.objective, training.run_step = objective, training.step
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"{training.trial.model.name} with {training.trial.loss.name} does not run as {level} "
                f"({type(error).__name__}: {reason[:200]}); going on without",
                stacklevel=2,
            )
        finally:
            _restore(training, before)


def _compile(training: Training) -> Callable[[], None]:
    """Compile network and loss; one compiled function serves every training of the same shape."""
    training.objective = _compiled_objective()
    training.step()
    torch.cuda.synchronize(training.device)
    return training.step


@functools.cache
def _compiled_objective() -> Any:
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, MOST_SHAPES)
    return torch.compile(objective, dynamic=False)


def _capture_compiled(training: Training) -> Callable[[], None]:
    step = _compile(training)
    stream = torch.cuda.Stream(training.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(training.device))
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream(training.device).wait_stream(stream)
    training.optimiser.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(training.generator)
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def _snapshot(training: Training) -> dict[str, Any]:
    tensors = [*training.network.state_dict().values(), *_counters(training)]
    return {
        "values": [tensor.detach().clone() for tensor in tensors],
        "optimiser": {
            id(p): {name: v.clone() for name, v in state.items() if isinstance(v, torch.Tensor)}
            for p, state in training.optimiser.state.items()
        },
        "generator": training.generator.get_state(),
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


def _counters(training: Training) -> list[torch.Tensor]:
    return [training.cursor, training.total, training.correct, training.first_bad, training.rate]
