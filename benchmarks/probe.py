"""A linear head on given features: the training of `lastlayer linear-probe` compared with scikit-learn's classifiers.

    python benchmarks/probe.py              200,000 rows, 64 entries, 1,000 classes; some ten minutes
    python benchmarks/probe.py --quick      20,000 rows, 100 classes; about a minute
    python benchmarks/probe.py --rows 1000000 --peers none     a million rows, ours alone

The features are Gaussian classes. They are written to a file and read back, as those of a user would be. Our learning
rates were chosen on data of this kind. The peers get the same rows, standardised, in float32:
    sgd         SGDClassifier(loss="log_loss"): one class against the rest, five passes
    logistic    LogisticRegression: softmax by L-BFGS, at most 50 iterations. It holds all logits at once, so it is left
                out if they would take more than 2 GB

Everything runs on one thread, and CPU seconds of this process count, so that other programs do not change them. It
prints seconds of training, the ratio to ours, test accuracy, and its difference from ours. Measuring is timed
separately, because the peers do not measure.
"""

import argparse
import dataclasses
import functools
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression, SGDClassifier
from threadpoolctl import threadpool_limits

from lastlayer.data import Dataset
from lastlayer.training.engine import evaluate
from lastlayer.training.engine.step import step
from lastlayer.training.facts import load_features
from lastlayer.training.fit import begin, train_epoch
from lastlayer.training.machine import processor
from lastlayer.training.recipes import choose_rate, probe_trial
from lastlayer.training.trial import LossChoice

LARGEST = 2_000_000_000  # bytes of logits


def write_features(folder: Path, rows: int, dim: int, classes: int) -> tuple[Path, Path]:
    """Gaussian classes that overlap: about a tenth of the samples are nearer to another centre."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes, dim, generator=generator)
    folder.mkdir(exist_ok=True)
    files = folder / "train.safetensors", folder / "test.safetensors"
    for file, count in zip(files, (rows, max(classes, rows // 10)), strict=True):
        target = torch.arange(count) % classes
        features = centres[target]
        features += 1.6 * torch.randn(count, dim, generator=generator)
        save_file({"features": features, "target": target}, file)
    return files


def train_ours(dataset: Dataset, files: tuple[Path, Path], loss: str) -> tuple[float, float, float]:
    """CPU seconds of training, of measuring both splits once, and test accuracy."""
    trial = choose_rate(dataclasses.replace(probe_trial(dataset, *files), loss=LossChoice(loss))).resolved()
    start = time.process_time()
    state, feed = begin(trial, dataset)
    for _ in range(trial.schedule.epochs):
        for _ in train_epoch(state, feed, functools.partial(step, state, feed)):
            pass
    trained = time.process_time()
    for split, on_test in ((dataset.train, False), (dataset.test, True)):
        made = evaluate.outputs(state.network, split)
        values = evaluate.measure(state.network, state.loss, dataset, made, on_test=on_test)
    return trained - start, time.process_time() - trained, values["accuracy"]


def train_peer(peer: SGDClassifier | LogisticRegression, parts: dict[str, np.ndarray]) -> tuple[float, float]:
    """CPU seconds of training and test accuracy."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # both stop before they have converged, as ours does
        peer.fit(parts["x"], parts["y"])
    seconds = time.process_time() - start
    blocks = zip(np.array_split(parts["x_test"], 50), np.array_split(parts["y_test"], 50), strict=True)
    hits = sum(int((peer.predict(x) == y).sum()) for x, y in blocks if len(y))
    return seconds, hits / len(parts["y_test"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 rows, 100 classes")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--classes", type=int)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--losses", default="ce,sln,bce,batch-ce")
    parser.add_argument("--peers", default="sgd,logistic", help="sgd, logistic, or none")
    arguments = parser.parse_args()
    rows = arguments.rows or (20_000 if arguments.quick else 200_000)
    classes = arguments.classes or (100 if arguments.quick else 1_000)
    torch.set_num_threads(1)

    with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
        files = write_features(Path(folder), rows, arguments.dim, classes)
        start = time.process_time()
        dataset = load_features(*files)
        reading = time.process_time() - start
        trial = probe_trial(dataset, *files)
        print(f"{rows:,} rows, {arguments.dim} entries, {classes:,} classes; {processor()}, one thread; ", end="")
        print(f"batches of {trial.batch_size}, {trial.schedule.epochs} epochs; read in {reading:.1f} s")
        print("\n".join(dataset.notes))
        print(f"{'':<34}{'CPU s':>9}{'x ours':>9}{'accuracy':>10}{'- ours':>9}{'measuring s':>13}")
        train_ours(load_features(*write_features(Path(folder) / "warm-up", 500, 8, 5)), files, "ce")
        ours: tuple[float, float] | None = None
        for loss in arguments.losses.split(","):
            seconds, measured, accuracy = train_ours(dataset, files, loss)
            ours = ours or (seconds, accuracy)
            print_row(f"lastlayer {loss}", seconds, accuracy, ours, f"{measured:13.1f}")
        assert ours is not None
        mean, std = np.float32(dataset.mean), np.float32(dataset.std)
        parts = {}
        for name, split in (("", dataset.train), ("_test", dataset.test)):
            parts[f"x{name}"] = (split.inputs.numpy() - mean) / std
            parts[f"y{name}"] = split.target.numpy()
        if "sgd" in arguments.peers:
            peer = SGDClassifier(loss="log_loss", max_iter=5, tol=None, random_state=0)
            print_row("scikit-learn SGDClassifier", *train_peer(peer, parts), ours)
        if "logistic" in arguments.peers and 4 * rows * classes > LARGEST:
            print("scikit-learn LogisticRegression   left out: all logits at once would not fit")
        elif "logistic" in arguments.peers:
            print_row("scikit-learn LogisticRegression", *train_peer(LogisticRegression(max_iter=50), parts), ours)


def print_row(name: str, seconds: float, accuracy: float, ours: tuple[float, float], more: str = "") -> None:
    ratio, difference = seconds / ours[0], accuracy - ours[1]
    print(f"{name:<34}{seconds:9.1f}{ratio:9.2f}{accuracy:10.4f}{difference:+9.4f}{more}", flush=True)


if __name__ == "__main__":
    main()
