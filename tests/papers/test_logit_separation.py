"""The claims of 002 on made-up numbers, its computations against the truth, its artifacts at smoke size."""

from pathlib import Path

import pytest

from lastlayer.papers import Record, Store, artifact, artifacts, judge, published, reproduce
from lastlayer.papers.logit_separation.theory import counterexamples, search_violations
from lastlayer.runners import Placement

PAPER = "logit_separation"
NAMES = [name for name in artifacts() if name.startswith(PAPER)]
ALIGNED = ("self-norm", "NCE", "binary CE", "batch CE", "batch max-margin")
GOOD = {"auprc": 0.99, "precision_at_90": 0.985, "precision_at_99": 0.9, "accuracy": 0.985}
WORSE = {"auprc": 0.986, "precision_at_90": 0.98, "precision_at_99": 0.863, "accuracy": 0.985}  # by 27 to 40 %


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def rows(labels: dict[str, str], values: dict[str, float], split: str = "test") -> list[Record]:
    """Three seeds around the values."""
    return [
        Record(labels, seed, 5, {f"{split}.{name}": value + 1e-5 * seed for name, value in values.items()})
        for seed in range(3)
    ]


def add_table(store: Store, aligned: dict[str, float], others: dict[str, float], all_logits: float = 0.99) -> None:
    made = []
    for dataset in ("MNIST", "CIFAR-10"):
        for loss in ALIGNED:
            made += rows(
                {"dataset": dataset, "loss": loss}, {"log_partition_std": 0.1, "log_partition_mean": 0.1, **aligned}
            )
        for loss in ("CE", "max-margin"):
            made += rows(
                {"dataset": dataset, "loss": loss}, {"log_partition_std": 4.0, "log_partition_mean": 9.0, **others}
            )
        made += rows({"dataset": dataset, "loss": "CE with all logits"}, {"probability_auprc": all_logits})
    store.add(f"{PAPER}.table1", "small", made)


@pytest.mark.parametrize("claim", ["002-03", "002-05", "002-06", "002-09"])
def test_claims_on_the_table_hold_and_fail(store: Store, claim: str) -> None:
    assert judge(claim, store).outcome == "not run"
    add_table(store, GOOD, WORSE)
    assert judge(claim, store).outcome == "reproduced"
    bad = {**WORSE, "accuracy": 0.9, "log_partition_std": 4.0, "log_partition_mean": 9.0}
    add_table(store, bad, GOOD)
    assert judge(claim, store).outcome == "not reproduced"


def test_the_share_of_improvements(store: Store) -> None:
    assert judge("002-04", store).outcome == "not run"
    quarter = {name: 1 - 0.75 * (1 - value) for name, value in WORSE.items()}
    add_table(store, quarter, WORSE)
    verdict = judge("002-04", store)
    assert verdict.outcome == "reproduced"
    assert "30 of 30 improvements" in verdict.detail
    half = {name: 1 - 0.5 * (1 - value) for name, value in WORSE.items()}
    add_table(store, half, WORSE)
    verdict = judge("002-04", store)
    assert verdict.outcome == "not reproduced"
    assert "30 of 30 are at least 20 %" in verdict.detail


def test_seeds_far_apart_leave_the_share_of_improvements_open(store: Store) -> None:
    add_table(store, {name: 1 - 0.75 * (1 - value) for name, value in WORSE.items()}, WORSE)
    whole = store.read(f"{PAPER}.table1", "small").rows
    apart = [
        Record(one.labels, one.seed, 5, {m: v + 0.3 * (1 - v) * (one.seed - 1) for m, v in one.values.items()})
        for one in whole
        if one.labels["loss"] in ALIGNED
    ]
    store.add(f"{PAPER}.table1", "small", apart)
    verdict = judge("002-04", store)
    assert verdict.outcome == "inconclusive"
    assert "30 of 30 improvements" in verdict.detail


def test_without_cifar_the_claims_of_both_are_not_run(store: Store) -> None:
    made = [r for loss in (*ALIGNED, "CE", "max-margin") for r in rows({"dataset": "MNIST", "loss": loss}, GOOD)]
    store.add(f"{PAPER}.table1", "small", made)
    assert judge("002-04", store).outcome == "not run"


@pytest.mark.parametrize(("ce", "outcome"), [(0.6, "reproduced"), (0.69, "not reproduced"), (0.8, "not reproduced")])
def test_many_classes(store: Store, ce: float, outcome: str) -> None:
    assert judge("002-07", store).outcome == "not run"
    for dataset in ("Omniglot", "Tiny-ImageNet-32"):
        store.add(f"{PAPER}.table1_imagenet", "small", rows({"dataset": dataset, "loss": "CE"}, {"auprc": ce}))
        store.add(f"{PAPER}.table1_imagenet", "small", rows({"dataset": dataset, "loss": "batch CE"}, {"auprc": 0.7}))
    assert judge("002-07", store).outcome == outcome


@pytest.mark.parametrize(("without", "outcome"), [((0.5, 0.9), "reproduced"), ((0.05, 0.995), "not reproduced")])
def test_sample_term(store: Store, without: tuple[float, float], outcome: str) -> None:
    assert judge("002-08", store).outcome == "not run"
    for arm, (term, auprc) in {"with": (0.1, 0.99), "without": without}.items():
        for row in rows({"arm": arm}, {"auprc": auprc}):
            both = Record(row.labels, row.seed, 5, {**row.values, "train.batch_term": term + 1e-4 * row.seed})
            store.add(f"{PAPER}.sample_term", "small", [both])
    assert judge("002-08", store).outcome == outcome


def test_counterexamples_are_not_separated(store: Store) -> None:
    assert judge("002-01", store).outcome == "not run"
    made = list(counterexamples([1, 8]))
    for row in made:
        assert row.values["computed.loss"] <= float(row.labels["epsilon"])
        assert row.values["computed.gap"] < 0
    store.add(f"{PAPER}.counterexamples", "paper", made)
    assert judge("002-01", store).outcome == "reproduced"
    store.add(
        f"{PAPER}.counterexamples",
        "paper",
        [Record(made[0].labels, 0, 0, {**made[0].values, "computed.gap": 0.1})],
    )
    assert judge("002-01", store).outcome == "not reproduced"


def test_the_search_comes_close_to_the_thresholds_and_not_below(store: Store) -> None:
    assert judge("002-02", store).outcome == "not run"
    made = list(search_violations(12, 200, [[2, 2]]))
    for row in made:
        assert row.values["computed.below"] == 0
        assert 1 - 1e-9 <= row.values["computed.ratio"] < 1.01
    store.add(f"{PAPER}.alignment", "small", made)
    assert judge("002-02", store).outcome == "reproduced"
    store.add(f"{PAPER}.alignment", "small", [Record(made[0].labels, 0, 0, {**made[0].values, "computed.below": 1.0})])
    assert judge("002-02", store).outcome == "not reproduced"


def test_a_search_finds_violations_below_a_threshold_that_is_too_high(monkeypatch: pytest.MonkeyPatch) -> None:
    from lastlayer.theory import alignment

    true = alignment.threshold
    monkeypatch.setattr(
        alignment,
        "threshold",
        lambda *a, **k: alignment.Threshold(1.1 * float(true(*a, **k)), None, 0.0, 0.0, "sample"),
    )
    row = next(row for row in search_violations(12, 200, [[2, 2]]) if row.labels["loss"] == "binary CE")
    assert row.values["computed.below"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_smoke(name: str, store: Store, tmp_path: Path) -> None:
    made = artifact(name)
    observed = reproduce(made, "smoke", Placement(tmp_path / "runs", device="cpu", workers=1), store)
    assert observed.rows
    for row in observed.rows:
        assert row.status == "done"
        for spec in made.columns.values():
            assert spec.removeprefix("1-") in row.values


def test_the_batch_term_is_that_of_the_training_batches(store: Store, tmp_path: Path) -> None:
    import lastlayer
    from lastlayer import data

    plan = Placement(tmp_path / "runs", device="cpu", workers=1)
    observed = reproduce(artifact(f"{PAPER}.sample_term"), "smoke", plan, store)
    row = observed.final(arm="with")[0]
    loaded = lastlayer.load(plan.root / row.facts["run"])
    train = data.subset(data.load("digits"), 300, seed=0).train
    logits = loaded.network(train.inputs)
    terms = []
    for start in range(0, 288, 32):
        z, y = logits[start : start + 32].tolist(), train.target[start : start + 32].tolist()
        true = min(one[label] for one, label in zip(z, y, strict=True))
        false = max(v for one, label in zip(z, y, strict=True) for k, v in enumerate(one) if k != label)
        terms.append(max(0.0, 1 - true + false) / 32)
    assert row.values["train.batch_term"] == pytest.approx(sum(terms) / len(terms), rel=1e-5)


@pytest.mark.parametrize("name", [f"{PAPER}.table1", f"{PAPER}.table1_imagenet"])
def test_every_published_number_has_its_cell(name: str) -> None:
    made = artifact(name)
    cells = {tuple(cell.labels.items()): cell for cell in made.grid("paper").cells}
    numbers = published(made)
    assert len(numbers) == {f"{PAPER}.table1": 4 * 8 * 4, f"{PAPER}.table1_imagenet": 3 * 4}[name]
    for number in numbers:
        assert number.column in cells[tuple(number.labels.items())].columns


def test_paper_sizes() -> None:
    table = artifact(f"{PAPER}.table1")
    assert len(table.grid("paper").trials()) == 4 * 7 * 3  # the eighth row shares the runs of cross-entropy
    assert {len(cell.over["optimiser.lr"]) for cell in table.grid("paper").cells} == {4}
    assert len(table.grid("small").trials()) == 2 * 7 * 3
    for trial in table.grid("paper").trials():
        samples = {"mnist": 60_000, "svhn": 73_257, "cifar10": 50_000, "cifar100": 50_000}[trial.data.name]
        assert abs(trial.schedule.epochs * (samples // 128) - 1e5) < 300
    assert len(artifact(f"{PAPER}.table1_imagenet").grid("paper").trials()) == 2
    assert len(artifact(f"{PAPER}.table1_imagenet").grid("small").trials()) == 2 * 2 * 3
    assert len(artifact(f"{PAPER}.sample_term").grid("paper").trials()) == 6


def test_the_eighth_row_reads_probabilities_of_the_same_runs() -> None:
    grid = artifact(f"{PAPER}.table1").grid("paper")
    one, all_logits = (
        next(cell for cell in grid.cells if cell.labels == {"dataset": "MNIST", "loss": loss})
        for loss in ("CE", "CE with all logits")
    )
    assert one.trial == all_logits.trial
    assert one.columns["1-AUPRC"] == "1-test.auprc"
    assert all_logits.columns["1-AUPRC"] == "1-test.probability_auprc"
