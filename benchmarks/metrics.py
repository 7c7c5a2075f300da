"""All geometry measures, compared with the covariance script that people use, on one thread.

    python benchmarks/metrics.py            all sizes; a few minutes
    python benchmarks/metrics.py --quick    small sizes; under a minute

Time, in CPU seconds of the best run, and the ratio to the floor:
    floor             what no exact method can avoid: reading the features twice (a sum over all of them), and one
                      product with the directions of the class means
    measure           every measure without a classifier
    with classifier   also NC2 to NC4 and self-duality. NC4 needs two more products, of the features with the classifier
                      and with the class means, so the floor of this line has these too
    GeometryMetrics   the same measures, streamed twice in batches of 512
    pinv              NC1 alone by the usual script: float32 covariance matrices of all residuals, and torch.linalg.pinv

Memory is the growth of the peak resident size of a fresh process during the call, above the features (on Linux only).

Exactness is the error of NC1 of float32 features against a float64 reference, in two hard cases. In one, the class
means spread 0.3 % as far in one direction as in the others. In the other, they lie a thousand times their spread from
the origin.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from common import processor
from lastlayer.geometry import GeometryMetrics, measure, neural_collapse

DIM = 512
SIZES = [(50_000, 10), (50_000, 100), (100_000, 1000)]
QUICK = [(10_000, 10), (10_000, 100)]
CHUNK = 1024


def features_of(samples: int, classes: int) -> tuple[Tensor, Tensor]:
    """Random classes, made in place, so that the features are the peak of memory."""
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(samples) % classes
    means = torch.randn(classes, DIM, generator=generator)
    features = torch.empty(samples, DIM)
    for rows, labels in zip(features.split(CHUNK), target.split(CHUNK), strict=True):
        rows.normal_(generator=generator)
        rows += means[labels]
    return features, target


def pinv(features: Tensor, target: Tensor) -> Tensor:
    """NC1 as public scripts compute it."""
    classes = int(target.max()) + 1
    means = torch.stack([features[target == k].mean(dim=0) for k in range(classes)])
    residual = features - means[target]
    centred = means - features.mean(dim=0)
    within = residual.T @ residual / len(features)
    between = centred.T @ centred / classes
    return torch.trace(within @ torch.linalg.pinv(between)) / classes


def reference(features: Tensor, target: Tensor) -> Tensor:
    """NC1 in float64 from the singular value decomposition of the centred class means."""
    features = features.double()
    means = torch.stack([features[target == k].mean(dim=0) for k in range(int(target.max()) + 1)])
    _, singular, right = torch.linalg.svd(means - features.mean(dim=0), full_matrices=False)
    keep = singular > 1e-5 * singular[0]
    whitened = (features - means[target]) @ (right[keep] / singular[keep, None]).T
    return whitened.square().sum() / len(features)


def stream(features: Tensor, target: Tensor, classes: int) -> None:
    metrics = GeometryMetrics(classes, DIM)
    for step in (metrics.update, metrics.refine):
        for rows, labels in zip(features.split(512), target.split(512), strict=True):
            step(rows, labels)
    metrics.compute()


def floor(features: Tensor, columns: int) -> None:
    basis = torch.ones(DIM, columns)
    for rows in features.split(CHUNK):
        rows.sum()
    for rows in features.split(CHUNK):
        rows.sum()
        rows @ basis


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The best CPU time of this process. It has one thread, so other programs hardly change it."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def calls(name: str, samples: int, classes: int) -> Callable[[], object]:
    features, target = features_of(samples, classes)
    weight, bias = torch.ones(classes, DIM).normal_(), torch.zeros(classes)
    rank = min(classes - 1, DIM)
    return {
        "floor": lambda: floor(features, rank),
        "floor with classifier": lambda: floor(features, rank + 2 * classes),
        "measure": lambda: measure(features, target),
        "measure with classifier": lambda: measure(features, target, weight, bias),
        "GeometryMetrics": lambda: stream(features, target, classes),
        "pinv, NC1 alone": lambda: pinv(features, target),
    }[name]


def megabytes(name: str, samples: int, classes: int) -> float:
    """Growth of the peak resident size during a call. The process has made a small call before."""
    if not sys.platform.startswith("linux"):
        return float("nan")
    result = subprocess.run(
        [sys.executable, __file__, "--memory", name, str(samples), str(classes)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(result.stdout)


def print_memory(name: str, samples: int, classes: int) -> None:
    calls(name, 64, 2)()
    call = calls(name, samples, classes)
    # Not getrusage: its peak survives the start of a new program, and the parent's is larger.
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    call()
    print((resident("VmHWM") - before) / 2**10)


def resident(field: str) -> int:
    """Kilobytes of this process, now (VmRSS) or at most so far (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def hard_case(offset: float, weak: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(4000) % 4
    means = torch.zeros(4, DIM)
    means[:, :3] = torch.tensor([[1.0, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) * torch.tensor([1, 1, weak])
    noise = 1e-3 * torch.randn(4000, DIM, generator=generator)
    return means[target] + noise + offset, target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--memory", nargs=3, metavar=("NAME", "N", "K"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory:
        print_memory(arguments.memory[0], int(arguments.memory[1]), int(arguments.memory[2]))
        return

    print(f"torch {torch.__version__}, one thread, {processor()}, d = {DIM}, float32\n")
    print(f"{'N':>7} {'K':>5} {'':<24} {'CPU s':>8} {'to floor':>9} {'MB':>7}")
    for samples, classes in QUICK if arguments.quick else SIZES:
        lowest = 0.0
        for name in (
            "floor",
            "measure",
            "pinv, NC1 alone",
            "GeometryMetrics",
            "floor with classifier",
            "measure with classifier",
        ):
            used = seconds(calls(name, samples, classes), 1 if name == "GeometryMetrics" else 3)
            lowest = used if name.startswith("floor") else lowest
            memory = megabytes(name, samples, classes)
            print(f"{samples:>7} {classes:>5} {name:<24} {used:>8.3f} {used / lowest:>9.2f} {memory:>7.0f}", flush=True)
        print()

    print(f"{'':<44} {'NC1':>10} {'measure':>9} {'pinv':>9}   relative error")
    for label, offset, weak in (
        ("equal directions", 0.0, 1.0),
        ("one direction 0.3 %", 0.0, 0.003),
        ("equal directions, offset 1000", 1000.0, 1.0),
        ("one direction 0.3 %, offset 1000", 1000.0, 0.003),
    ):
        features, target = hard_case(offset, weak)
        exact = reference(features, target)
        ours = abs(neural_collapse(features, target).nc1 / exact - 1)
        theirs = abs(pinv(features, target).double() / exact - 1)
        print(f"{label:<44} {float(exact):>10.2e} {float(ours):>9.1e} {float(theirs):>9.1e}")


if __name__ == "__main__":
    main()
