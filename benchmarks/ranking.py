"""Average precision of every class: `single_logit` compared with the functions that people use, on one thread.

    python benchmarks/ranking.py            all sizes, every class measured; a few minutes
    python benchmarks/ranking.py --quick    small sizes; under a minute

There are two kinds of scores. In `chance` the true logits are like the others, which is the worst case for pruning. In
`trained` the true logits are four standard deviations higher. The peers are scikit-learn's `average_precision_score`,
called class by class, and torchmetrics' `multiclass_average_precision` with exact thresholds. The second ranks softmax
probabilities and not the logits given, so its values differ. Every method runs equally often, and its best run counts.
It prints CPU seconds, the ratio to ours, and the largest difference over classes.
"""

import argparse
import time
from collections.abc import Callable

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor
from torchmetrics.functional.classification import multiclass_average_precision

from common import processor
from lastlayer.tasks import logit_separation, single_logit

SIZES = [(50_000, 10), (50_000, 100), (100_000, 1000)]
QUICK = [(5_000, 10), (10_000, 100)]


def timed(call: Callable[[], Tensor], repeats: int) -> tuple[float, Tensor]:
    """The best of `repeats` CPU times of this process, which has one thread, and the value."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        value = call()
        best = min(best, time.process_time() - start)
    return best, value


def scikit_learn(logits: Tensor, target: Tensor) -> Tensor:
    scores, labels = logits.numpy(), target.numpy()
    values = [average_precision_score(labels == k, scores[:, k]) for k in range(scores.shape[1])]
    return torch.tensor(values, dtype=torch.float64)


def torchmetrics(logits: Tensor, target: Tensor) -> Tensor:
    return multiclass_average_precision(logits, target, num_classes=logits.shape[1], average="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{processor()}, one thread, torch {torch.__version__}, float32 scores")
    print(f"{'N':>7} {'K':>5} {'scores':8} {'method':24} {'seconds':>9} {'ratio':>7} {'largest difference':>19}")
    for samples, classes in QUICK if arguments.quick else SIZES:
        for kind, raised in (("chance", 0.0), ("trained", 4.0)):
            generator = torch.Generator().manual_seed(0)
            target = torch.randint(classes, (samples,), generator=generator)
            logits = torch.randn(samples, classes, generator=generator)
            logits[torch.arange(samples), target] += raised
            repeats = 1 if classes >= 1000 else 3  # the same for every method
            ours, value = timed(lambda: single_logit(logits, target, recalls=()).auprc_per_class, repeats)  # noqa: B023
            methods = {"lastlayer single_logit": (ours, value)}
            for name, peer in (("scikit-learn loop", scikit_learn), ("torchmetrics", torchmetrics)):
                methods[name] = timed(lambda: peer(logits, target), repeats)  # noqa: B023
            size = f"{samples:7} {classes:5} {kind:8}"
            for name, (seconds, theirs) in methods.items():
                difference = (theirs.double() - value).abs().max().item()
                print(f"{size} {name:24} {seconds:9.3f} {seconds / ours:7.1f} {difference:19.1e}", flush=True)
            pairs, _ = timed(lambda: logit_separation(logits, target).violation_rate, repeats)  # noqa: B023
            print(f"{size} {'(logit_separation)':24} {pairs:9.3f} {pairs / ours:7.1f}", flush=True)


if __name__ == "__main__":
    main()
