import io
import pickle
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from lastlayer import heads, losses
from lastlayer._core.files import DamagedFileError
from lastlayer._core.registry import UntrustedError
from lastlayer.sklearn import LastLayerClassifier

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
NEED_A_TEACHER = {name for name in losses.available() if losses.entry(name).module.needs_teacher}


def classifier(*given, **options):
    return LastLayerClassifier(*given, **{"random_state": 0, **options})


def hinge(logits, target, margin=1.0):
    """A loss of one's own, with a scalar value."""
    return torch.nn.functional.multi_margin_loss(logits, target, margin=margin)


@parametrize_with_checks([LastLayerClassifier()])
def test_estimator_checks(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        check(estimator)


def test_estimator_checks_of_the_interface_with_hidden_layers():
    results = check_estimator(LastLayerClassifier(hidden=(4,), max_iter=5), legacy=False, on_skip=None)
    assert {one["status"] for one in results} <= {"passed", "skipped"}


@pytest.mark.parametrize("loss", sorted({*losses.available()} - NEED_A_TEACHER))
def test_every_loss_learns(loss):
    fitted = classifier(loss).fit(X, NAMES)
    assert fitted.score(X, NAMES) > 0.8
    probabilities = fitted.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert (fitted.classes_[probabilities.argmax(1)] == fitted.predict(X)).all()


@pytest.mark.parametrize("head", sorted({*heads.available()} - {"large-margin", "simplex"}))
def test_every_head_learns(head):
    assert classifier(head=head).fit(X, Y).score(X, Y) > 0.85


def test_a_head_that_is_fixed_learns_behind_hidden_layers():
    assert classifier(head="simplex", hidden=(16,)).fit(X, Y).score(X, Y) > 0.9


def test_it_is_logistic_regression():
    fitted = classifier(tol=1e-12, alpha=2.0).fit(X, Y)
    peer = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, tol=1e-10, max_iter=1000)).fit(X, Y)
    np.testing.assert_allclose(fitted.predict_proba(X), peer.predict_proba(X), atol=1e-5)
    differences = fitted.decision_function(X)
    of_peer = peer.decision_function(X)
    np.testing.assert_allclose(differences - differences.mean(1, keepdims=True), of_peer, atol=1e-3)


def test_two_classes_have_one_decision():
    table, target = load_breast_cancer(return_X_y=True)
    fitted = classifier().fit(table, target == 1)
    decision = fitted.decision_function(table)
    assert decision.shape == (len(table),)
    np.testing.assert_allclose(fitted.predict_proba(table)[:, 1], 1 / (1 + np.exp(-decision)), atol=1e-12)
    assert ((decision > 0) == fitted.predict(table)).all()
    fitted = classifier("sln").fit(table, target)
    order = fitted.decision_function(table).argsort()
    assert (np.diff(fitted.predict_proba(table)[order, 1]) >= 0).all()


def test_sparse_inputs_give_what_dense_ones_give():
    table = np.where(np.random.rand(*X.shape) < 0.5, X, 0.0)
    for options in ({}, {"solver": "adamw", "max_iter": 5}, {"standardize": False}):
        dense, sparse = (classifier(**options).fit(one, Y) for one in (table, csr_matrix(table)))
        np.testing.assert_allclose(sparse.predict_proba(csr_matrix(table)), dense.predict_proba(table), atol=1e-6)


def test_sparse_inputs_that_do_not_fit_are_refused(free_memory):
    free_memory(4_000)
    with pytest.raises(ValueError, match=r"sparse inputs \(150, 4\) made dense would take 4,800 bytes"):
        classifier(solver="lbfgs").fit(csr_matrix(X), Y)


def test_classes_weigh_as_their_samples_do():
    weight = np.where(Y == 1, 3.0, 1.0)
    # without standardising, because the moments of the inputs know the weights of samples alone
    by_class = classifier(class_weight={1: 3.0}, standardize=False).fit(X, Y)
    by_sample = classifier(standardize=False).fit(X, Y, sample_weight=weight)
    np.testing.assert_allclose(by_class.predict_proba(X), by_sample.predict_proba(X), rtol=1e-6)
    rare = np.r_[0:50, 50:100, 100:105]
    plain, balanced = (classifier(class_weight=one).fit(X[rare], Y[rare]) for one in (None, "balanced"))
    assert (balanced.predict(X) == 2).sum() > (plain.predict(X) == 2).sum()


def test_the_solver_that_suits():
    assert classifier().fit(X, Y).solver_ == "lbfgs"
    assert classifier("batch-ce", max_iter=2).fit(X, Y).solver_ == "adamw"
    assert classifier(head="batch-norm", max_iter=2).fit(X, Y).solver_ == "adamw"
    assert classifier(hidden=(8,), max_iter=2).fit(X, Y).solver_ == "adamw"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lastlayer.sklearn.classifier.MANY_LOGITS", 3 * len(X) - 1)
        assert classifier(max_iter=2).fit(X, Y).solver_ == "adamw"
    with pytest.raises(ValueError, match="L-BFGS cannot follow"):
        classifier(head="batch-norm", solver="lbfgs").fit(X, Y)


def test_early_stopping_holds_out_rows():
    for options in ({}, {"hidden": (8,)}):
        fitted = classifier(early_stopping=True, validation_fraction=0.2, **options).fit(X, NAMES)
        assert len(fitted.validation_scores_) == fitted.n_iter_ == len(fitted.loss_curve_)
        assert fitted.score(X, NAMES) > 0.8
    assert not hasattr(fitted.set_params(early_stopping=False).fit(X, NAMES), "validation_scores_")


def test_rows_can_come_in_parts():
    fitted = classifier(learning_rate=0.03, batch_size=10)
    order = np.random.permutation(len(X))
    for _ in range(4):
        for rows in np.array_split(order, 5):
            fitted.partial_fit(X[rows], NAMES[rows], classes=np.unique(NAMES))
    assert fitted.score(X, NAMES) > 0.85
    assert fitted.n_iter_ == 20
    with pytest.raises(ValueError, match="label 'rose'"):
        fitted.partial_fit(X[:2], ["setosa", "rose"])
    with pytest.raises(ValueError, match="first call"):
        classifier().partial_fit(X, NAMES)
    after_fit = classifier().fit(X, NAMES).partial_fit(X, NAMES)
    assert after_fit.score(X, NAMES) > 0.9


def test_seeds_and_settings_of_torch():
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        one, same, other = (classifier(hidden=(4,), max_iter=5, random_state=seed).fit(X, Y) for seed in (1, 1, 2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before)
    assert (one.predict_proba(X) == same.predict_proba(X)).all()
    assert (one.predict_proba(X) != other.predict_proba(X)).any()


def test_in_a_pipeline_a_search_and_calibration():
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), classifier("sln")),
        {"lastlayerclassifier__loss_options": [{"gamma": 0.5}, {"gamma": 0.9}], "lastlayerclassifier__alpha": [0.1, 1]},
        cv=2,
        n_jobs=1,
    ).fit(X, NAMES)
    assert search.best_score_ > 0.85
    assert cross_val_score(classifier("bce"), X, NAMES, cv=3).mean() > 0.85
    calibrated = CalibratedClassifierCV(classifier("max-margin"), cv=3).fit(X, NAMES)
    np.testing.assert_allclose(calibrated.predict_proba(X).sum(1), 1)


def test_copies():
    fitted = classifier(hinge, hidden=(5,), max_iter=5).fit(X, NAMES)
    assert not hasattr(clone(fitted), "classes_")
    fitted.set_params(hidden=(7,), loss="sln")  # for the next fit
    buffer = io.BytesIO()
    joblib.dump(fitted, buffer)
    buffer.seek(0)
    for copy in (pickle.loads(pickle.dumps(fitted)), joblib.load(buffer)):
        np.testing.assert_array_equal(copy.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.parametrize(
    "options",
    [
        {"loss": "sln", "loss_options": {"gamma": 0.5}, "class_weight": {"setosa": 2.0}},
        {"loss": "logit-adjusted", "head": "normalized", "standardize": False},
        {"hidden": (5,), "head": "batch-norm", "random_state": np.random.RandomState(1), "early_stopping": True},
        {"loss": "torch.nn.MultiMarginLoss", "loss_options": {"margin": 0.5}},
    ],
)
def test_a_folder_without_pickle(tmp_path, options):
    fitted = classifier(**options).fit(X, NAMES)
    fitted.save(tmp_path / "kept")
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["classifier.json", "weights.safetensors"]
    loaded = LastLayerClassifier.load(tmp_path / "kept", trust=["torch.nn"])
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))
    assert loaded.predict(X).tolist() == fitted.predict(X).tolist()
    kept = {**fitted.get_params(), "random_state": loaded.random_state}
    assert loaded.get_params() == kept
    assert (loaded.n_iter_, loaded.loss_curve_) == (fitted.n_iter_, fitted.loss_curve_)
    loaded.partial_fit(X, NAMES)


@pytest.mark.parametrize("labels", [Y, Y.astype(float), Y == 1, NAMES, NAMES.astype(object), Y.astype(np.int8)])
def test_labels_keep_their_type_in_a_folder(tmp_path, labels):
    fitted = classifier(class_weight={labels[0]: 1.5}).fit(X, labels)
    fitted.save(tmp_path)
    loaded = LastLayerClassifier.load(tmp_path)
    assert loaded.classes_.dtype == fitted.classes_.dtype
    assert loaded.predict(X).tolist() == fitted.predict(X).tolist()
    loaded.fit(X, labels)


def test_names_of_features_are_kept(tmp_path):
    fitted = classifier().fit(X, Y)
    fitted.feature_names_in_ = np.array(["a", "b", "c", "d"], dtype=object)
    fitted.save(tmp_path)
    assert LastLayerClassifier.load(tmp_path).feature_names_in_.tolist() == ["a", "b", "c", "d"]


def test_a_loss_of_ones_own_needs_trust(tmp_path):
    fitted = classifier(hinge).fit(X, Y)
    fitted.save(tmp_path)
    with pytest.raises(UntrustedError, match="trust="):
        LastLayerClassifier.load(tmp_path)
    loaded = LastLayerClassifier.load(tmp_path, trust=[__name__])
    np.testing.assert_array_equal(loaded.predict_proba(X), fitted.predict_proba(X))


def test_what_cannot_be_saved(tmp_path):
    for loss in (torch.nn.MultiMarginLoss(), lambda logits, target: hinge(logits, target)):
        with pytest.raises(TypeError, match="cannot be saved"):
            classifier(loss).fit(X, Y).save(tmp_path)
    with pytest.raises(NotFittedError):
        classifier().save(tmp_path)


@pytest.mark.parametrize("name", ["classifier.json", "weights.safetensors"])
def test_a_damaged_folder_is_refused(tmp_path, name):
    classifier().fit(X, Y).save(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DamagedFileError, match=name):
        LastLayerClassifier.load(tmp_path)


@pytest.mark.parametrize("loss", ["batch-ce", hinge])
def test_losses_without_a_value_per_sample_take_no_weights(loss):
    with pytest.raises(ValueError, match="takes no sample_weight"):
        classifier(loss).fit(X, Y, sample_weight=np.ones(len(Y)))
    with pytest.raises(ValueError, match="no class_weight"):
        classifier(loss, class_weight="balanced").fit(X, Y)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"solver": "sgd"}, "'auto', 'lbfgs' or 'adamw', got 'sgd'"),
        ({"solver": "lbfgs", "hidden": (3,)}, "hidden"),
        ({"alpha": -1}, "alpha must be a number >= 0, got -1"),
        ({"max_iter": 0}, "max_iter must be a whole number >= 1, got 0"),
    ],
)
def test_settings_that_are_refused(options, why):
    with pytest.raises(ValueError, match=why):
        classifier(**options).fit(X, Y)


def test_too_few_iterations_are_said():
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        classifier(max_iter=2, tol=1e-10).fit(X, Y)


def test_the_library_does_not_import_scikit_learn():
    code = "import sys, lastlayer, lastlayer.losses, lastlayer.heads; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
