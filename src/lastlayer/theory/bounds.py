"""How close to collapse a nearly optimal loss forces a model to be, with explicit constants (Pan and Cao).

Tests: tests/theory/test_bounds.py.
"""

import math
from dataclasses import dataclass

from lastlayer.theory import minima
from lastlayer.theory.numbers import check_count, check_nonnegative, check_positive, check_share, exp, log1pexp


@dataclass(frozen=True)
class Vacuous:
    """Which of the three bounds say nothing. As a whole it is true if none of them says anything."""

    intra: bool  # the lower bound is not above 0, which every class satisfies
    self_duality: bool  # the lower bound is not above -1
    inter: bool  # the upper bound is not below 1

    def __bool__(self) -> bool:
        return self.intra and self.self_duality and self.inter


@dataclass(frozen=True)
class CollapseBound:
    """Bounds that hold for the stated share of the classes or pairs of classes."""

    intra: float  # lower bound on the mean cosine within a class
    self_duality: float  # lower bound on the cosine between a classifier row and its class mean
    inter: float  # upper bound on the mean cosine between two classes
    alpha_beta: float  # the norm budget for which the bounds were computed
    log_R: float  # logarithm of the constant R, at least C^2 alpha_beta/(C-1)

    @property
    def vacuous(self) -> Vacuous:
        """Which bounds say nothing at these numbers. Read it before the bounds: a vacuous one is no guarantee."""
        return Vacuous(self.intra <= 0.0, self.self_duality <= -1.0, self.inter >= 1.0)


def _log_R(C: int, alpha_beta: float, epsilon: float) -> float:
    """log R = -log of the smallest second derivative of log(1 + (C-1) e^x) over |x| <= C^2 alpha_beta/(C-1)."""
    check_count("C", C, least=3)
    check_positive(alpha_beta=alpha_beta)
    check_nonnegative(epsilon=epsilon)
    reach = C * C * alpha_beta / (C - 1)
    ends = [math.log(C - 1) + x for x in (-reach, reach)]
    return -min(x - 2.0 * log1pexp(x) for x in ends)


def collapse(C: int, alpha_beta: float, epsilon: float, delta: float) -> CollapseBound:
    r"""Collapse forced by a cross-entropy within epsilon of its minimum under norm budgets.

    For at least a share 1 - delta of the classes (pairs for inter), with ab = alpha_beta, s = sqrt(2 epsilon/delta) and
    R = 1/lambda, lambda = min of (C-1)e^x/(1+(C-1)e^x)^2 over |x| <= C^2 ab/(C-1):

    - intra >= 1 - (C-1)/(C ab) sqrt(128 epsilon (1-delta) R/delta)
    - self_duality >= 1 - 2 sqrt(2 epsilon (1-delta) R/delta)
    - inter <= -1/(C-1) + C/(C-1) (R/ab) s + 4 (2 (R/ab) s)^(1/3) + sqrt((R/ab) s)

    R grows like e^(C^2 ab/(C-1)), so the bounds are vacuous at the norms of real networks. The constants are the
    printed ones. The proof does not quite reach them, but they held on every perturbed frame that the tests tried.
    `rigorous_collapse` proves the first two bounds.

    Args:
        C: number of classes, at least 3.
        alpha_beta: product of the norm budgets, above 0.
        epsilon: excess of the loss over `minima.bounded_norms`, at least 0.
        delta: share of classes or pairs left out, in (0, 1).

    Paper: 004, Theorem C.1.
    Tests: tests/theory/test_bounds.py::test_bounds_hold_on_perturbed_frames

    Example:
        >>> bound = collapse(4, 1.0, 1e-9, 0.1)
        >>> round(bound.intra, 4), bool(bound.vacuous)
        (0.9799, False)
        >>> bool(collapse(10, 10.0, 1e-3, 0.1).vacuous)
        True
    """
    check_share(delta=delta)
    log_R = _log_R(C, alpha_beta, epsilon)
    if epsilon == 0.0:
        intra, self_duality, inter = 1.0, 1.0, -1.0 / (C - 1)
    else:
        root = exp(0.5 * (math.log(epsilon * (1.0 - delta) / delta) + log_R))
        intra = 1.0 - (C - 1) / (C * alpha_beta) * math.sqrt(128.0) * root
        self_duality = 1.0 - 2.0 * math.sqrt(2.0) * root
        slack = exp(log_R - math.log(alpha_beta) + 0.5 * math.log(2.0 * epsilon / delta))
        inter = -1.0 / (C - 1) + C / (C - 1) * slack + 4.0 * math.cbrt(2.0 * slack) + math.sqrt(slack)
    return CollapseBound(intra, self_duality, inter, alpha_beta, log_R)


def batch_norm(C: int, lam: float, epsilon: float, delta: float) -> CollapseBound:
    r"""Collapse forced by a loss within epsilon of its minimum, with batch norm without bias and weight decay lam.

    This is `collapse` at alpha_beta = g* + sqrt(2 epsilon/f''(g*)), the largest norm product that such a model can
    have. g* and f'' are those of `minima.penalized_norms` at the price sqrt(C) lam.

    Args:
        C: number of classes, at least 3.
        lam: weight decay, in (0, 1/sqrt C). From 1/sqrt C on, all features are 0 at the minimum.
        epsilon: excess over `minima.regularized_batch_norm`, in [0, lam).
        delta: share of classes or pairs left out, in (0, 1).

    Outside these ranges the theorem states nothing, and ValueError is raised.

    Paper: 004, Theorem C.2, with Proposition C.2's radius corrected and rho's e read as Euler's number.
    Tests: tests/theory/test_bounds.py::test_batch_norm_bound_uses_the_largest_reachable_norm

    Example:
        >>> bound = batch_norm(4, 0.3, 1e-10, 0.1)
        >>> round(bound.alpha_beta, 4), bound.vacuous.intra
        (0.9745, False)
    """
    check_count("C", C, least=3)
    check_share(delta=delta)
    check_share(1.0 / math.sqrt(C), lam=lam)
    if not 0.0 <= epsilon < lam:
        raise ValueError(f"epsilon must lie in [0, lam) = [0, {lam}), got {epsilon}")
    price = math.sqrt(C) * lam
    norm = minima.penalized_norms(C, price).norm + minima.near_optimal_radius(C, price, epsilon)
    return collapse(C, norm, epsilon, delta)


def rigorous_collapse(C: int, alpha_beta: float, epsilon: float, delta: float) -> CollapseBound:
    r"""The first two bounds of `collapse` with a complete proof, for at least a share 1 - 2 delta of the classes.

    g = (C-1) e^{-C ab/(C-1)}, E = log((e^epsilon - 1)(1+g)/g + 1), S = sqrt(2 epsilon (1-delta) R/delta),
    r = (ab - (C-1)/C (E + S)) / (ab + (C-1)/C ((1-delta)/delta E + S)). Then self_duality >= r. If r >= 1/sqrt 2, also
    intra >= (2 r^2 - 1)^2. `inter` is infinite and always vacuous, because the last step of the paper's proof for pairs
    does not hold.

    Args:
        C, alpha_beta, epsilon: as in `collapse`.
        delta: half the share of classes left out, in (0, 1/2).

    Paper: 004, Theorem C.1; the derivation is repaired.
    Tests: tests/theory/test_bounds.py::test_bounds_hold_on_perturbed_frames

    Example:
        >>> bound = rigorous_collapse(4, 1.0, 1e-9, 0.1)
        >>> round(bound.intra, 2), bound.vacuous.inter
        (0.9..., True)
    """
    check_share(0.5, delta=delta)
    log_R = _log_R(C, alpha_beta, epsilon)
    log_g = math.log(C - 1) - C * alpha_beta / (C - 1)
    growth = exp(math.log(math.expm1(epsilon)) + log1pexp(-log_g)) if epsilon > 0 else 0.0
    E = math.log1p(growth)
    S = exp(0.5 * (math.log(2.0 * epsilon * (1.0 - delta) / delta) + log_R)) if epsilon > 0 else 0.0
    share = (C - 1) / C
    if math.isinf(E) or math.isinf(S):
        ratio = -1.0
    else:
        ratio = (alpha_beta - share * (E + S)) / (alpha_beta + share * ((1.0 - delta) / delta * E + S))
    intra = (2.0 * ratio**2 - 1.0) ** 2 if ratio >= math.sqrt(0.5) else 0.0
    return CollapseBound(intra, ratio, math.inf, alpha_beta, log_R)


def subset_mean(epsilon: float, delta: float, modulus: float) -> float:
    r"""How far the mean of a subset can be from the mean of all: sqrt(2 epsilon (1-delta)/(modulus delta)).

    Args:
        epsilon: Jensen gap, mean f(x_i) <= f(mean x) + epsilon, at least 0.
        delta: share of the subset, in (0, 1].
        modulus: strong convexity of f, above 0.

    Paper: 004, Lemma 2.1.
    Tests: tests/theory/test_bounds.py::test_lemmas_on_random_data

    Example:
        >>> round(subset_mean(0.01, 0.5, 1.0), 6)
        0.141421
    """
    check_nonnegative(epsilon=epsilon)
    check_positive(modulus=modulus)
    if not 0.0 < delta <= 1.0:
        raise ValueError(f"delta must lie in (0, 1], got {delta}")
    return math.sqrt(2.0 * epsilon * (1.0 - delta) / (modulus * delta))


def exponential_subset_mean(mean: float, epsilon: float, delta: float) -> float:
    r"""Upper bound on the mean of any subset: mean + sqrt(2 epsilon/(delta e^mean)), for x_i with a small Jensen gap.

    Unlike `subset_mean`, it needs no range for the x_i.

    Args:
        mean: overall mean.
        epsilon: Jensen gap of the exponential, mean e^{x_i} <= e^{mean} + epsilon, at least 0.
        delta: share of the subset, in (0, 1].

    Paper: 004, Lemma C.3.
    Tests: tests/theory/test_bounds.py::test_lemmas_on_random_data

    Example:
        >>> round(exponential_subset_mean(0.0, 0.02, 1.0), 6)
        0.2
    """
    check_nonnegative(epsilon=epsilon)
    if not 0.0 < delta <= 1.0:
        raise ValueError(f"delta must lie in (0, 1], got {delta}")
    return mean + math.sqrt(2.0 * epsilon / delta) * exp(-0.5 * mean)


def unit_mean(projection: float, alpha: float) -> float:
    r"""Lower bound on the norm of the mean of v_i/||v_i||: 2 (projection/alpha)^2 - 1.

    Args:
        projection: mean of <u, v_i> for a unit u, at most alpha and at least alpha/sqrt 2. The lemma states nothing
            below that.
        alpha: quadratic mean of the norms of the v_i, above 0.

    Paper: 004, Lemma C.6.
    Tests: tests/theory/test_bounds.py::test_lemmas_on_random_data

    Example:
        >>> unit_mean(1.0, 1.0)
        1.0
    """
    check_positive(alpha=alpha)
    if not alpha / math.sqrt(2.0) <= projection <= alpha * (1.0 + 1e-12):
        raise ValueError(f"projection must lie in [alpha/sqrt 2, alpha], got {projection} with alpha = {alpha}")
    return 2.0 * (projection / alpha) ** 2 - 1.0


def mean_cosine(product: float, alpha: float, beta: float, epsilon: float) -> float:
    r"""Upper bound on <w, mean of h_i/||h_i||>/beta for a class that w should reject.

    product/(alpha beta) + 4 (epsilon/(alpha beta))^(1/3), for product = <w, mean h> < 0 and
    ||mean h|| >= alpha - epsilon/beta. The paper prints the first term with the opposite sign.

    Args:
        product: <w, mean of h_i>, below 0.
        alpha: quadratic mean of the feature norms, above 0.
        beta: norm of w, above 0.
        epsilon: slack of the mean's norm, at least 0.

    Paper: 004, Lemma C.8, with the sign corrected.
    Tests: tests/theory/test_bounds.py::test_sign_of_lemma_c8

    Example:
        >>> mean_cosine(-0.5, 1.0, 1.0, 0.0)
        -0.5
    """
    check_positive(alpha=alpha, beta=beta)
    check_nonnegative(epsilon=epsilon)
    if product >= 0.0:
        raise ValueError(f"product must be below 0, got {product}")
    return product / (alpha * beta) + 4.0 * math.cbrt(epsilon / (alpha * beta))
