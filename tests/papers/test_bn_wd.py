"""The claims of 004 on made-up numbers, its computations against the truth, its artifacts at smoke size."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from lastlayer.papers import Record, Store, artifact, artifacts, figure, judge, reproduce
from lastlayer.papers.bn_wd.theory import perturbed_frames, quadratic_mean_norm, through_batch_norm
from lastlayer.runners import Placement

PAPER = "bn_wd"
NAMES = [name for name in artifacts() if name.startswith(PAPER)]
DECAYS = ("1e-4", "5e-4", "1e-3", "5e-3", "1e-2")
MODELS = ("4-layer MLP", "6-layer MLP")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def row(labels: dict[str, str], seed: int, epoch: int = 300, *, accuracy: float = 1.0, **values: float) -> Record:
    made = {f"train.{name}": value + 1e-4 * seed for name, value in values.items()}
    return Record(labels, seed, epoch, {"train.accuracy": accuracy, **made})


def add_fig2(
    store: Store,
    with_bn: Callable[[int], float],
    without: Callable[[int], float],
    models: tuple[str, ...] = MODELS[:1],
    **more: float,
) -> None:
    """min intra of the i-th decay; max inter mirrors it."""
    made = []
    for model in models:
        for arm, intra in (("with BN", with_bn), ("without BN", without)):
            for i, decay in enumerate(DECAYS):
                labels = {"data": "MLP teacher", "model": model, "bn": arm, "decay": decay}
                made += [row(labels, seed, intra_min=intra(i), inter_max=-intra(i) / 3, **more) for seed in range(3)]
    store.add(f"{PAPER}.fig2", "small", made)


def test_collapse_with_decay(store: Store) -> None:
    assert judge("004-04", store).outcome == "not run"
    assert judge("004-05", store).outcome == "not run"
    add_fig2(store, lambda i: 0.5 + 0.1 * i, lambda i: 0.4 - 0.05 * i)
    assert judge("004-04", store).outcome == "reproduced"
    assert judge("004-05", store).outcome == "reproduced"
    add_fig2(store, lambda i: 0.5 - 0.1 * i, lambda i: 0.4 + 0.1 * i)
    assert judge("004-04", store).outcome == "not reproduced"
    assert judge("004-05", store).outcome == "not reproduced"
    add_fig2(store, lambda i: 0.5 + 0.1 * i, lambda i: 0.4, accuracy=0.9)
    assert judge("004-04", store).outcome == "inconclusive"  # nothing interpolates


def test_a_flat_measure_has_no_rank(store: Store) -> None:
    add_fig2(store, lambda i: 0.9, lambda i: 0.5)
    verdict = judge("004-04", store)
    assert verdict.outcome == "inconclusive"
    assert "no rank" in verdict.detail


def test_cells_that_do_not_interpolate_are_left_out(store: Store) -> None:
    add_fig2(store, lambda i: 0.5 + 0.1 * i, lambda i: 0.4, MODELS)
    for model in MODELS:
        labels = {"data": "MLP teacher", "model": model, "bn": "with BN", "decay": "1e-2"}
        falls = [row(labels, seed, accuracy=0.8, intra_min=0.0, inter_max=0.5) for seed in range(3)]
        store.add(f"{PAPER}.fig2", "small", falls)
    verdict = judge("004-04", store)
    assert verdict.outcome == "reproduced"
    assert "over 4" in verdict.detail


@pytest.mark.parametrize(("follows", "outcome"), [(True, "reproduced"), (False, "not reproduced")])
def test_collapse_during_training(store: Store, follows: bool, outcome: str) -> None:
    assert judge("004-06", store).outcome == "not run"
    made = []
    for epoch in range(0, 305, 5):
        t = epoch / 300
        early = min(epoch, 20) / 20
        with_bn = t if follows else early
        without = early if follows else t
        for arm, intra in (("with BN", with_bn), ("without BN", without)):
            labels = {"setting": "4-layer MLP", "bn": arm}
            made += [row(labels, seed, epoch, intra_min=intra, nll=10.0 ** (-3 * t)) for seed in range(3)]
    store.add(f"{PAPER}.fig3", "paper", made)
    assert judge("004-06", store).outcome == outcome


def test_collapse_during_training_is_judged_by_the_mean_of_the_seeds(store: Store) -> None:
    """One seed of three whose last evaluations are out of order is no refutation, and leaves the claim open."""
    made = []
    for seed in range(3):
        for epoch in range(0, 105, 5):
            t = epoch / 100 if seed < 2 or epoch <= 80 else 0.5
            made.append(row({"setting": "MLP", "bn": "with BN"}, seed, epoch, intra_min=t, nll=10.0 ** (-epoch / 30)))
            early = min(epoch, 20) / 20
            made.append(row({"setting": "MLP", "bn": "without BN"}, seed, epoch, intra_min=early, nll=1.0))
    store.add(f"{PAPER}.fig3", "small", made)
    verdict = judge("004-06", store)
    assert verdict.outcome == "inconclusive"
    assert "MLP: 0.931" in verdict.detail
    assert "3 seeds" in verdict.detail


@pytest.mark.parametrize(("settings", "outcome"), [(3, "reproduced"), (2, "not reproduced")])
def test_smaller_norm(store: Store, settings: int, outcome: str) -> None:
    assert judge("004-07", store).outcome == "not run"
    made = []
    for index, (data, model) in enumerate((d, m) for d in ("MLP teacher", "conic hull") for m in MODELS):
        sign = 1 if index < settings else -1
        for entry in ("0.02", "0.1", "0.5", "1"):
            labels = {"data": data, "model": model, "entry": entry}
            intra, inter = 0.5 - sign * 0.3 * float(entry), sign * 0.1 * float(entry)
            made += [row(labels, seed, intra_min=intra, inter_max=inter) for seed in range(3)]
    store.add(f"{PAPER}.fig4", "paper", made[:12])
    assert judge("004-07", store).outcome == "not run"
    store.add(f"{PAPER}.fig4", "paper", made)
    assert judge("004-07", store).outcome == outcome


def test_one_seed_leaves_the_norms_open(store: Store) -> None:
    for data, model, entry in itertools.product(("MLP teacher", "conic hull"), MODELS, ("0.02", "0.1", "0.5", "1")):
        labels = {"data": data, "model": model, "entry": entry}
        made = row(labels, 0, intra_min=0.5 - 0.3 * float(entry), inter_max=0.1 * float(entry))
        store.add(f"{PAPER}.fig4", "paper", [made])
    assert judge("004-07", store).outcome == "inconclusive"


@pytest.mark.parametrize(("worse", "lost", "outcome"), [
    (1, 0, "reproduced"), (2, 0, "not reproduced"), (0, 2, "inconclusive"), (0, 1, "reproduced"),
])  # fmt: skip
def test_vgg(store: Store, worse: int, lost: int, outcome: str) -> None:
    assert judge("004-08", store).outcome == "not run"
    made = []
    for i, decay in enumerate(("3e-4", "5e-4", "1e-3", "5e-3", "7e-3", "1e-2")):
        for arm in ("with BN", "without BN"):
            labels = {"dataset": "CIFAR-10", "model": "VGG-11", "bn": arm, "decay": decay}
            level = 0.5 + 0.05 * i - (0 if arm == "with BN" else 0.2 if i >= worse else -0.2)
            values = {"intra_min": level, "intra_mean": level, "inter_max": -level, "inter_mean": -level}
            if arm == "with BN" or i < 6 - lost:
                made += [row(labels, seed, **values) for seed in range(3)]
            else:
                made += [Record(labels, seed, 300, {"train.accuracy": 0.1}, "chance") for seed in range(3)]
    store.add(f"{PAPER}.fig5", "small", made)
    assert judge("004-08", store).outcome == outcome


def test_seeds_far_apart_leave_vgg_open(store: Store) -> None:
    made = []
    for i, decay in enumerate(("3e-4", "5e-4", "1e-3", "5e-3", "7e-3", "1e-2")):
        for arm, seed in itertools.product(("with BN", "without BN"), range(3)):
            labels = {"dataset": "CIFAR-10", "model": "VGG-11", "bn": arm, "decay": decay}
            level = 0.5 + 0.05 * i - (0.0 if arm == "with BN" else 0.1 + 0.3 * (seed - 1))
            made.append(row(labels, seed, intra_min=level, intra_mean=level, inter_max=-level, inter_mean=-level))
    store.add(f"{PAPER}.fig5", "small", made)
    verdict = judge("004-08", store)
    assert verdict.outcome == "inconclusive"
    assert "all four are better: 6 of 6" in verdict.detail


@pytest.mark.parametrize(("sign", "outcome"), [(1, "reproduced"), (-1, "not reproduced")])
def test_many_classes(store: Store, sign: int, outcome: str) -> None:
    assert judge("004-09", store).outcome == "not run"
    for model, slope in (("VGG-11", 1), ("VGG-19", 1), ("ResNet-18", -1)):
        for i, decay in enumerate(DECAYS[:4]):
            labels = {"dataset": "Tiny-ImageNet-32", "model": model, "decay": decay}
            made = [row(labels, seed, inter_max=sign * slope * 0.1 * i) for seed in range(3)]
            store.add(f"{PAPER}.fig6", "small", made)
    assert judge("004-09", store).outcome == outcome


def test_bounds_on_frames(store: Store) -> None:
    assert judge("004-01", store).outcome == "not run"
    made = list(perturbed_frames([3], [1.0], [1e-7, 1e-2], 500))
    assert [one.values["computed.violations"] for one in made] == [0, 0]
    assert made[0].values["computed.useful_intra"] == 1
    assert made[1].values["computed.useful_inter"] == 0
    store.add(f"{PAPER}.theorem1", "paper", made)
    assert judge("004-01", store).outcome == "reproduced"
    store.add(
        f"{PAPER}.theorem1",
        "paper",
        [Record(made[0].labels, 0, 0, {**made[0].values, "computed.violations": 1.0})],
    )
    assert judge("004-01", store).outcome == "not reproduced"
    store.add(f"{PAPER}.theorem1", "paper", [Record(made[0].labels, 0, 0, {**made[0].values, "computed.frames": 4.0})])
    assert judge("004-01", store).outcome == "inconclusive"


def test_a_bound_that_is_too_tight_is_violated(monkeypatch: pytest.MonkeyPatch) -> None:
    from lastlayer.theory import bounds

    true = bounds.collapse
    monkeypatch.setattr(bounds, "collapse", lambda C, ab, epsilon, delta: true(C, ab, 0.0, delta))
    (found,) = perturbed_frames([3], [1.0], [0.1], 10)
    assert found.values["computed.violations"] > 0


def test_minimum_through_batch_norm(store: Store) -> None:
    assert judge("004-02", store).outcome == "not run"
    (found,) = through_batch_norm([3], [0.1], 1)
    # -log(1 - s) + s log(sqrt C / lam - (C - 1)), s = (C - 1) lam / sqrt C, at C = 3 and lam = 0.1
    assert found.values["computed.reached"] == pytest.approx(0.4378388944, abs=1e-9)
    assert found.values["computed.printed"] == pytest.approx(0.1924410757, abs=1e-9)
    store.add(f"{PAPER}.theorem2", "paper", [found])
    assert judge("004-02", store).outcome == "reproduced"
    store.add(f"{PAPER}.theorem2", "paper", [Record(found.labels, 0, 0, {**found.values, "computed.reached": 0.45})])
    assert judge("004-02", store).outcome == "not reproduced"


def test_norm_behind_batch_norm(store: Store) -> None:
    assert judge("004-03", store).outcome == "not run"
    (found,) = quadratic_mean_norm([16], [8, 33])
    assert found.values["computed.error"] < 1e-14
    assert 1e-6 < found.values["computed.error_eps"] < 1e-4  # eps / 2 of the variance, which is about 1
    assert found.values["computed.error_evaluation"] > 1e-3
    store.add(f"{PAPER}.lemma4", "paper", [found])
    assert judge("004-03", store).outcome == "reproduced"
    store.add(f"{PAPER}.lemma4", "paper", [Record(found.labels, 0, 0, {**found.values, "computed.error": 1e-9})])
    assert judge("004-03", store).outcome == "not reproduced"


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name: str, store: Store, tmp_path: Path) -> None:
    made = artifact(name)
    observed = reproduce(made, "smoke", Placement(tmp_path / "runs", device="cpu", workers=1), store)
    assert observed.rows
    for one in observed.rows:
        assert one.status == "done"
        for spec in made.columns.values():
            assert spec.removesuffix("%") in one.values
    assert made.figure is None or figure(made, observed) is not None


def test_the_chart_during_training_has_a_panel_for_each_arm(store: Store) -> None:
    for arm, level in (("with BN", 0.5), ("without BN", 0.1)):
        made = [
            row({"bn": arm, "decay": "1e-3"}, 0, epoch, intra_min=level, inter_max=-level, nll=1.0 / (1 + epoch))
            for epoch in (0, 5, 10)
        ]
        store.add(f"{PAPER}.fig7", "small", made)
    chart = figure(artifact(f"{PAPER}.fig7"), store.read(f"{PAPER}.fig7", "small"))
    assert [title.text for title in chart.layout.annotations] == ["with BN, 1e-3", "without BN, 1e-3"]
    assert [trace.name for trace in chart.data] == ["min intra", "max inter", "training loss"] * 2
    assert list(chart.data[3].y) == [0.1, 0.1, 0.1]
    assert list(chart.data[2].x) == [0, 5, 10]


@pytest.mark.parametrize(("name", "paper", "small"), [
    ("fig2", 2 * 2 * 7 * 5, 2 * 2 * 5 * 3),
    ("fig3", 4, 12),
    ("fig4", 2 * 2 * 8 * 3, 2 * 2 * 5),
    ("fig5", 2 * 2 * 2 * 6, 2 * 6 * 3),
    ("fig6", 3 * 4, 3 * 4),
    ("fig7", 6, 6),
    ("fig8", 4, 2),
    ("fig9", 2 * 2 * 3 * 8 * 3, 2 * 3 * 5),
])  # fmt: skip
def test_trials(name: str, paper: int, small: int) -> None:
    made = artifact(f"{PAPER}.{name}")
    trials = made.grid("paper").trials()
    assert (len(trials), len(made.grid("small").trials())) == (paper, small)
    for trial in trials:
        assert (trial.optimiser.name, trial.optimiser.decay, trial.precision) == ("adam", "all", "float32")
        assert (trial.schedule.epochs, trial.batch_size) == (300, 128)
        assert (
            trial.model.name.startswith("vgg")
            or trial.head.name == "batch-norm"
            or trial.head.options == {"bias": False}
        )


def test_the_arms_differ_by_batch_norm_alone() -> None:
    for name, changed in (("fig2", "head"), ("fig5", "model"), ("fig7", "head"), ("fig8", "model")):
        cells = artifact(f"{PAPER}.{name}").grid("paper").cells
        arms = {arm: cell.trial for arm in ("with BN", "without BN") for cell in cells if cell.labels["bn"] == arm}
        first, second = (arms[arm].to_dict() for arm in ("with BN", "without BN"))
        assert [part for part in first if first[part] != second[part]] == [changed]
