"""The claims of 001 on made-up numbers, its computations against the truth, its artifacts at smoke size."""

import itertools
import math
from pathlib import Path

import pytest
import torch

import lastlayer
from lastlayer import data, theory
from lastlayer.papers import Record, Store, artifact, artifacts, figure, judge, published, reproduce
from lastlayer.papers.equal_losses.theory import curvature, focal_profile, minimisers, profiles, random_starts
from lastlayer.runners import Placement

PAPER = "equal_losses"
NAMES = [name for name in artifacts() if name.startswith(PAPER)]
LOSSES = ("CE", "FL", "LS", "MSE")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def curve(labels: dict[str, str], seed: int, end: float, start: float = 10.0, epochs: int = 60) -> list[Record]:
    """NC1 to NC3 falling from start to end, evenly in logarithm."""
    made = []
    for epoch in range(0, epochs + 1, 10):
        value = start * (end / start) ** (epoch / epochs)
        made.append(Record(labels, seed, epoch, {f"train.nc{i}": value for i in (1, 2, 3)}))
    return made


@pytest.mark.parametrize(("end", "outcome"), [(0.01, "reproduced"), (0.07, "not reproduced")])
def test_all_collapse(store: Store, end: float, outcome: str) -> None:
    assert judge("001-05", store).outcome == "not run"
    rows = [row for loss in LOSSES for seed in (0, 1) for row in curve({"loss": loss}, seed, end)]
    store.add(f"{PAPER}.fig1", "small", rows)
    assert judge("001-05", store).outcome == outcome


def test_a_collapse_that_has_stopped_is_not_reproduced(store: Store) -> None:
    rows = [row for loss in LOSSES for seed in (0, 1) for row in curve({"loss": loss}, seed, 0.01)]
    late = [Record(row.labels, row.seed, row.epoch, dict.fromkeys(row.values, 0.01)) for row in rows if row.epoch >= 40]
    store.add(f"{PAPER}.fig1", "small", rows)
    store.add(f"{PAPER}.fig1", "small", late)
    verdict = judge("001-05", store)
    assert verdict.outcome == "not reproduced"
    assert "not falling" in verdict.detail


@pytest.mark.parametrize(("between", "outcome"), [(0.12, "reproduced"), (0.2, "not reproduced")])
def test_equal_up_to_rotation(store: Store, between: float, outcome: str) -> None:
    rows = [row for loss in LOSSES for row in curve({"loss": loss}, 0, 0.01)]
    store.add(f"{PAPER}.fig1", "small", rows)
    assert judge("001-06", store).outcome == "not run"
    for a, b in itertools.combinations_with_replacement(LOSSES, 2):
        value = 0.1 if a == b else between
        made = [Record({"loss": f"{a} and {b}"}, seed, 60, {"pair.equivalence": value}) for seed in (1, 2)]
        store.add(f"{PAPER}.fig1", "small", made)
    assert judge("001-06", store).outcome == outcome


def test_seeds_far_apart_leave_the_collapse_open(store: Store) -> None:
    """A mean below the limit, of seeds on both sides of it; residuals about as far apart as the limit."""
    for seed, end in enumerate((0.01, 0.03, 0.08)):
        store.add(f"{PAPER}.fig1", "small", [row for loss in LOSSES for row in curve({"loss": loss}, seed, end)])
    assert judge("001-05", store).outcome == "inconclusive"
    for (a, b), seed in itertools.product(itertools.combinations_with_replacement(LOSSES, 2), range(3)):
        value = 0.1 if a == b else (0.01, 0.1, 0.33)[seed]
        store.add(f"{PAPER}.fig1", "small", [Record({"loss": f"{a} and {b}"}, seed, 60, {"pair.equivalence": value})])
    verdict = judge("001-06", store)
    assert verdict.outcome == "inconclusive"
    assert "ratio 1.47" in verdict.detail


def add_corners(store: Store, name: str, accuracy: dict[str, list[float]], nc1: tuple[float, float]) -> None:
    """Test accuracy by loss at the four corners (narrow short, narrow long, wide short, wide long)."""
    corners = [(width, epochs) for width in ("0.25", "2") for epochs in ("100", "800")]
    rows = []
    for loss, levels in accuracy.items():
        for (width, epochs), level in zip(corners, levels, strict=True):
            collapse = nc1[0] if (width, epochs) == corners[0] else nc1[1]
            for seed in range(3):
                values = {"best.accuracy": level + 1e-4 * seed, "train.nc1": collapse * (1 + 0.01 * seed)}
                rows.append(Record({"loss": loss, "width": width, "epochs": epochs}, seed, int(epochs), values))
    store.add(f"{PAPER}.{name}", "paper", rows)


def test_spread_and_order(store: Store) -> None:
    for claim in ("001-07", "001-08", "001-09"):
        assert judge(claim, store).outcome == "not run"
    good = {loss: [0.90 + 0.01 * i, 0.935, 0.936, 0.95 + 0.001 * i] for i, loss in enumerate(LOSSES)}
    for name in ("fig3", "fig4"):
        add_corners(store, name, good, (1.0, 1e-3))
    verdicts = {claim: judge(claim, store) for claim in ("001-07", "001-08", "001-09")}
    assert {verdict.outcome for verdict in verdicts.values()} == {"reproduced"}, verdicts
    assert verdicts["001-07"].difference == pytest.approx(3.0 - 0.3, abs=0.01)
    bad = {loss: levels[::-1] for loss, levels in good.items()}
    for name in ("fig3", "fig4"):
        add_corners(store, name, bad, (1.0, 0.5))
    for claim in ("001-07", "001-08", "001-09"):
        assert judge(claim, store).outcome == "not reproduced"


def test_one_narrower_network_that_is_better_breaks_the_order(store: Store) -> None:
    levels = {loss: [0.90, 0.93, 0.94, 0.95] for loss in LOSSES}
    levels["FL"] = [0.90, 0.93, 0.89, 0.95]
    add_corners(store, "fig3", levels, (1.0, 1.0))
    verdict = judge("001-09", store)
    assert verdict.outcome == "not reproduced"
    assert verdict.detail.startswith("15 of 16")


@pytest.mark.parametrize(("focal", "outcome"), [(0.5, "reproduced"), (0.1, "not reproduced")])
def test_focal_is_slowest(store: Store, focal: float, outcome: str) -> None:
    assert judge("001-10", store).outcome == "not run"
    rows = []
    for loss, seed in itertools.product(LOSSES, (0, 1)):
        rows += curve({"dataset": "CIFAR-100", "loss": loss}, seed, focal if loss == "FL" else 0.3)
    store.add(f"{PAPER}.fig5", "small", rows)
    assert judge("001-10", store).outcome == outcome


def test_seeds_far_apart_leave_open_which_is_slowest(store: Store) -> None:
    rows = []
    for loss, seed in itertools.product(LOSSES, range(2)):
        end = 0.3 if loss != "FL" else (0.25, 0.4)[seed]
        rows += curve({"dataset": "CIFAR-100", "loss": loss}, seed, end)
    store.add(f"{PAPER}.fig5", "small", rows)
    verdict = judge("001-10", store)
    assert verdict.outcome == "inconclusive"
    assert "FL largest at 4 of 4" in verdict.detail


def judged(store: Store, claim: str, name: str, made: list[Record], breaks: dict[str, float]) -> None:
    """Not run, then reproduced with what was computed, then not with one row broken."""
    assert judge(claim, store).outcome == "not run"
    store.add(f"{PAPER}.{name}", "paper", made)
    assert judge(claim, store).outcome == "reproduced", judge(claim, store)
    store.add(f"{PAPER}.{name}", "paper", [Record(made[0].labels, 0, 0, {**made[0].values, **breaks})])
    assert judge(claim, store).outcome == "not reproduced"


def test_minimisers_reach_the_closed_form(store: Store) -> None:
    made = list(minimisers([[3, 2]], 4, 0.1))
    assert len(made) == 3 * 3
    judged(store, "001-01", "theorem1", made, {"computed.frame_error": 1e-3})


def test_a_wrong_closed_form_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Penalties of other weights: the frame is another one, although it is still a frame."""
    true = theory.minima.unconstrained
    monkeypatch.setattr(
        theory.minima, "unconstrained", lambda loss, K, n, w, h, **more: true(loss, K, n, w, 2 * h, **more)
    )
    assert all(row.values["computed.frame_error"] > 1e-2 for row in minimisers([[3, 1]], 4, 0.1))


def test_profiles_bound_the_losses(store: Store) -> None:
    made = list(profiles([3, 20], 500, 6))
    assert {row.labels["classes"] for row in made if "computed.tie_at" in row.values} == {"20"}  # from 18 classes on
    judged(store, "001-02", "definition1", made, {"computed.violations": 1.0})


def test_a_bound_that_is_too_high_is_violated(monkeypatch: pytest.MonkeyPatch) -> None:
    true = theory.contrastive.Phi._value
    monkeypatch.setattr(theory.contrastive.Phi, "_value", lambda self, t: true(self, t) + 1e-3)
    assert all(row.values["computed.violations"] > 0 for row in profiles([3], 500, 2))


def test_random_starts_end_at_the_minimum(store: Store) -> None:
    judged(store, "001-03", "theorem2", [*random_starts([[3, 2, 0.03]], [], 4)], {"computed.share": 0.75})


def test_saddles_can_be_left(store: Store) -> None:
    made = list(curvature([3], 2, 0.3, 300))
    by_place = {(row.labels["loss"], row.labels["point"]): row.values for row in made}
    for loss, slope in (("CE", 1 / 3), ("LS", 0.9 / 3)):
        # (lW + lH)/2 - phi'(0)/sqrt n, both penalties 0.3 phi'(0)/sqrt n
        expected = -0.7 * slope / math.sqrt(2)
        assert by_place[loss, "origin"]["computed.curvature"] == pytest.approx(expected, rel=1e-8)
    judged(store, "001-04", "corollary2", made, {"computed.curvature": 0.0})


def test_the_tie_of_focal_loss_shows_two_equal_minima() -> None:
    rows = focal_profile([100], [0.5], 1601)
    tie = f"{theory.contrastive.tie_level(100):.6g}"
    curve = {float(r.labels["t / (K-1)"]): r.values["computed.psi"] for r in rows if r.labels["c"] == tie}
    away = min((value, x) for x, value in curve.items() if x < -1)
    assert away[0] == pytest.approx(curve[0.0], abs=1e-5)
    assert away[1] == pytest.approx(-234.9 / 99, abs=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name: str, store: Store, tmp_path: Path) -> None:
    made = artifact(name)
    observed = reproduce(made, "smoke", Placement(tmp_path / "runs", device="cpu", workers=1), store)
    assert all(row.status == "done" for row in observed.rows)
    measured = {measure for row in observed.final() for measure in row.values}
    # there is a tie only with many classes
    assert {spec.removesuffix("%") for spec in made.columns.values()} - {"computed.tie_at"} <= measured
    assert made.figure is None or figure(made, observed) is not None


def test_rotations_compare_class_means_of_the_training_samples(store: Store, tmp_path: Path) -> None:
    plan = Placement(tmp_path / "runs", device="cpu", workers=1)
    observed = reproduce(artifact(f"{PAPER}.fig1"), "smoke", plan, store)
    train = data.hold_out(data.subset(data.load("digits"), 300, seed=0), 0.1, 0).train
    means = {}
    for loss, seed in itertools.product(("CE", "FL"), (0, 1)):
        run = next(r.facts["run"] for r in observed.final(loss=loss) if r.seed == seed)
        with torch.no_grad():
            features = lastlayer.load(plan.root / run).network.features(train.inputs).double()
        rows = torch.stack([features[train.target == k].mean(0) for k in range(10)]) - features.mean(0)
        means[loss, seed] = rows / rows.norm()

    def residual(a: torch.Tensor, b: torch.Tensor) -> float:
        return 1 - float(torch.linalg.svdvals(a.T @ b).sum()) ** 2

    assert observed.values("pair.equivalence", loss="CE and FL") == {
        seed: pytest.approx(residual(means["CE", seed], means["FL", seed]), rel=1e-5) for seed in (0, 1)
    }
    (between_seeds,) = observed.values("pair.equivalence", loss="FL and FL").values()
    assert between_seeds == pytest.approx(residual(means["FL", 0], means["FL", 1]), rel=1e-5)


def test_heat_maps_have_a_map_for_each_loss_and_column(store: Store) -> None:
    add_corners(store, "fig4", {loss: [0.1, 0.2, 0.3, 0.4] for loss in LOSSES}, (1.0, 0.01))
    chart = figure(artifact(f"{PAPER}.fig4"), store.read(f"{PAPER}.fig4", "paper"))
    assert len(chart.data) == 8
    collapse, accuracy = chart.data[0], chart.data[4]
    assert [list(line) for line in accuracy.z] == [pytest.approx([10.01, 20.01]), pytest.approx([30.01, 40.01])]
    assert collapse.z[0][0] == pytest.approx(math.log10(1.01))
    assert collapse.z[1][1] == pytest.approx(math.log10(0.0101))
    titles = [chart.layout[f"yaxis{number if number > 1 else ''}"].title.text for number in range(1, 9)]
    assert titles == ["width", None, None, None] * 2, "a title between two maps lies on the left one"


def test_every_line_of_collapse_looks_different(store: Store) -> None:
    store.add(f"{PAPER}.fig1", "small", [row for loss in LOSSES for row in curve({"loss": loss}, 0, 0.01)])
    chart = figure(artifact(f"{PAPER}.fig1"), store.read(f"{PAPER}.fig1", "small"))
    assert len(chart.data) == len({(line.line.color, line.line.dash) for line in chart.data}) == 12
    assert "dot" not in {line.line.dash for line in chart.data}, "what the paper prints is dotted"


def test_every_published_number_has_its_cell() -> None:
    made = artifact(f"{PAPER}.fig8")
    cells = [dict(cell.labels) for cell in made.grid("paper").cells]
    assert len(published(made)) == len(cells) == 8
    for number in published(made):
        assert number.labels in cells
        assert number.column in made.columns


@pytest.mark.parametrize(("name", "paper", "small"), [
    ("fig1", 12, 12),
    ("fig2", 12, 12),
    ("fig3", 4 * 4 * 4 * 3, 4 * 2 * 2 * 3),
    ("fig4", 4 * 4 * 4 * 3, 4 * 2 * 2 * 3),
    ("fig5", 12, 12),
    ("fig6", 12, 12),
    ("fig7", 4 * 4 * 4 * 3, 4 * 2 * 2),
    ("fig8", 2 * 4 * 3, 8),
])  # fmt: skip
def test_trials(name: str, paper: int, small: int) -> None:
    made = artifact(f"{PAPER}.{name}")
    trials, fewer = made.grid("paper").trials(), made.grid("small").trials()
    assert (len(trials), len(fewer)) == (paper, small)
    for trial in (*trials, *fewer):
        assert (trial.optimiser.lr, trial.optimiser.clip, trial.data.holdout) == (0.1, 2.0, 0.1)
        assert trial.schedule.milestones == pytest.approx((3 / 7, 5 / 7), abs=1e-6)
        assert trial.model.name in ("wideresnet18", "wideresnet50")


def test_figures_of_the_same_runs_share_them() -> None:
    for a, b in (("fig1", "fig2"), ("fig5", "fig6")):
        first, second = (artifact(f"{PAPER}.{name}").grid("small").trials() for name in (a, b))
        assert [trial.identity for trial in first] == [trial.identity for trial in second]
    wide_and_long = {trial.identity for trial in artifact(f"{PAPER}.fig1").grid("small").trials()}
    assert wide_and_long < {trial.identity for trial in artifact(f"{PAPER}.fig3").grid("small").trials()}
