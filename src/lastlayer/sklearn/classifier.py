"""The estimator.

Tests: tests/sklearn/test_classifier.py.
"""

from __future__ import annotations

import contextlib
import json
import math
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from lastlayer._core.files import as_safetensors, check_file, read_json, sha256, write_atomically, write_json
from lastlayer._core.registry import names_from
from lastlayer.linear_loss.plan import SMALL as MANY_LOGITS
from lastlayer.sklearn.inputs import Array, Moments, check_room, check_weight, with_class_weight
from lastlayer.sklearn.model import Model
from lastlayer.sklearn.solvers import Watch, batch_of, by_adamw, by_lbfgs, make_adamw, one_epoch

LBFGS_ITERATIONS = 200
LARGEST_INPUTS = 1 << 27  # entries of inputs that L-BFGS reads in every iteration; with more, AdamW is chosen
SETTINGS, WEIGHTS = "classifier.json", "weights.safetensors"
PARTS = ("loss", "loss_options", "head", "head_options", "hidden")  # what a model is built from
FITTED = ("n_iter_", "loss_curve_", "validation_scores_", "solver_")  # kept in a folder, besides classes and weights


class LastLayerClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A classifier with any loss and head of this library, on given features or after hidden layers.

    It minimises the sum of the losses plus alpha / 2 times the squared weights. This is what `LogisticRegression` with
    C = 1 / alpha does, if the loss is "ce", the head is linear and there are three classes or more.

    Args:
        loss: a name of `lastlayer.losses.available()`, "package.module.name" for a loss of your own, or any function or
            Module of (logits, target).
        head: a name of `lastlayer.heads.available()` or "package.module.HeadClass". A loss that needs another head than
            the linear one gets it.
        loss_options, head_options: hyperparameters by name.
        hidden: widths of hidden layers with ReLU. () puts the head on the inputs.
        alpha: how strongly squared weights of matrices are penalised. Of the head, these are the weights that
            `head.linear()` gives, so a normalized head has no penalty.
        solver: "lbfgs" reads all rows in each iteration. "adamw" takes steps on batches. "auto" chooses "lbfgs" for a
            head on the inputs, unless there are more than 2^27 entries or 2^24 logits, the loss couples the batch, or
            the head changes with each call, as "batch-norm" does.
        standardize: whether to subtract the mean of each feature and divide by its deviation. Weights count.
        max_iter: iterations of L-BFGS (default 200), or epochs of AdamW (default 5 or more, for about 800 steps).
        tol: stop if an iteration of L-BFGS, or `n_iter_no_change` epochs of AdamW, improve the objective by less. With
            3e-4 accuracy has settled. For probabilities that are exact to three digits take 1e-8.
        learning_rate: of AdamW, which falls to 0 along a cosine. None takes the one that suits the loss.
        batch_size: of AdamW. None takes an eightieth of the rows, but 64 to 1024.
        n_iter_no_change: how many iterations must bring no improvement before one stops. Of epochs, at least a tenth.
        early_stopping: hold out `validation_fraction` of each class, keep the weights with the best accuracy on it, and
            stop if `n_iter_no_change` iterations bring no better one.
        class_weight: None, "balanced", or a weight per class.
        random_state: of the starting weights, the order of the samples and the hold-out.
        threads: of torch while fitting and predicting. None leaves the number as it is.

    Attributes:
        classes_: the labels, sorted.
        n_features_in_, feature_names_in_: of the inputs; names if they came with names.
        n_iter_: iterations of L-BFGS or epochs.
        loss_curve_: the objective per weight after each of them.
        validation_scores_: accuracy after each of them, with early stopping.
        solver_: "lbfgs" or "adamw".

    Example:
        >>> from sklearn.datasets import load_wine
        >>> from sklearn.model_selection import cross_val_score
        >>> X, y = load_wine(return_X_y=True)
        >>> bool(cross_val_score(LastLayerClassifier("sln", random_state=0), X, y).mean() > 0.95)
        True
    """

    def __init__(
        self,
        loss: Any = "ce",
        head: str = "linear",
        *,
        loss_options: dict[str, Any] | None = None,
        head_options: dict[str, Any] | None = None,
        hidden: Sequence[int] = (),
        alpha: float = 1.0,
        solver: Literal["auto", "lbfgs", "adamw"] = "auto",
        standardize: bool = True,
        max_iter: int | None = None,
        tol: float = 3e-4,
        learning_rate: float | None = None,
        batch_size: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        n_iter_no_change: int = 10,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
        random_state: Any = None,
        threads: int | None = 1,
    ) -> None:
        self.loss = loss
        self.head = head
        self.loss_options = loss_options
        self.head_options = head_options
        self.hidden = hidden
        self.alpha = alpha
        self.solver = solver
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.class_weight = class_weight
        self.random_state = random_state
        self.threads = threads

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the classifier anew.

        Args:
            X: (N, d), an array, a DataFrame or a sparse matrix.
            y: N labels: numbers or texts.
            sample_weight: N weights. A row of weight 2 counts as two rows.
        """
        self._check_parameters()
        X, y = self._validated(X, y, reset=True)
        weight = check_weight(sample_weight, len(y))
        if not (counts := weight > 0).all():
            X, y, weight = X[counts], y[counts], weight[counts]
        self.classes_, labels = np.unique(y, return_inverse=True)
        random = check_random_state(self.random_state)
        validation = None
        if self.early_stopping:
            kept, held = train_test_split(
                np.arange(len(y)), test_size=self.validation_fraction, random_state=random, stratify=labels
            )
            validation = X[held], labels[held]
            X, labels, weight = X[kept], labels[kept], weight[kept]
        with _threads(self.threads), _seeded(random):
            model = self._begin(np.bincount(labels, minlength=len(self.classes_)).tolist())
            if self.standardize:
                model.moments = Moments().merged(X, weight)
            weight = self._weigh(labels, weight, sample_weight is not None)
            watch = Watch(model, self.tol, self.n_iter_no_change, validation)
            self.solver_ = self._choose_solver(X, labels)
            solve = self._by_lbfgs if self.solver_ == "lbfgs" else self._by_adamw
            solve(X, labels, weight, watch)
            watch.finish()
        self._seen = float(weight.sum())
        self.n_iter_, self.loss_curve_ = len(watch.curve), watch.curve
        if validation is not None:
            self.validation_scores_ = watch.scores
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go once over some rows with AdamW, at a constant learning rate.

        The mean and deviation of the features are those of all rows seen so far. A copy, and a classifier that was
        saved and loaded, go on with new moments of AdamW.

        Args:
            X, y, sample_weight: as in `fit`.
            classes: all labels there will be. The first call needs them.
        """
        self._check_parameters()
        first = not hasattr(self, "classes_")
        if first and classes is None:
            raise ValueError("classes must be passed on the first call to partial_fit: give all labels there will be")
        if self.class_weight == "balanced":
            raise ValueError("partial_fit cannot know class_weight='balanced': give a weight per class")
        X, y = self._validated(X, y, reset=first)
        weight = check_weight(sample_weight, len(y))
        known = np.unique(classes) if classes is not None else self.classes_
        if not first and not np.array_equal(known, self.classes_):
            raise ValueError(f"classes must be those of the first call, {self.classes_}, got {classes}")
        labels = np.searchsorted(known, y).clip(max=len(known) - 1)
        if (unknown := known[labels] != y).any():
            raise ValueError(f"y has the label {y[unknown].tolist()[0]!r}, which is not among the classes {known}")
        if not hasattr(self, "_random"):
            self._random = check_random_state(self.random_state)
        with _threads(self.threads), _seeded(self._random):
            if first:
                self.classes_, self.solver_, self.loss_curve_, self.n_iter_ = known, "adamw", [], 0
                self._begin(None)
            model = self._model
            weight = self._weigh(labels, weight, sample_weight is not None)
            if self.standardize:
                model.moments = (model.moments or Moments()).merged(X, weight)
            if not hasattr(self, "_optimiser"):
                self._optimiser = make_adamw(model, self.learning_rate)
            self._seen += float(weight.sum())
            batch = batch_of(len(labels), self.batch_size)
            objective = one_epoch(
                model, self._optimiser, X, labels, weight, alpha=self.alpha, batch=batch, total=self._seen
            )
            model.eval()
        self.loss_curve_.append(objective)
        self.n_iter_ += 1
        return self

    def _check_parameters(self) -> None:
        if self.solver not in ("auto", "lbfgs", "adamw"):
            raise ValueError(f"solver must be 'auto', 'lbfgs' or 'adamw', got {self.solver!r}")
        if self.solver == "lbfgs" and len(self.hidden):
            raise ValueError(f"solver='lbfgs' is for a head on the inputs, got hidden={self.hidden!r}: use 'adamw'")
        for name in ("alpha", "tol", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a number >= 0, got {value!r}")
        for name in ("max_iter", "batch_size", "n_iter_no_change", "threads"):
            value = getattr(self, name)
            if value is not None and (value < 1 or value != int(value)):
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")

    def _validated(self, X: Any, y: Any, reset: bool) -> tuple[Any, Array]:
        X, y = validate_data(self, X, y, reset=reset, accept_sparse="csr", dtype=[np.float64, np.float32])
        check_classification_targets(y)
        return X, y

    def _begin(self, counts: list[int] | None) -> Model:
        """Make a new model. `counts` are the training samples per class, if they are known."""
        if len(self.classes_) < 2:
            raise ValueError(
                f"a classifier needs samples of two classes or more, got one class: {self.classes_.tolist()[0]!r}"
            )
        self._counts, self._seen = counts, 0.0
        for name in ("_optimiser", "validation_scores_"):
            self.__dict__.pop(name, None)
        self._parts = {name: getattr(self, name) for name in PARTS}  # the parameters may be changed after fitting
        self._model = self._build()
        return self._model

    def _build(self) -> Model:
        return Model(self.n_features_in_, len(self.classes_), counts=self._counts, **self._parts)

    def _weigh(self, labels: Array, weight: Array, given: bool) -> Array:
        """The weight of each sample, with that of its class."""
        if (given or self.class_weight is not None) and not self._model.per_sample:
            raise ValueError(
                f"loss {self.loss!r} has no value per sample, so it takes no sample_weight and no class_weight: "
                "leave them out or choose another loss"
            )
        return with_class_weight(self.class_weight, self.classes_, labels, weight)

    def _choose_solver(self, X: Any, labels: Array) -> str:
        if self.solver == "adamw" or len(self.hidden):
            return "adamw"
        changes = self._model.changes_when_called(X[:2], labels[:2])
        if self.solver == "lbfgs" and changes:
            raise ValueError(f"head {self.head!r} changes with each call, which L-BFGS cannot follow: use 'adamw'")
        rows, width = X.shape
        large = rows * width > LARGEST_INPUTS or rows * len(self.classes_) > MANY_LOGITS
        unfit = large or changes or self._model.loss.couples_batch
        return "adamw" if self.solver == "auto" and unfit else "lbfgs"

    def _by_lbfgs(self, X: Any, labels: Array, weight: Array, watch: Watch) -> None:
        if issparse(X):
            check_room(X.shape[0] * X.shape[1], f"sparse inputs {X.shape} made dense", "use solver='adamw'")
        steps = self.max_iter or LBFGS_ITERATIONS
        if not by_lbfgs(self._model, X, labels, weight, alpha=self.alpha, steps=steps, tol=self.tol, watch=watch):
            warnings.warn(
                f"L-BFGS has not converged after max_iter={steps} iterations: give more, or a larger tol or alpha",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _by_adamw(self, X: Any, labels: Array, weight: Array, watch: Watch) -> None:
        batch = batch_of(len(labels), self.batch_size)
        entries = batch * X.shape[1] + 4 * sum(p.numel() for p in self._model.parameters())
        check_room(entries, f"batches of {batch} rows, weights and their moments", "give fewer rows per batch")
        by_adamw(
            self._model, X, labels, weight,
            alpha=self.alpha, epochs=self.max_iter, batch=batch, rate=self.learning_rate, watch=watch,
        )  # fmt: skip

    # predicting

    def decision_function(self, X: Any) -> Array:
        """The logits as they enter the softmax, (N, K), so those of `sln` are normalised.

        With two classes it is the second minus the first, (N,).
        """
        logits = self._logits(X)
        with torch.no_grad():
            scores = self._model.loss.scores(logits)
        decided: Array = (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores).numpy()
        return decided

    def predict_proba(self, X: Any) -> Array:
        """The probabilities of the classes, (N, K). Each row sums to 1, also if the loss judges each class alone."""
        logits = self._logits(X)
        with torch.no_grad():
            given = self._model.loss.posterior(logits)
            probabilities: Array = (given / given.sum(1, keepdim=True)).numpy()
        return probabilities

    def predict(self, X: Any) -> Array:
        """The label with the largest logit."""
        best = self._logits(X).argmax(1).numpy()
        predicted: Array = self.classes_[best]
        return predicted

    def _logits(self, X: Any) -> Tensor:
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, accept_sparse="csr", dtype=[np.float64, np.float32])
        with _threads(self.threads):
            return self._model.logits(X)

    # keeping

    def save(self, path: str | Path) -> None:
        """Write a fitted classifier to a folder, without pickle. `load` reads it.

        The folder has classifier.json, with a checksum over itself and one over weights.safetensors.

        Raises:
            TypeError: if the loss or an option cannot be written as text. A loss of your own must be a function or a
                class that can be imported; give it by name, with `loss_options`.
        """
        check_is_fitted(self)
        folder, weights = Path(path), as_safetensors(self._model.tensors())
        params = {**self.get_params(deep=False), **self._parts}
        if not isinstance(params["loss"], str):
            params["loss"] = _import_path(params["loss"])
        if not isinstance(self.random_state, int | None):
            params["random_state"] = None
        if isinstance(self.class_weight, dict):  # its keys may be numbers, which JSON would turn into texts
            params["class_weight"] = [*self.class_weight.items()]
        content = {
            "params": params,
            "classes": self.classes_,
            "classes_dtype": self.classes_.dtype.str,
            "counts": self._counts,
            "n_features_in": self.n_features_in_,
            "feature_names_in": getattr(self, "feature_names_in_", None),
            "fitted": {name: getattr(self, name) for name in FITTED if hasattr(self, name)},
            "weight_seen": self._seen,
            "weights": sha256(weights),
        }
        write_atomically(folder / WEIGHTS, weights)
        write_json(folder / SETTINGS, json.loads(json.dumps(content, default=_plain)))

    @classmethod
    def load(cls, path: str | Path, *, trust: Collection[str] = ()) -> Self:
        """Read a classifier that `save` wrote.

        Args:
            path: the folder.
            trust: modules of your own loss or head, such as ["my_package.losses"]. No others are imported.

        Raises:
            UntrustedError: if the folder names code that is not trusted. It is a ValueError.
            DamagedFileError: if a file does not have the checksum that was noted for it.
        """
        from safetensors.torch import load_file

        folder = Path(path)
        content = read_json(folder / SETTINGS)
        check_file(folder / WEIGHTS, content["weights"])
        params = content["params"]
        params["hidden"] = tuple(params["hidden"])
        if isinstance(params["class_weight"], list):
            params["class_weight"] = dict(params["class_weight"])
        made = cls(**params)
        made.classes_ = np.array(content["classes"], dtype=np.dtype(content["classes_dtype"]))
        made._counts, made.n_features_in_ = content["counts"], content["n_features_in"]
        made._parts = {name: params[name] for name in PARTS}
        if content["feature_names_in"] is not None:
            made.feature_names_in_ = np.array(content["feature_names_in"], dtype=object)
        for name in FITTED:
            if name in content["fitted"]:
                setattr(made, name, content["fitted"][name])
        made._seen = content["weight_seen"]
        with names_from(str(folder), trust):
            made._take(load_file(folder / WEIGHTS))
        return made

    def _take(self, tensors: dict[str, Tensor]) -> None:
        """Make the model again, with these numbers."""
        with _seeded(np.random.RandomState(0)):  # the weights that are drawn are replaced
            self._model = self._build()
        self._model.take(tensors)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copies: the model as tensors, because classes made for a loss cannot be pickled."""
        state = dict(super().__getstate__())
        if "_model" in state:
            state["_model"] = state["_model"].tensors()
        state.pop("_optimiser", None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        tensors = state.pop("_model", None)
        super().__setstate__(state)
        if tensors is not None:
            self._take(tensors)


@contextlib.contextmanager
def _seeded(random: np.random.RandomState) -> Iterator[None]:
    """Draw from torch's generator by a seed from `random`, and leave the generator as it was."""
    generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(random.randint(2**31))
    try:
        yield
    finally:
        generator.set_state(before)


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use this many threads inside this context. More than one makes small products slower."""
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def _import_path(loss: Any) -> str:
    """The name under which `load` finds a function or class. TypeError if it cannot be imported by name."""
    name = getattr(loss, "__qualname__", "<object>")
    if "<" in name or "." in name:
        raise TypeError(
            f"loss {loss!r} cannot be saved by name: give the name of a registered loss, or 'package.module.name' of "
            "a class or function, with its options as loss_options"
        )
    return f"{loss.__module__}.{name}"


def _plain(value: Any) -> Any:
    """What JSON does not know, as it does: arrays, tensors and numbers of NumPy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{value!r} cannot be saved as text: give plain numbers, texts and lists as options")
