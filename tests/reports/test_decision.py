"""The decision against closed forms, scipy's tests and simulated comparisons of which the truth is known."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtri

from lastlayer.reports.decision import Decision, Noise, critical_value, decide, of_draws, of_rows, of_shares, over_folds

Array = NDArray[Any]
CLASSES = 5


def no_noise(runs: int) -> Noise:
    """A test set so large that it has no noise."""
    return Noise(np.zeros((runs, runs)), math.inf, 10**9)


# the critical value


@pytest.mark.parametrize(
    ("rivals", "freedom", "value"),
    [(2, 10, 2.15), (4, 10, 2.47), (9, 10, 2.81), (3, 20, 2.19), (9, 20, 2.60), (2, 1e9, 1.92), (9, 1e9, 2.42)],
)
def test_dunnetts_table(rivals: int, freedom: float, value: float) -> None:
    """One-sided at 5 %, as printed by Dunnett (1955)."""
    assert critical_value(rivals, freedom, 0.95) == pytest.approx(value, abs=0.0051)


@pytest.mark.parametrize(("rivals", "freedom"), [(1, 2), (3, 4), (8, 12)])
def test_critical_value_by_drawing(rivals: int, freedom: int) -> None:
    rng = np.random.default_rng(0)
    own, others = rng.standard_normal((200_000, 1)), rng.standard_normal((200_000, rivals))
    error = np.sqrt(rng.chisquare(freedom, (200_000, 1)) / freedom)
    largest = ((own - others) / math.sqrt(2) / error).max(1)
    assert (largest > critical_value(rivals, freedom)).mean() == pytest.approx(0.025, abs=0.002)


# one decision


@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0.0, 3.0))
def test_two_losses_without_test_noise_are_the_t_test(seed: int, seeds: int, gap: float) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((2, seeds))
    found = decide([*(a + gap), *b], ["a"] * seeds + ["b"] * seeds, no_noise(2 * seeds))
    p = stats.ttest_ind(a + gap, b).pvalue
    assert found.is_sure == (p < 0.05) or abs(p - 0.05) < 1e-6
    (rival,) = found.rivals.values()
    assert rival.freedom == pytest.approx(2 * seeds - 2)
    assert found.spread == pytest.approx(math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2))


def test_seeds_that_agree_leave_the_paired_test_over_rows() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 4000)) < [[0.75], [0.70]]
    losses = ["a", "a", "b", "b"]
    rows = np.stack([a, a, b, b]).astype(float)
    found = decide(rows.mean(1).tolist(), losses, of_rows(rows, losses))
    expected = stats.ttest_rel(a.astype(float), b.astype(float))
    rival = found.rivals["b"]
    assert rival.gap / rival.error == pytest.approx(float(expected.statistic), rel=1e-3)
    assert rival.freedom == pytest.approx(3999, rel=0.01)
    assert rival.from_training == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("only_one", range(3, 9))
def test_few_rows_that_differ_show_what_the_exact_test_shows(only_one: int) -> None:
    """Of thirty rows some are right for the first loss alone. The seeds agree, so that only rows speak."""
    rows = np.ones((4, 30))
    rows[2:, :only_one] = 0
    found = decide(rows.mean(1).tolist(), ["a", "a", "b", "b"], of_rows(rows, ["a", "a", "b", "b"]))
    exact = stats.binomtest(only_one, only_one).pvalue
    assert found.is_sure == (exact < 0.05)


def test_one_seed_shows_nothing() -> None:
    rows = np.stack([np.ones(1000), np.zeros(1000)])
    found = decide([1.0, 0.0], ["a", "b"], of_rows(rows, ["a", "b"]))
    assert not found.is_sure
    assert found.not_worse == ["a", "b"]
    assert math.isnan(found.spread)
    assert found.rivals["b"].interval == (-math.inf, math.inf)


def test_a_loss_with_one_seed_is_judged_by_the_spread_of_the_others() -> None:
    values = [0.90, 0.91, 0.92, 0.50]
    found = decide(values, ["a", "a", "a", "b"], no_noise(4))
    assert found.is_sure
    assert found.seeds == 1
    assert found.rivals["b"].error == pytest.approx(0.01 * math.sqrt(1 / 3 + 1))


def test_a_loss_that_trains_unsteadily_does_not_blur_the_others() -> None:
    """Three losses of which two are steady: these are compared by Welch's test of their own seeds."""
    steady, behind, wild = [0.951, 0.952, 0.950], [0.930, 0.931, 0.9325], [0.94, 0.70, 0.95]
    losses = ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    found = decide([*steady, *behind, *wild], losses, no_noise(9))
    welch = stats.ttest_ind(steady, behind, equal_var=False)
    rival = found.rivals["b"]
    assert rival.gap / rival.error == pytest.approx(float(welch.statistic))
    assert rival.freedom == pytest.approx(float(welch.df))
    assert found.not_worse == ["a", "c"]
    for name, values in (("a", steady), ("c", wild)):
        expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
        assert found.intervals[name] == pytest.approx(expected)


def test_on_folds_an_unsteady_loss_does_not_blur_the_others() -> None:
    steady, behind, wild = [0.951, 0.960, 0.955], [0.930, 0.938, 0.9345], [0.94, 0.70, 0.95]
    losses, folds = ["a"] * 3 + ["b"] * 3 + ["c"] * 3, [0, 1, 2] * 3
    found = decide([*steady, *behind, *wild], losses, no_noise(9), folds=folds)
    paired = stats.ttest_rel(steady, behind)
    rival = found.rivals["b"]
    assert rival.gap / rival.error == pytest.approx(float(paired.statistic))
    assert rival.freedom == pytest.approx(2)
    assert found.not_worse == ["a", "c"]


def test_seeds_that_agree_but_for_rounding_can_be_compared() -> None:
    values = [0.9, 0.9 + 1e-17, 0.9, 0.8, 0.8, 0.8 + 1e-16, 0.7, 0.72, 0.71]
    rows = (np.arange(1000) < 1000 * np.array(values)[:, None]).astype(float)
    losses = ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert decide(values, losses, of_rows(rows, losses)).is_sure
    assert decide([0.9] * 9, losses, of_rows(np.repeat(rows[:1], 9, 0), losses)).not_worse == ["a", "b", "c"]


def test_losses_that_spread_alike_share_one_variance() -> None:
    rng = np.random.default_rng(0)
    values, losses = rng.normal(0, 1, 9), ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert stats.bartlett(*values.reshape(3, 3)).pvalue > 0.05
    pooled = math.sqrt(values.reshape(3, 3).var(1, ddof=1).mean() * 2 / 3)
    assert {round(rival.error, 9) for rival in decide(values.tolist(), losses, no_noise(9)).rivals.values()} == {
        round(pooled, 9)
    }


def test_lower_is_better() -> None:
    values, losses = [0.1, 0.11, 0.5, 0.52], ["a", "a", "b", "b"]
    found = decide(values, losses, no_noise(4), higher_is_better=False)
    assert (found.best, found.is_sure) == ("a", True)
    turned = decide([-v for v in values], losses, no_noise(4))
    assert found.rivals == turned.rivals


def test_the_order_of_runs_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    losses = ["a", "b", "c"] * 3
    rows = (rng.random((9, 300)) < 0.8).astype(float)
    classes = rng.integers(0, 3, 300)
    order = rng.permutation(9)
    one = decide(rows.mean(1).tolist(), losses, of_rows(rows, losses, classes))
    moved = [losses[i] for i in order]
    other = decide(rows[order].mean(1).tolist(), moved, of_rows(rows[order], moved, classes))
    assert one.best == other.best
    for name, rival in one.rivals.items():
        assert other.rivals[name].error == pytest.approx(rival.error)
        assert other.rivals[name].critical == pytest.approx(rival.critical)


def test_losses_shown_to_be_worse_are_left_out() -> None:
    found = decide([0.9, 0.91, 0.905, 0.9, 0.5, 0.51], ["a", "a", "b", "b", "c", "c"], no_noise(6))
    assert found.not_worse == ["a", "b"]
    assert not found.is_sure


@pytest.mark.parametrize("rows", [True, False])
def test_more_rows_or_seeds_that_would_tell(rows: bool) -> None:
    """With that much less noise the gap is as many standard errors as a power of 80 % takes."""
    rng = np.random.default_rng(1)
    right = (rng.random((4, 400)) < [[0.80], [0.80], [0.79], [0.79]]).astype(float)
    losses = ["a", "a", "b", "b"]
    values = [0.80, 0.8002, 0.79, 0.7902] if rows else [0.82, 0.80, 0.78, 0.80]
    noise = of_rows(right, losses) if rows else Noise(np.eye(4) * 1e-9, 1e4, 400)
    (rival,) = decide(values, losses, noise).rivals.values()
    factor = rival.factor(rows=rows)
    assert 1 < factor < math.inf
    from_rows, from_training = rival.from_rows, rival.from_training
    variance = from_rows / factor + from_training if rows else from_rows + from_training / factor
    assert rival.gap / math.sqrt(variance) == pytest.approx(rival.critical + float(ndtri(0.8)))


def test_more_seeds_on_further_folds_bring_more_rows_but_their_training_sets_overlap() -> None:
    losses, folds = ["a"] * 3 + ["b"] * 3, [0, 1, 2] * 2
    noise = Noise(np.eye(6) * 1e-4, 1e4, 300)
    values = [0.82, 0.84, 0.83, 0.79, 0.79, 0.81]
    (rival,) = decide(values, losses, noise, folds=folds, overlap=0.25).rivals.values()
    assert rival.lasting == pytest.approx(rival.from_training * 0.5 / (2 / 3 + 0.5))
    factor = rival.factor(rows=False)
    error = rival.gap / (rival.critical + float(ndtri(0.8)))
    shrinks = rival.from_rows + rival.from_training - rival.lasting
    assert 1 < factor < rival.factor(rows=True)
    assert math.sqrt(shrinks / factor + rival.lasting) == pytest.approx(error)


def test_no_number_of_rows_overcomes_the_noise_of_training() -> None:
    (rival,) = decide([0.8, 0.9, 0.7, 0.85], ["a", "a", "b", "b"], no_noise(4)).rivals.values()
    assert rival.factor(rows=True) == math.inf


@pytest.mark.parametrize(
    ("values", "losses"), [([], []), ([0.5, math.nan], ["a", "b"]), ([0.5, 0.6], ["a"]), ([0.5], ["a"])]
)
def test_what_cannot_be_compared(values: list[float], losses: list[str]) -> None:
    with pytest.raises(ValueError, match=r"finite values|do not fit"):
        decide(values, losses, no_noise(2))


# the noise of the test set


def test_noise_of_a_mean_is_that_of_resampled_rows() -> None:
    rng = np.random.default_rng(0)
    base = rng.random(2000)
    rows = (base < [[0.8], [0.85], [0.5]]).astype(float)
    drawn = rng.integers(0, 2000, (4000, 2000))
    by_draws = of_draws(np.stack([row[drawn].mean(1) for row in rows]), 2000).covariance
    assert np.allclose(of_rows(rows, ["a", "b", "c"]).covariance, by_draws, rtol=0.1, atol=2e-6)


def test_noise_of_a_mean_over_classes_is_that_of_rows_resampled_in_each_class() -> None:
    rng = np.random.default_rng(0)
    classes = np.repeat([0, 1, 2], [1500, 400, 100])
    rows = (rng.random(2000) < np.array([[0.8], [0.9]])).astype(float)
    draws = np.zeros((2, 4000))
    for k in range(3):
        part = rows[:, classes == k]
        drawn = rng.integers(0, part.shape[1], (4000, part.shape[1]))
        draws += np.stack([row[drawn].mean(1) for row in part]) / 3
    by_draws = of_draws(draws, 2000).covariance
    assert np.allclose(of_rows(rows, ["a", "b"], classes).covariance, by_draws, rtol=0.15, atol=1e-5)


def test_a_class_of_one_row_leaves_room_for_doubt() -> None:
    """In the rare class one loss is right and the other is wrong, with every seed: that is one row."""
    classes = np.array([0] * 500 + [1])
    rows = np.ones((4, 501))
    rows[2:, 500] = 0
    losses = ["a", "a", "b", "b"]
    balanced = [1.0, 1.0, 0.5, 0.5]
    found = decide(balanced, losses, of_rows(rows, losses, classes))
    assert not found.is_sure


def test_folds_share_no_noise() -> None:
    rng = np.random.default_rng(0)
    losses, folds = ["a", "a", "b", "b"], [0, 1, 0, 1]
    rows = (rng.random((4, 50)) < 0.8).astype(float)
    parts = {fold: of_rows(rows[fold::2], ["a", "b"]) for fold in (0, 1)}
    noise = over_folds(parts, folds)
    assert noise.covariance[0, 1] == noise.covariance[0, 3] == 0
    assert noise.covariance[0, 2] == parts[0].covariance[0, 1]
    assert noise.rows == 100
    assert decide(rows.mean(1).tolist(), losses, noise, folds=folds, overlap=0.25).rivals


def test_noise_of_shares_is_binomial_and_is_shared_by_the_seeds_of_a_loss() -> None:
    noise = of_shares([0.5, 0.5, 1.0], ["a", "a", "b"], 100)
    assert noise.covariance[:2, :2] == pytest.approx(np.full((2, 2), 0.5 * 0.5 / 100))
    assert noise.covariance[0, 2] == 0
    assert noise.covariance[2, 2] == pytest.approx(101 / 102 / 102 / 100)


def test_the_interval_of_one_loss_is_that_of_the_t_test() -> None:
    values = [0.90, 0.93, 0.91, 0.95, 0.92]
    found = decide(values, ["a"] * 5, no_noise(5))
    low, high = stats.t.interval(0.95, 4, np.mean(values), stats.sem(values))
    assert found.intervals["a"] == pytest.approx((low, high))
    rows = (np.arange(400) < 300).astype(float)[None]
    (low, high) = decide([0.75], ["a"], of_rows(rows, ["a"])).intervals["a"]  # one seed: the test set alone
    assert (low, high) == pytest.approx(stats.t.interval(0.95, 399, 0.75, stats.sem(rows[0])), abs=3e-3)


# simulated comparisons


def simulate(
    rng: np.random.Generator,
    latent: Array,
    seeds: int,
    samples: int,
    *,
    skew: float = 1.0,
    spread: float = 0.05,
    own: float = 0.45,
    folds: bool = False,
) -> tuple[Array, Array]:
    """Which rows each loss and seed gets right, (L, S, N), and the class of each row.

    A row is right if a sum of normal numbers is positive: how easy the row is, how well it suits the loss, how good
    the network of this seed is (for each class, if classes are skewed), and what is left.
    """
    share = np.geomspace(skew, 1, CLASSES)
    sizes = np.maximum(1, np.round(share / share.sum() * samples).astype(int))
    classes = np.repeat(np.arange(CLASSES), sizes)
    n, losses = len(classes), len(latent)
    easy = rng.normal(0, 1, (seeds if folds else 1, n))
    suits = rng.normal(0, own, (losses, seeds if folds else 1, n))
    network = rng.normal(0, spread, (losses, seeds, 1))
    if skew > 1:
        network = network + rng.normal(0, 2 * spread, (losses, seeds, CLASSES))[:, :, classes]
    left = rng.normal(0, 0.3, (losses, seeds, n))
    return (latent[:, None, None] + easy + suits + network + left > 0).astype(float), classes


def decided(right: Array, classes: Array, *, balanced: bool, folds: bool = False, old: bool = False) -> Decision:
    losses, seeds, _ = right.shape
    names = [str(i) for i in range(losses) for _ in range(seeds)]
    runs = right.reshape(losses * seeds, -1)
    groups = classes if balanced else None
    by_class = [runs[:, classes == k].mean(1) for k in range(CLASSES)]
    values = np.mean(by_class, axis=0) if balanced else runs.mean(1)
    if old:
        return decide(values.tolist(), names, of_shares(values.tolist(), names, runs.shape[1]))
    if not folds:
        return decide(values.tolist(), names, of_rows(runs, names, groups))
    fold = [s for _ in range(losses) for s in range(seeds)]
    parts = {s: of_rows(right[:, s], names[::seeds], groups) for s in range(seeds)}
    return decide(values.tolist(), names, over_folds(parts, fold), folds=fold, overlap=0.25)


def latent_of(accuracies: list[float], own: float = 0.45) -> Array:
    return ndtri(np.array(accuracies)) * math.sqrt(1 + own**2 + 0.3**2)


def share_of_single_winners(repeats: int, losses: int, seeds: int, samples: int, **options: Any) -> float:
    rng = np.random.default_rng(losses * 1000 + seeds)
    balanced, old, folds = options.pop("balanced", False), options.pop("old", False), options.get("folds", False)
    found = 0
    for _ in range(repeats):
        right, classes = simulate(rng, latent_of([0.93] * losses), seeds, samples, **options)
        found += decided(right, classes, balanced=balanced, folds=folds, old=old).is_sure
    return found / repeats


def within_five_percent(share: float, repeats: int) -> bool:
    """At most 5 %, or more by less than three standard errors of the simulation."""
    return share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / repeats)


@pytest.mark.parametrize(
    ("losses", "seeds", "samples", "options"),
    [
        (2, 2, 1000, {"spread": 0.15}),  # the hardest case: two seeds, whose noise is as large as that of the rows
        (2, 3, 300, {}),
        (2, 10, 1000, {}),
        (6, 3, 300, {}),
        (2, 3, 30, {}),
        (2, 3, 1000, {"skew": 50.0, "balanced": True}),
        (2, 2, 300, {"skew": 50.0}),
        (2, 3, 300, {"folds": True}),
        (2, 3, 300, {"old": True}),
    ],
)
def test_equal_losses_have_no_single_winner(losses: int, seeds: int, samples: int, options: dict[str, Any]) -> None:
    assert within_five_percent(share_of_single_winners(400, losses, seeds, samples, **options), 400)


def test_equal_losses_of_unlike_spread_have_no_single_winner() -> None:
    """Five losses, one of which varies ten times as much from seed to seed."""
    rng, repeats, found = np.random.default_rng(0), 1000, 0
    losses, scale = [str(i) for i in range(5) for _ in range(3)], np.repeat([10.0, 1, 1, 1, 1], 3)
    for _ in range(repeats):
        found += decide((rng.normal(0, 0.001, 15) * scale).tolist(), losses, no_noise(15)).is_sure
    assert within_five_percent(found / repeats, repeats)


@pytest.mark.parametrize(("seeds", "samples", "spread"), [(2, 200, 0.05), (3, 200, 0.2), (5, 300, 0.1)])
def test_overlapping_training_sets_name_no_single_winner(seeds: int, samples: int, spread: float) -> None:
    """A fifth of the variance of training is common to all folds, as Nadeau and Bengio (2003) take it."""
    rng, repeats, found = np.random.default_rng(1), 300, 0
    for _ in range(repeats):
        common = rng.normal(0, spread * math.sqrt(0.2), 2)
        right, classes = simulate(
            rng, latent_of([0.93] * 2) + common, seeds, samples, spread=spread * math.sqrt(0.8), folds=True
        )
        found += decided(right, classes, balanced=False, folds=True).is_sure
    assert within_five_percent(found / repeats, repeats)


def test_seeds_that_agree_on_folds_have_the_degrees_of_freedom_of_their_number() -> None:
    """The spread is smaller than the rows explain. So it is the paired test on three folds, and no weaker one."""
    losses, folds = ["a"] * 3 + ["b"] * 3, [0, 1, 2] * 2
    noise = Noise(np.eye(6) * 4.2e-4, 300, 300)
    (rival,) = decide(
        [0.828, 0.804, 0.864, 0.671, 0.656, 0.734], losses, noise, folds=folds, overlap=0.25
    ).rivals.values()
    assert rival.from_training == 0
    assert rival.freedom == pytest.approx(2)


def test_folds_that_are_dealt_anew_name_no_single_winner_either() -> None:
    """Ten seeds: the last five test on the same rows as the first five, in other folds."""
    rng = np.random.default_rng(0)
    seeds, samples, repeats, found = 10, 300, 200, 0
    names = [str(i) for i in range(2) for _ in range(seeds)]
    for _ in range(repeats):
        easy, suits = rng.normal(0, 1, samples), rng.normal(0, 0.45, (2, samples))
        parts, values = {}, np.zeros((2, seeds))
        deals = [rng.permutation(samples) for _ in range(seeds // 5)]
        for seed in range(seeds):
            rows = deals[seed // 5][seed % 5 :: 5]
            network, left = rng.normal(0, 0.05, (2, 1)), rng.normal(0, 0.3, (2, len(rows)))
            right = (latent_of([0.93]) + easy[rows] + suits[:, rows] + network + left > 0).astype(float)
            parts[seed], values[:, seed] = of_rows(right, ["0", "1"]), right.mean(1)
        fold = [*range(seeds), *range(seeds)]
        found += decide(values.ravel().tolist(), names, over_folds(parts, fold), folds=fold, overlap=0.25).is_sure
    assert within_five_percent(found / repeats, repeats)


@pytest.mark.thorough
@pytest.mark.parametrize(("balanced", "skew"), [(False, 1.0), (True, 1.0), (False, 50.0), (True, 50.0)])
@pytest.mark.parametrize(("losses", "seeds"), [*itertools.product((2, 10), (2, 3, 10))])
@pytest.mark.parametrize(("samples", "repeats"), [(30, 1000), (100, 1000), (1000, 1000), (10_000, 100)])
@pytest.mark.parametrize("spread", [0.02, 0.15])
def test_equal_losses_have_no_single_winner_anywhere(
    losses: int, seeds: int, samples: int, repeats: int, balanced: bool, skew: float, spread: float
) -> None:
    share = share_of_single_winners(repeats, losses, seeds, samples, balanced=balanced, skew=skew, spread=spread)
    assert within_five_percent(share, repeats)


@pytest.mark.parametrize(
    ("accuracies", "samples", "own", "repeats", "least"),
    [([0.94, 0.90], 1000, 0.7, 300, 0.80), ([0.97, 0.95], 10_000, 0.7, 100, 0.95)],
)
def test_a_clear_difference_is_named(
    accuracies: list[float], samples: int, own: float, repeats: int, least: float
) -> None:
    """Three seeds with a spread of 0.003; about a tenth of the rows are answered differently by the two losses."""
    share, different = share_named(accuracies, samples, own, repeats)
    assert different > (0.095 if samples == 1000 else 0.05)
    assert share >= least


def share_named(accuracies: list[float], samples: int, own: float, repeats: int) -> tuple[float, float]:
    """How often the first of two losses is named the single best, and how many rows they answer differently."""
    rng = np.random.default_rng(0)
    latent = latent_of(accuracies, own)
    slope = np.exp(-(ndtri(accuracies[0]) ** 2) / 2) / math.sqrt(2 * math.pi) / math.sqrt(1 + own**2 + 0.3**2)
    named = different = 0.0
    for _ in range(repeats):
        right, classes = simulate(rng, latent, 3, samples, spread=0.003 / slope, own=own)
        found = decided(right, classes, balanced=False)
        named += found.is_sure and found.best == "0"
        different += (right[0, 0] != right[1, 0]).mean()
    return named / repeats, different / repeats


def table() -> None:
    """Print how often a single winner is named, as docs/answer.md shows it."""
    print("Equal losses, three seeds, five classes: share of comparisons in which a single winner is named")
    print("rows".rjust(7), *(f"{losses} losses".rjust(10) for losses in (2, 6, 10)), "balanced, 50:1".rjust(15))
    for samples, repeats in ((30, 2000), (300, 2000), (1000, 2000), (10_000, 1000)):
        shares = [share_of_single_winners(repeats, losses, 3, samples) for losses in (2, 6, 10)]
        skewed = share_of_single_winners(repeats, 2, 3, samples, skew=50.0, balanced=True)
        print(f"{samples:>7,}", *(f"{share:>10.1%}" for share in shares), f"{skewed:>15.1%}")
    print("Two losses, 1,000 rows: the same by the number of seeds")
    for seeds in (2, 3, 5, 10):
        shares = [share_of_single_winners(1000, 2, seeds, 1000, spread=spread) for spread in (0.02, 0.15)]
        print(f"{seeds:>7} seeds", *(f"{share:>10.1%}" for share in shares))
    print("0.94 against 0.90, spread of seeds 0.003, three seeds: share in which the better one is named")
    for samples in (300, 1000, 3000):
        print(f"{samples:>7,} rows {share_named([0.94, 0.90], samples, 0.7, 300)[0]:>10.1%}")


if __name__ == "__main__":
    table()
