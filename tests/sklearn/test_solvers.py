import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from lastlayer import losses
from lastlayer.sklearn.model import Model

# the quick form of an objective is compared with the plain one
from lastlayer.sklearn.solvers import Watch, _any_model, _one_layer, batch_of, by_adamw, by_lbfgs, make_adamw, one_epoch

X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
ONES = np.ones(len(Y))
TAKES_LOGITS = [name for name in losses.available() if losses.entry(name).module.takes == ("logits",)]


def solve(model, tol=1e-12, alpha=1.0, weight=ONES):
    return by_lbfgs(model, X, Y, weight, alpha=alpha, steps=500, tol=tol, watch=Watch(model, 0.0, 500))


@pytest.mark.parametrize("name", TAKES_LOGITS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_quick_objective_is_the_plain_one(name, bias):
    if losses.entry(name).module.needed_head is not None or losses.entry(name).module.couples_batch:
        pytest.skip("not one layer")
    model = Model(4, 3, loss=name, head_options={"bias": bias}, counts=[50, 50, 50])
    assert model.is_one_layer()
    inputs, target, weight = torch.from_numpy(X), torch.from_numpy(Y), torch.rand(150, dtype=torch.float64)
    x = np.random.randn(15 if bias else 12)
    (value, gradient), (expected, of_plain) = (
        make(model, inputs, target, weight, 0.7)(x.copy()) for make in (_one_layer, _any_model)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-12)
    np.testing.assert_allclose(gradient, of_plain, rtol=1e-9, atol=1e-12)


def test_lbfgs_finds_what_logistic_regression_finds():
    model = Model(4, 3)
    assert solve(model, alpha=0.5)
    peer = LogisticRegression(C=2.0, tol=1e-10, max_iter=1000).fit(X, Y)
    probabilities = model.loss.probabilities(model.logits(X)).numpy()
    np.testing.assert_allclose(probabilities, peer.predict_proba(X), atol=1e-5)


def test_a_weight_of_two_is_a_row_twice():
    weight = np.random.randint(1, 4, len(Y)).astype(float)
    model, other = Model(4, 3), Model(4, 3)
    other.take(model.tensors())
    solve(model, weight=weight)
    again = np.repeat(np.arange(len(Y)), weight.astype(int))
    watch = Watch(other, 0.0, 500)
    by_lbfgs(other, X[again], Y[again], np.ones(len(again)), alpha=1.0, steps=500, tol=1e-12, watch=watch)
    torch.testing.assert_close(model.logits(X), other.logits(X), rtol=1e-4, atol=1e-4)


def test_lbfgs_says_whether_it_has_converged():
    model = Model(4, 3)
    assert not by_lbfgs(model, X, Y, ONES, alpha=1.0, steps=2, tol=1e-12, watch=Watch(model, 0.0, 500))


def test_adamw_comes_near_the_minimum_of_lbfgs():
    exact, model = Model(4, 3), Model(4, 3)
    solve(exact)
    watch = Watch(model, 0.0, 1000)
    by_adamw(model, X, Y, ONES, alpha=1.0, epochs=150, batch=50, rate=0.05, watch=watch)
    watch.finish()
    torch.testing.assert_close(model.logits(X).softmax(1), exact.logits(X).softmax(1), atol=0.02, rtol=0)
    assert len(watch.curve) == 150
    assert watch.curve[-1] < watch.curve[0]


def test_an_epoch_that_diverges_says_what_to_do():
    model = Model(4, 3, loss="mse")
    optimiser = torch.optim.SGD(model.parameters(), lr=1e200)
    with pytest.raises(ValueError, match="smaller learning_rate"):
        one_epoch(model, optimiser, X, Y, ONES, alpha=1.0, batch=10, total=150.0)


def test_rates_and_batches():
    rate = losses.entry("sln").module.probe_rate
    assert make_adamw(Model(4, 3, loss="sln"), None).param_groups[0]["lr"] == rate
    assert make_adamw(Model(4, 3, loss="sln", hidden=(5,)), None).param_groups[0]["lr"] < rate
    assert [batch_of(rows, None) for rows in (50, 1_000, 16_000, 10**6)] == [50, 64, 200, 1024]
    assert batch_of(50, 20) == 20


def test_watch_stops_when_nothing_improves():
    watch = Watch(Model(4, 3), tol=0.1, patience=2)
    assert [watch.stops(value) for value in (5.0, 4.0, 3.95, 3.92, 3.0)] == [False, False, False, True, False]


def test_watch_keeps_the_best_on_rows_held_out():
    """Rows of zeros, whose logits are the bias: all are told to be of one class."""
    model, labels = Model(4, 3), np.repeat([0, 1, 2], [2, 5, 3])
    watch = Watch(model, tol=0.0, patience=2, validation=(np.zeros((10, 4)), labels))
    stopped = []
    for bias in ([1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 2, 0]):
        with torch.no_grad():
            model.head.bias.copy_(torch.tensor(bias))
        stopped.append(watch.stops(1.0))
    assert stopped == [False, False, False, True]
    np.testing.assert_allclose(watch.scores, [0.2, 0.5, 0.3, 0.5])
    watch.finish()
    assert model.head.bias.tolist() == [0, 1, 0]
