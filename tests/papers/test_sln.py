"""Paper 000: grids as published, computations against known truths, and every verdict on made-up observations."""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest
import torch

from lastlayer.papers import (
    Observations,
    Pair,
    Record,
    Store,
    artifact,
    artifacts,
    figure,
    judge,
    published,
    reproduce,
)
from lastlayer.papers.engine.artifact import teachers_of
from lastlayer.papers.engine.reproduce import all_trials
from lastlayer.papers.engine.table import lines
from lastlayer.papers.sln.theory import dynamics, theorem1, toy
from lastlayer.runners import Placement

OWN = [name for name, one in artifacts().items() if one.paper in ("sln", "all_losses")]
TRAINED = [name for name in OWN if artifact(name).compute is None]

# of the runs that make up the table; then with teachers and candidates
COUNTS = {
    "sln.table1": {"paper": (500, 680), "small": (60, 83)},
    "sln.table1_classes": {"paper": (40, 40), "small": (21, 21)},
    "sln.table2": {"paper": (4, 4), "small": (9, 9)},
    "sln.table3": {"paper": (32, 160), "small": (40, 72)},
    "sln.table4": {"paper": (150, 150), "small": (45, 45)},
    "sln.table5": {"paper": (90, 90), "small": (45, 45)},
    "sln.fig1": {"paper": (40, 40), "small": (12, 12)},
    "sln.fig6": {"paper": (60, 69), "small": (15, 24)},
    "sln.fig7": {"paper": (330, 330), "small": (33, 33)},
    "all_losses.table": {"paper": (85, 290), "small": (51, 120)},
    "all_losses.open_set": {"paper": (85, 290), "small": (45, 105)},
    "all_losses.long_tail": {"paper": (90, 307), "small": (48, 112)},
}


@pytest.mark.parametrize("name", TRAINED)
def test_numbers_of_trials(name: str) -> None:
    for size in ("paper", "small"):
        grid = artifact(name).grid(size)
        assert (len(grid.trials()), len(all_trials(grid))) == COUNTS[name][size]


def test_trials_are_as_published() -> None:
    cells = {tuple(cell.labels.values()): cell.trial.resolved() for cell in artifact("sln.table1").grid("paper").cells}
    for model, depth in (("ResNet-20", 20), ("ResNet-110", 110)):
        for data, tau in (("CIFAR-10", None), ("CIFAR-100", 0.08)):
            sln, ce = cells[data, model, "SLN"], cells[data, model, "CE"]
            assert sln.model.name == ce.model.name == f"resnet{depth}"
            assert (sln.optimiser.lr, sln.optimiser.weight_decay) == (0.01, 5e-3)
            assert (ce.optimiser.lr, ce.optimiser.weight_decay) == (0.1, 1e-4)
            assert sln.loss.options.get("tau") == tau
    imagenet = {tuple(c.labels.values()): c.trial for c in artifact("sln.table2").grid("paper").cells}
    advanced = imagenet["ResNet-50", "CE, advanced augmentation"]
    assert (advanced.augmentation.mixup, advanced.augmentation.cutmix) == (0.8, 1.0)
    assert advanced.loss.options == {"label_smoothing": 0.1}
    assert imagenet["ResNet-50", "SLN"].optimiser.weight_decay == 0.06
    assert imagenet["ResNet-50", "SLN"].loss.options == {"tau": 0.04}


def test_where_the_end_alone_counts_nothing_is_measured_on_the_way() -> None:
    trials = artifact("sln.table2").grid("small").trials()  # 100,000 images each time
    assert {trial.evaluations for trial in trials} == {1}


def test_the_teacher_is_a_run_of_the_table() -> None:
    grid = artifact("sln.table1").grid("small")
    (teacher,) = teachers_of(grid.cells)
    assert teacher.identity in {trial.identity for trial in grid.trials()}
    assert teacher.model.name == "resnet56"


def test_figure_6_and_the_tables_share_their_runs() -> None:
    def identities(name: str) -> set[str]:
        return {trial.identity for trial in all_trials(artifact(name).grid("small"))}

    assert len(identities("sln.fig6") & identities("sln.table1")) == 9 + 3 * 3  # candidates of LN, ResNet-20
    for name in ("all_losses.open_set", "all_losses.long_tail"):
        assert len(identities("all_losses.table") & identities(name)) == 15 * 4


@pytest.mark.parametrize("name", [name for name in OWN if artifact(name).published])
def test_every_published_number_has_its_place(name: str) -> None:
    one = artifact(name)
    made = lines(one, Observations(name, "paper", ()))
    known = [dict(cell.labels) for cell in one.grid("paper").cells]
    found = 0
    for line in made:
        numbers = [entry for entry in line.entries.values() if entry.published is not None]
        if dict(line.labels) not in known:
            assert line.labels["task"] == "Average"  # of the eight numbers before it
        found += len(numbers)
    assert found == len(published(one))


def test_the_printed_averages_are_means_of_eight_and_so_is_ours() -> None:
    one = artifact("sln.table3")
    printed = {(p.labels["model"], p.labels["loss"], p.labels["task"]): p.value for p in published(one)}
    rows = []
    for cell in one.grid("paper").cells:
        measure = cell.columns["score"].removesuffix("%")
        value = printed[cell.labels["model"], cell.labels["loss"], cell.labels["task"]] / 100
        rows += [Record(cell.labels, seed, 3, {measure: value + seed / 100}) for seed in (0, 2)]

    def averages(kept: list[Record]) -> list[Pair]:
        table = lines(one, Observations(one.name, "paper", tuple(kept)))
        found = {
            tuple(line.labels.values()): line.entries["score"] for line in table if line.labels["task"] == "Average"
        }
        assert len(found) == 4
        return [found[model, "Average", loss] for model in ("BERT-BASE", "BERT-LARGE") for loss in ("CE", "SLN")]

    for entry in averages(rows):
        assert entry.count == 2
        assert entry.mean - 1 == pytest.approx(entry.published, abs=0.05)  # as printed, to a tenth
        assert entry.std == pytest.approx(2**0.5)
    some = [row for row in rows if row.labels["model"] == "BERT-BASE" or row.labels["task"] != "RTE" or row.seed == 2]
    assert [entry.count for entry in averages(some)] == [2, 2, 1, 1]
    none = [row for row in rows if row.labels["model"] == "BERT-BASE" or row.labels["task"] != "RTE"]
    assert [entry.missing for entry in averages(none)] == [None, None, "not run", "not run"]
    failed = [
        Record(cell.labels, 0, 0, {}, "failed") for cell in one.grid("paper").cells if cell.labels["task"] == "RTE"
    ]
    assert [entry.missing for entry in averages([*none, *failed])] == [None, None, "no result", "no result"]
    apart = [row for row in rows if (row.seed == 0) == (row.labels["task"] == "RTE")]
    assert [entry.missing for entry in averages(apart)] == ["not run"] * 4
    small = lines(one, Observations(one.name, "small", ()))
    assert not any(line.labels["model"] == "MiniLM" for line in small if line.labels["task"] == "Average")


@pytest.mark.parametrize("name", OWN)
def test_smoke(name: str, tmp_path: Path) -> None:
    one = artifact(name)
    store = Store(tmp_path)
    observed = reproduce(one, "smoke", Placement(tmp_path / "runs", device="cpu", workers=1), store)
    assert {row.status for row in observed.rows} <= {"done", "chance"}
    assert store.path(name, "smoke").exists()
    wanted = {spec.removeprefix("1-").removesuffix("%") for spec in one.columns.values()}
    wanted |= {
        spec.removesuffix("%")
        for cell in one.grid("smoke").cells
        for spec in cell.columns.values()
        if not spec.startswith("1-")
    }
    measured = set().union(*(row.values for row in observed.rows))
    assert wanted <= measured
    if one.figure is not None:
        done = Observations(name, "smoke", tuple(Record(r.labels, r.seed, r.epoch, r.values) for r in observed.rows))
        assert len(figure(one, done).data) > 0


def test_theorem_1_holds_to_rounding() -> None:
    for row in theorem1(400, [2, 5]):
        assert row.values["theory.decomposition_error"] < 1e-12
        assert row.values["theory.ce_error"] < 1e-12
        assert row.values["theory.ln_cosine"] < 1e-12
        assert row.values["theory.smallest_coefficient"] > 0


def test_dynamics_of_fixed_weights_know_their_directions() -> None:
    rows = {tuple(row.labels.values()): row for row in dynamics(300, 30, 1, [1.0], 2) if row.epoch == 300}
    assert rows["fixed", "CE", "-"].values["toy.drift"] < 1e-12
    assert rows["fixed", "LN", "1.0"].values["toy.off_line_median"] < 0.02  # 0.6 at the start
    assert rows["fixed", "SLN", "1.0"].values["toy.ratio"] < rows["fixed", "CE", "-"].values["toy.ratio"]


def test_seeds_move_as_one_cloud_or_alone() -> None:
    together, alone = (
        toy("SLN", 0.5, seeds, trained=False, points=10, steps=50, snapshots=2) for seeds in ([0, 1], [1])
    )
    torch.testing.assert_close(together[1].points, alone[0].points)
    torch.testing.assert_close(together[1].ratio, alone[0].ratio)


# verdicts

Made = Callable[[bool], Iterable[Record]]


def rows(labels: Mapping[str, str], mean: float, measure: str = "test.accuracy", seeds: int = 5) -> list[Record]:
    """Runs around a mean, with a spread of a thousandth of it."""
    offsets = [0.0, 0.5, -0.5, 1.0, -1.0, 0.25, -0.25]
    return [Record(labels, s, 10, {measure: mean + 0.001 * offsets[s]}) for s in range(seeds)]


def table1(**means: float) -> list[Record]:
    names = {"LS": "L-Softmax", "MS": "M-Softmax", "KD": "KD from ResNet-56"}
    made = []
    for name, mean in means.items():
        loss, _, depth = name.partition("_")
        labels = {"dataset": "CIFAR-10", "model": f"ResNet-{depth or 20}", "loss": names.get(loss, loss)}
        made += rows(labels, mean)
    return made


def grid(axis: str, means: Mapping[str, float], **labels: str) -> list[Record]:
    return [row for point, mean in means.items() for row in rows({**labels, axis: point}, mean)]


def peak(points: Iterable[str], best: str) -> dict[str, float]:
    return {point: 0.9 - 0.02 * abs(math.log(max(float(point), 0.01) / float(best))) for point in points}


TAUS = ("0.1", "0.2", "0.4", "0.8", "1.0")
RULE = ("0.02", "0.04", "0.08", "0.2", "0.4")
GAMMAS = [f"{k / 10:.1f}" for k in range(11)]
TINY = "Tiny-ImageNet-32"


def temperatures(holds: bool) -> list[Record]:
    made = grid("tau", {"0.2": 0.89, "1.0": 0.91, "0.1": 0.88, "0.4": 0.9, "0.8": 0.905}, loss="CE")
    for loss in ("LN", "SLN"):
        made += grid("tau", peak(TAUS, "0.2" if holds else "1.0"), loss=loss)
    return made


def taus(holds: bool) -> list[Record]:
    best = {"CIFAR-10": "0.2", f"{TINY}, 50 classes": "0.08", TINY: "0.04" if holds else "0.4"}
    return [row for name, tau in best.items() for row in grid("tau", peak(RULE, tau), dataset=name)]


def gammas(holds: bool) -> list[Record]:
    best = 0.7 if holds else 0.2
    return grid("gamma", {gamma: 0.92 - abs(float(gamma) - best) / 10 for gamma in GAMMAS}, dataset="CIFAR-10")


def differences(holds: bool) -> list[Record]:
    made = []
    for k, model in enumerate(("ResNet-20", "ResNet-32", "ResNet-56")):
        values = {f"test.logit_difference{end}": float(k if holds else -k) for end in ("", "_50", "_100")}
        made += [Record({"model": model}, s, 1, {"test.accuracy": 0.9 + 0.01 * k + 1e-4 * s, **values}) for s in (0, 1)]
    return made


def ratios(holds: bool) -> list[Record]:
    made = []
    for model in ("ResNet-20", "ResNet-32"):
        for loss, ratio in (("CE", 0.5), ("LN", 0.4), ("SLN", 0.3 if holds else 0.45)):
            values = {"test.intra_inter_ratio": ratio, "train.intra_inter_ratio": ratio / 2}
            for s in range(3):
                noisy = {name: value + 1e-3 * s for name, value in values.items()}
                made.append(Record({"model": model, "loss": loss}, s, 164, noisy))
    return made


def theorem(holds: bool) -> list[Record]:
    values = {"decomposition_error": 1e-14, "ln_cosine": 1e-14 if holds else 1e-3, "smallest_coefficient": 0.1}
    return [Record({"classes": "2"}, 0, 0, {f"theory.{k}": v for k, v in {**values, "cases": 5.0}.items()})]


def clouds(holds: bool) -> list[Record]:
    made = []
    for weights in ("fixed", "trained"):
        for loss, tau, ratio in (("CE", "-", 0.2), ("LN", "1.0", 0.3), ("SLN", "1.0", 0.1 if holds else 0.25)):
            values = {"toy.ratio": ratio, "toy.drift": 1e-15, "toy.off_line": 1e-6}
            made += [Record({"weights": weights, "loss": loss, "tau": tau}, s, 6000, values) for s in (0, 1)]
    return made


def glue(holds: bool) -> list[Record]:
    made = []
    for task, measure in (("CoLA", "test.matthews"), ("RTE", "test.accuracy")):
        for loss, mean in (("CE", 0.6), ("SLN", 0.63 if holds else 0.57)):
            labels = {"model": "MiniLM", "task": task, "loss": loss}
            made += [Record(labels, s, 3, {measure: mean + 1e-3 * s * (loss == "CE")}) for s in range(5)]
    return made


def augmented(holds: bool) -> list[Record]:
    means = {"CE": 0.5, "CE, advanced augmentation": 0.55, "SLN": 0.55 if holds else 0.45}
    return grid("loss", means, model="ResNet-18")


def classes(holds: bool) -> list[Record]:
    made = grid("loss", {"CE": 0.91, "SLN": 0.92}, dataset="CIFAR-10")
    return made + grid("loss", {"CE": 0.4, "SLN": 0.45 if holds else 0.405}, dataset=TINY)


VERDICTS: dict[str, tuple[str, Made]] = {
    "000-01": ("sln.table1", lambda holds: table1(CE=0.918, SLN=0.925 if holds else 0.91)),
    "000-02": ("sln.table1", lambda holds: table1(CE=0.918, LN=0.919 if holds else 0.90)),
    "000-03": ("sln.table1", lambda holds: table1(SLN=0.925, LN=0.91, LS=0.915, MS=0.92 if holds else 0.93)),
    "000-04": ("sln.table1", lambda holds: table1(SLN=0.925, CE_56=0.927 if holds else 0.94)),
    "000-05": ("sln.table1_classes", classes),
    "000-06": ("sln.table1", lambda holds: table1(SLN=0.925, KD=0.926 if holds else 0.94)),
    "000-07": ("sln.table4", temperatures),
    "000-08": ("sln.table5", taus),
    "000-09": ("sln.fig7", gammas),
    "000-10": ("sln.fig1", differences),
    "000-11": ("sln.fig6", ratios),
    "000-12": ("sln.theorem1", theorem),
    "000-13": ("sln.dynamics", clouds),
    "000-14": ("sln.table3", glue),
    "000-15": ("sln.table2", augmented),
}


@pytest.mark.parametrize("claim", VERDICTS)
def test_verdicts(claim: str, tmp_path: Path) -> None:
    name, made = VERDICTS[claim]
    assert judge(claim, Store(tmp_path / "nothing")).outcome == "not run"
    for holds, outcome in ((True, "reproduced"), (False, "not reproduced")):
        store = Store(tmp_path / outcome)
        store.add(name, "small", list(made(holds)))
        verdict = judge(claim, store)
        assert verdict.outcome == outcome, verdict.detail
        assert verdict.size == "small"


def test_a_network_keeps_its_colour_in_every_panel_of_figure_1() -> None:
    made = figure(artifact("sln.fig1"), Observations("sln.fig1", "small", tuple(differences(True))))
    colours: dict[str, set[str]] = {}
    for trace in made.data:
        colours.setdefault(trace.name, set()).add(trace.marker.color)
    assert all(len(one) == 1 for one in colours.values())
    assert len(set().union(*colours.values())) == len(colours) >= 3
    assert sum(made.layout[axis].title.text is not None for axis in ("xaxis", "xaxis2", "xaxis3")) == 1  # three overlap


def test_too_few_seeds_decide_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add("sln.table1", "small", [row for row in table1(CE=0.918, SLN=0.93) if row.seed < 3])
    assert judge("000-01", store).outcome == "inconclusive"
    store.add("sln.fig7", "small", gammas(True)[:5])
    assert judge("000-09", store).outcome == "inconclusive"


def test_a_missing_loss_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add("sln.table1", "small", table1(SLN=0.925, LN=0.91))
    verdict = judge("000-03", store)
    assert verdict.outcome == "not run"
    assert "L-Softmax" in verdict.detail


def test_smoke_proves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.add("sln.table1", "smoke", table1(CE=0.918, SLN=0.93))
    assert judge("000-01", store).outcome == "not run"
