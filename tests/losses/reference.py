"""The losses from their formulas, one sample and one class at a time, in 80 digits. The reduction is done by loops."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mpmath as mp
import numpy as np

mp.mp.dps = 80  # a loss of 1e-50 may be the difference of two numbers near 1

Row = Sequence[float]
PerClass = Callable[[Row, int], float]  # L_k(z)


def exact(row: Row) -> list:
    return [mp.mpf(float(value)) for value in row]


def softplus(x):
    return mp.log(1 + mp.exp(x))


def log_sum_exp(z):
    return mp.log(mp.fsum(mp.exp(value) for value in z))


def softmax(z):
    total = mp.fsum(mp.exp(value) for value in z)
    return [mp.exp(value) / total for value in z]


def cross_entropy(temperature=1.0) -> PerClass:
    def loss(row, k):
        z = [value / mp.mpf(temperature) for value in exact(row)]
        return float(log_sum_exp(z) - z[k])

    return loss


def focal(gamma) -> PerClass:
    def loss(row, k):
        p = softmax(exact(row))[k]
        return float(-((1 - p) ** mp.mpf(gamma)) * mp.log(p))

    return loss


def mse(kappa, beta) -> PerClass:
    def loss(row, k):
        z = exact(row)
        return float(kappa * (z[k] - beta) ** 2 + mp.fsum(z[j] ** 2 for j in range(len(z)) if j != k))

    return loss


def binary_cross_entropy(row, target, pos_weight=None) -> float:
    """sum_j [a_j t_j softplus(-z_j) + (1 - t_j) softplus(z_j)] for any t in [0, 1]^K."""
    z, t = exact(row), exact(target)
    a = exact(pos_weight) if pos_weight is not None else [1] * len(z)
    return float(mp.fsum(a[j] * t[j] * softplus(-z[j]) + (1 - t[j]) * softplus(z[j]) for j in range(len(z))))


def one_hot(k, num_classes):
    return [1.0 if j == k else 0.0 for j in range(num_classes)]


def soft_logit_norm(gamma, tau) -> PerClass:
    def loss(row, k):
        z = exact(row)
        norm = mp.sqrt(mp.fsum(value**2 for value in z))
        if norm == 0:
            return math.log(len(z))
        s = [value / (mp.mpf(tau) * norm ** mp.mpf(gamma)) for value in z]
        return float(log_sum_exp(s) - s[k])

    return loss


def max_margin(margin) -> PerClass:
    def loss(row, k):
        z = exact(row)
        return float(max(mp.mpf(0), margin - z[k] + max(z[j] for j in range(len(z)) if j != k)))

    return loss


def self_norm(alpha) -> PerClass:
    def loss(row, k):
        z = exact(row)
        return float(log_sum_exp(z) - z[k] + mp.mpf(alpha) * log_sum_exp(z) ** 2)

    return loss


def nce(t, noise, include_target=True, drawn=None) -> PerClass:
    def loss(row, k):
        z = exact(row)
        q = [mp.mpf(1) / len(z)] * len(z) if noise is None else exact(noise)

        def g(j):
            return 1 / (1 + mp.exp(-(z[j] - mp.log(t * q[j])))) if q[j] else mp.mpf(1)

        if drawn is not None:
            labels = [j for j in drawn if include_target or j != k]
            return float(-mp.log(g(k)) - mp.fsum(mp.log(1 - g(j)) for j in labels))
        labels = [j for j in range(len(z)) if q[j] and (include_target or j != k)]
        return float(-mp.log(g(k)) - t * mp.fsum(q[j] * mp.log(1 - g(j)) for j in labels))

    return loss


def soft_margin(margin) -> PerClass:
    def loss(row, k):
        z = exact(row)
        z[k] -= mp.mpf(margin)
        return float(log_sum_exp(z) - z[k])

    return loss


def arc_margin(margin, scale) -> PerClass:
    def loss(row, k):
        c = exact(row)
        theta, m = mp.acos(min(max(c[k], mp.mpf(-1)), mp.mpf(1))), mp.mpf(margin)
        c[k] = mp.cos(theta + m) if theta <= mp.pi - m else mp.cos(theta) - m * mp.sin(m)
        z = [mp.mpf(scale) * value for value in c]
        return float(log_sum_exp(z) - z[k])

    return loss


def psi(theta, m):
    """(-1)^k cos(m theta) - 2k on [k pi / m, (k + 1) pi / m]."""
    k = min(int(mp.floor(theta * m / mp.pi)), m - 1)
    return (-1) ** k * mp.cos(m * theta) - 2 * k


def large_margin(classifier, margin, lam) -> PerClass:
    W = [exact(row) for row in classifier]

    def loss(row, k):
        h = exact(row)
        z = [mp.fsum(a * b for a, b in zip(w, h, strict=True)) for w in W]
        norms = mp.sqrt(mp.fsum(a * a for a in W[k])) * mp.sqrt(mp.fsum(a * a for a in h))
        if norms:
            margined = norms * psi(mp.acos(min(max(z[k] / norms, mp.mpf(-1)), mp.mpf(1))), margin)
            z[k] = (mp.mpf(lam) * z[k] + margined) / (1 + mp.mpf(lam))
        return float(log_sum_exp(z) - z[k])

    return loss


def logit_adjusted(counts, tau) -> PerClass:
    total = mp.fsum(exact(counts))

    def loss(row, k):
        z = [value + mp.mpf(tau) * mp.log(n / total) for value, n in zip(exact(row), exact(counts), strict=True)]
        return float(log_sum_exp(z) - z[k])

    return loss


def distillation(teacher, temperature, alpha) -> PerClass:
    T = mp.mpf(temperature)

    def loss(row, k):
        z = exact(row)
        p = softmax([value / T for value in z])
        q = softmax([value / T for value in exact(teacher)])
        divergence = mp.fsum(b * mp.log(b / a) for a, b in zip(p, q, strict=True))
        return float(mp.mpf(alpha) * T**2 * divergence + (1 - mp.mpf(alpha)) * (log_sum_exp(z) - z[k]))

    return loss


def batch_cross_entropy(rows, targets) -> float:
    """-log m + LSE(all logits) - (1/m) sum_i sum_k t_ik z_ik."""
    z = [exact(row) for row in rows]
    every = [value for row in z for value in row]
    true = mp.fsum(
        t * value for row, target in zip(z, targets, strict=True) for value, t in zip(row, target, strict=True)
    )
    return float(-mp.log(len(z)) + log_sum_exp(every) - true / len(z))


def batch_max_margin(rows, labels, margin=1.0, sample_term=True) -> float:
    true = [row[y] for row, y in zip(rows, labels, strict=True)]
    false = [[row[j] for j in range(len(row)) if j != y] for row, y in zip(rows, labels, strict=True)]
    worst = max(0.0, margin - min(true) + max(max(others) for others in false))
    hinges = sum(max(0.0, margin - t + max(others)) for t, others in zip(true, false, strict=True))
    return (worst + (hinges if sample_term else 0.0)) / len(rows)


def per_class_matrix(rows: np.ndarray, loss: PerClass) -> np.ndarray:
    """L_k of every sample and class, (N, K)."""
    return np.array([[loss(row, k) for k in range(len(row))] for row in rows]).reshape(rows.shape)


def reduce(
    matrix: np.ndarray,
    target,
    *,
    weight=None,
    smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: str = "mean",
):
    """sum_k t_k w_k L_k by loops, and torch's mean. `target` is labels (N,) or probabilities (N, K)."""
    target = np.asarray(target)
    num_classes = matrix.shape[1]
    w = np.ones(num_classes) if weight is None else np.asarray(weight, dtype=float)
    per_sample, divisor = [], 0.0
    for n in range(matrix.shape[0]):
        if target.ndim == 1 and target[n] == ignore_index:
            per_sample.append(0.0)
            continue
        t = np.eye(num_classes)[target[n]] if target.ndim == 1 else target[n]
        divisor += w[target[n]] if target.ndim == 1 else 1.0
        t = (1 - smoothing) * t + smoothing / num_classes
        per_sample.append(math.fsum(t[k] * w[k] * matrix[n, k] for k in range(num_classes)))
    if reduction == "none":
        return np.array(per_sample)
    total = math.fsum(per_sample)
    if reduction == "sum":
        return total
    return total / divisor if divisor else math.nan


def mixed(first, second, lam, num_classes) -> np.ndarray:
    """lam e_a + (1 - lam) e_b, (N, K)."""
    lam = np.broadcast_to(np.asarray(lam, dtype=float), (len(first),))
    eye = np.eye(num_classes)
    return np.array([lam[n] * eye[first[n]] + (1 - lam[n]) * eye[second[n]] for n in range(len(first))])
