"""`LastLayerClassifier` compared with scikit-learn's classifiers on small tables.

    python benchmarks/classifiers.py              digits, wine, breast cancer, and 20,000 made-up rows of 50 features
    python benchmarks/classifiers.py --quick      without the made-up rows, fewer repetitions

All have their defaults. The peers stand behind a StandardScaler, because ours standardises by itself. 30% of the rows
are held out, ten times. A fit is repeated three times on each split, and the fastest counts, so that other programs
change little.

Everything runs on one thread. It prints CPU seconds of a fit (the median over the splits), the ratio to ours, the mean
accuracy on the rows held out, its difference from ours, and the standard error of that difference over the splits.
"""

import argparse
import statistics
import time
import warnings

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from lastlayer.sklearn import LastLayerClassifier
from lastlayer.training.machine import processor

MADE = {"n_samples": 20_000, "n_features": 50, "n_informative": 20, "n_classes": 5, "random_state": 0}
REPEATS = 3


def classifiers(hidden: bool) -> dict[str, ClassifierMixin]:
    """Ours and the peers; with hidden layers if asked, which take longer."""
    made = {
        "lastlayer": LastLayerClassifier(random_state=0),
        "LogisticRegression": make_pipeline(StandardScaler(), LogisticRegression()),
        "SGDClassifier": make_pipeline(StandardScaler(), SGDClassifier(random_state=0)),
    }
    if hidden:
        made["lastlayer, hidden=(100,)"] = LastLayerClassifier(hidden=(100,), random_state=0)
        made["MLPClassifier"] = make_pipeline(StandardScaler(), MLPClassifier(random_state=0))
    return made


def measure(model: ClassifierMixin, parts: list[np.ndarray], repeats: int) -> tuple[float, float]:
    """CPU seconds of the fastest fit, and accuracy on the rows held out."""
    train, test, y_train, y_test = parts
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        model.fit(train, y_train)
        seconds.append(time.process_time() - start)
    return min(seconds), model.score(test, y_test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="without the made-up rows, three splits")
    parser.add_argument("--no-hidden", action="store_true", help="leave out the networks with hidden layers")
    parser.add_argument("--splits", type=int, help="how many times to split (default 10)")
    arguments = parser.parse_args()
    splits = arguments.splits or (3 if arguments.quick else 10)
    torch.set_num_threads(1)
    tables = {
        "wine": load_wine(return_X_y=True),
        "breast cancer": load_breast_cancer(return_X_y=True),
        "digits": load_digits(return_X_y=True),
    }
    if not arguments.quick:
        tables["20,000 x 50"] = make_classification(**MADE)
    print(f"{processor()}, one thread")
    print(f"{'':<14}{'':<26}{'CPU ms':>9}{'x ours':>8}{'accuracy':>10}{'- ours':>9}{'+-':>8}")
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some peers stop before they have converged
        for table, (X, y) in tables.items():
            parts = [train_test_split(X, y, test_size=0.3, random_state=s, stratify=y) for s in range(splits)]
            ours: tuple[float, list[float]] | None = None
            for name, model in classifiers(not arguments.no_hidden).items():
                repeats = 1 if "hidden" in name or "MLP" in name else REPEATS
                measure(model, parts[0], 1)
                found = [measure(model, part, repeats) for part in parts]
                seconds, scores = statistics.median(s for s, _ in found), [score for _, score in found]
                ours = ours or (seconds, scores)
                differences = [a - b for a, b in zip(scores, ours[1], strict=True)]
                error = statistics.stdev(differences) / splits**0.5
                print(
                    f"{table:<14}{name:<26}{1e3 * seconds:9.1f}{seconds / ours[0]:8.2f}{statistics.mean(scores):10.4f}"
                    f"{statistics.mean(differences):+9.4f}{error:8.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
