import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.preprocessing import StandardScaler

from lastlayer.sklearn.inputs import Moments, check_room, check_weight, with_class_weight


def table(rows=60, width=5):
    X = np.random.randn(rows, width) * [1, 10, 0.1, 1, 1] + [0, 5, -3, 0, 0]
    X[np.random.rand(rows, width) < 0.4] = 0
    X[:, 3] = 7.3  # constant
    return X, np.random.rand(rows) + 0.1


@pytest.mark.parametrize("sparse", [False, True])
def test_moments_are_those_of_repeated_rows(sparse):
    X, _ = table()
    weight = np.random.randint(1, 4, len(X))
    found = Moments().merged(csr_matrix(X) if sparse else X, weight.astype(float))
    scaler = StandardScaler().fit(np.repeat(X, weight, axis=0))
    np.testing.assert_allclose(found.mean, scaler.mean_, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.squares / found.weight, scaler.var_, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(found.standardized(X), scaler.transform(X), rtol=1e-9, atol=1e-9)


def test_moments_of_parts_are_those_of_the_whole():
    X, weight = table()
    whole, parts = Moments().merged(X, weight), Moments()
    for rows in np.array_split(np.arange(len(X)), [1, 7, 40]):
        parts = parts.merged(X[rows], weight[rows])
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(parts.squares, whole.squares, rtol=1e-9, atol=1e-12)


def test_stored_zeros_count_as_zeros():
    X = csr_matrix((np.array([0.0, 2.0]), np.array([0, 0]), np.array([0, 1, 2, 2])), shape=(3, 1))
    found = Moments().merged(X, np.ones(3))
    np.testing.assert_allclose([found.mean[0], found.squares[0]], [2 / 3, np.var([0, 2, 0]) * 3])


def test_weights_of_samples():
    np.testing.assert_array_equal(check_weight(None, 3), [1, 1, 1])
    np.testing.assert_array_equal(check_weight(2, 2), [2, 2])
    for wrong, why in (([1, 2], "shape"), ([1, -1, 1], ">= 0"), ([1, np.nan, 1], "finite"), ([0, 0, 0], "zero")):
        with pytest.raises(ValueError, match=why):
            check_weight(wrong, 3)


def test_weights_of_classes():
    classes, labels, ones = np.array(["a", "b"]), np.array([0, 0, 0, 1]), np.ones(4)
    assert with_class_weight(None, classes, labels, ones) is ones
    np.testing.assert_allclose(with_class_weight({"b": 5}, classes, labels, ones), [1, 1, 1, 5])
    balanced = with_class_weight("balanced", classes, labels, np.array([1.0, 2.0, 1.0, 2.0]))
    np.testing.assert_allclose([balanced[:3].sum(), balanced[3]], [3, 3])
    with pytest.raises(ValueError, match="class_weight"):
        with_class_weight({"a": 0, "b": 0}, classes, labels, ones)


def test_what_does_not_fit_is_refused_with_its_size(free_memory):
    free_memory(7_999)
    check_room(999, "it", "")
    with pytest.raises(ValueError, match="8,000 bytes, but 7,999 are free: do less"):
        check_room(1000, "it", "do less")
