"""Normalized spaces: grids, computed artifacts, and every artifact at smoke size."""

import csv
import functools
import itertools
import math
from importlib.resources import files

import pytest

from lastlayer.papers import (
    Observations,
    Record,
    Store,
    artifact,
    artifacts,
    cost,
    figure,
    published,
    reproduce,
)
from lastlayer.papers.engine.table import lines
from lastlayer.papers.normalized_scaling import over_splits
from lastlayer.papers.normalized_scaling.theory import (
    LogLoss,
    log_slope,
    printed_fits,
    sphere_collapse,
    sphere_minima,
    sphere_times,
)
from lastlayer.runners import Placement
from lastlayer.theory.minima import normalized_binary_cross_entropy

PAPER = "normalized_scaling"
OURS = {name: one for name, one in artifacts().items() if one.paper == PAPER}
# trials at size small and paper
COUNTS = {
    "fig1": (96, 56), "fig2": (12, 12), "fig3": (12, 12), "fig4": (4, 12), "fig5": (12, 8), "fig6": (42, 28),
    "fig7": (18, 28), "fig8": (24, 144), "fig9": (24, 108), "fig10": (24, 224), "fig11": (24, 112), "fig12": (48, 56),
    "fig13": (48, 168), "fig14": (48, 56), "fig15": (48, 56), "fig16": (90, 57), "relu": (12, 8), "table1": (30, 14),
    "table2": (63, 36), "table3": (30, 40), "table5": (48, 56), "table6": (48, 56), "table7": (48, 56),
    "table8": (48, 56), "table9": (24, 36), "table10": (120, 160), "table11": (36, 57),
    "minima": (0, 0), "sphere": (0, 0), "printed_fits": (0, 0),
}  # fmt: skip


@functools.cache
def trials(name, size):
    return OURS[f"{PAPER}.{name}"].grid(size).trials()


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_every_grid_builds_with_as_many_trials_as_published():
    assert {one.name.partition(".")[2] for one in OURS.values()} == COUNTS.keys()
    for name, counts in COUNTS.items():
        assert tuple(len(trials(name, size)) for size in ("small", "paper")) == counts, name
    for name in COUNTS:
        tasks = {"table2", "table3", "table9", "table10"}  # accuracy, which cosines near 1 have no part in
        for size in ("small", "paper"):
            precision = "bfloat16" if size == "small" and name in tasks else "float32"
            assert {(trial.head.name, trial.precision) for trial in trials(name, size)} <= {("normalized", precision)}


def test_the_sweep_of_scales_shares_its_runs():
    runs = {name: {trial.identity for trial in trials(name, "small")} for name in COUNTS}
    assert runs["table5"] == runs["table7"] == runs["fig12"] == runs["fig14"]
    assert runs["table6"] == runs["table8"] == runs["fig15"]
    assert runs["table1"] < runs["table5"]
    assert runs["fig1"] == runs["table5"] | runs["table6"]
    assert runs["table3"] < runs["table10"]


def test_published_numbers_have_a_cell():
    for one in OURS.values():
        numbers = published(one)
        assert bool(numbers) == (one.published is not None)
        if one.compute is not None:
            continue
        grid = one.grid("paper")
        for number in numbers:
            cells = [c for c in grid.cells if all(c.labels[axis] == label for axis, label in number.labels.items())]
            assert cells, (one.name, number)
            assert all(number.column in cell.columns for cell in cells), (one.name, number)
    table11 = OURS[f"{PAPER}.table11"]
    assert len(published(table11)) == len(table11.grid("paper").cells)  # not a cell without a number either


def test_counted_epochs_stand_beside_their_own_tolerance():
    """The paper counts to 0.001 below scale 5 and to 0.0035 from there on."""
    for number in published(OURS[f"{PAPER}.table11"]):
        assert number.column == f"epochs to {0.001 if float(number.labels['gamma']) < 5 else 0.0035:g}"


def test_small_scales_end_where_the_criterion_says():
    labels = itertools.product(("CE", "BCE"), ("0.3", "0.4", "0.5", "5"))
    rows = [Record({"loss": loss, "classes": "10", "gamma": g}, 0, 0, {"sphere.time": 1.0}) for loss, g in labels]
    observed = Observations(f"{PAPER}.sphere", "small", tuple(rows))
    assert [*sphere_times(observed, small=True).times["BCE"]] == [0.3, 0.4]
    assert [*sphere_times(observed, small=False).times["BCE"]] == [5.0]


def test_the_vit_of_tiny_imagenet_fits_its_images():
    made = [trial for trial in trials("table9", "paper") if trial.data.name == "tiny-imagenet"]
    assert {trial.model.options.get("patch") for trial in made if trial.model.name == "vit"} == {8}
    assert {cost.shape(trial.data)[1] for trial in made} == {(3, 64, 64)}


def test_numbers_written_out_are_those_of_the_theory():
    for scale, point in artifact(f"{PAPER}.fig11").axes["gamma"].items():
        bias = normalized_binary_cross_entropy(10, float(scale)).bias
        assert point["head.bias_mean"] == pytest.approx(bias, abs=1e-4)
        assert point["head.scale"] == float(scale)
    for variance, point in artifact(f"{PAPER}.fig8").axes["variance"].items():
        assert point["head.bias_std"] ** 2 == pytest.approx(float(variance), abs=1e-7)


def test_each_split_has_its_own_published_classes():
    made = trials("table10", "paper")
    assert {(trial.data.arpl, trial.data.seed) for trial in made} == {(True, split) for split in range(5)}
    plus = [trial for trial in made if trial.data.unknown_from == "cifar100"]
    assert len(plus) == 5 * 4 * 2
    standing_in = [t for t in trials("table10", "small") if t.data.name == "fashion-mnist"]
    assert {(t.data.arpl, t.data.unknown, t.data.seed) for t in standing_in} == {
        (False, 4, split) for split in range(5)
    }


# computed artifacts ------------------------------------------------------------------------------------------------


def test_the_logarithm_of_the_loss_is_that_of_the_losses():
    import torch

    from lastlayer import losses

    logits = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0, 1, 2, 3, 0, 1])
    for binary, of in ((False, losses.cross_entropy), (True, losses.binary_cross_entropy)):
        log_loss = LogLoss(binary=binary)
        torch.testing.assert_close(log_loss(logits, target), of(logits, target).log())
        torch.testing.assert_close(log_loss(80 * logits, target), of(80 * logits, target).log())
        assert torch.autograd.gradcheck(lambda z, log_loss=log_loss: log_loss(z, target), (logits,))
    certain = 150 * torch.nn.functional.one_hot(target, 4).double() - 75  # 1 + exp(-75) is 1 in float64
    assert float(LogLoss(binary=True)(certain, target)) == pytest.approx(math.log(4) - 75)
    assert float(LogLoss(binary=False)(certain, target)) == pytest.approx(math.log(3) - 150)


def test_minima_are_found_where_the_theorems_say():
    rows = {(row.labels["loss"], row.labels["gamma"]): row.values for row in sphere_minima([3], [0.5, 64.0], 2)}
    for (loss, _), values in rows.items():
        assert values["minimum.relative_gap"] < 1e-10
        if loss == "CE":
            assert values["minimum.shift"] < 1e-10
        else:
            assert values["minimum.bias_error"] < 1e-6
            assert values["minimum.shift"] > 1  # BCE's bias is not free


def test_times_on_the_sphere_grow_towards_both_ends():
    rows = list(sphere_collapse([3], [0.1, 0.2, 0.4], {"CE": [4.0, 5.0], "BCE": [4.0, 5.0]}, 0.05, 2, 5000))
    assert len(rows) == 2 * 5 * 2
    for loss in ("CE", "BCE"):
        time = {
            row.labels["gamma"]: row.values["sphere.time"]
            for row in rows
            if row.seed == 0 and row.labels["loss"] == loss
        }
        assert time["0.1"] > time["0.2"] > time["0.4"]
        assert math.inf > time["5"] > time["4"]
    impatient = list(sphere_collapse([3], [0.1], {"CE": [], "BCE": []}, 0.05, 1, 3))
    assert [row.values["sphere.steps"] for row in impatient] == [math.inf, math.inf]


def test_the_printed_fits_follow_from_the_printed_counts():
    ours = {line.labels["loss"] + line.labels["scales"]: line.entries for line in _lines_of_fits()}
    for entries in ours.values():
        for title in ("a", "k", "c"):
            if entries[title].published is not None:
                assert entries[title].mean == pytest.approx(entries[title].published, abs=0.006)
    assert log_slope([1, 2, 4], [3.0, 12.0, 48.0]) == pytest.approx(2.0)


def _lines_of_fits():
    one = artifact(f"{PAPER}.printed_fits")
    from lastlayer.papers import Observations

    return lines(one, Observations(one.name, "paper", tuple(printed_fits())))


# every artifact, run at smoke size -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")  # shared, since artifacts share runs


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_artifact_runs_at_smoke_size(name, runs, store):
    one = OURS[name]
    observed = reproduce(one, "smoke", Placement(runs, "cpu", workers=1), store)
    assert store.path(name, "smoke").exists()
    assert {row.status for row in observed.rows} <= {"done", "chance"}  # a few steps at an odd scale may teach nothing
    for line in lines(one, observed):
        if any(entry.count for entry in line.entries.values()):
            missing = [title for title, entry in line.entries.items() if not entry.count]
            assert one.compute or not missing, line
    if one.figure is not None:
        assert figure(one, observed) is not None


def test_first_epochs_are_those_of_the_history(runs, store):
    one = OURS[f"{PAPER}.fig14"]
    observed = reproduce(one, "smoke", Placement(runs, "cpu", workers=1), store)
    for row in observed.final():
        for name, least in (("accuracy", 0.9975), ("separability", 0.5525)):
            reached = row.values[f"train.epochs_to_{name}"]
            assert reached >= 1
            assert row.values[f"train.{name}"] < least or reached <= 4


def test_splits_are_the_seeds_of_one_line(runs, store):
    observed = reproduce(OURS[f"{PAPER}.table3"], "smoke", Placement(runs, "cpu", workers=1), store)
    together = observed.values("test.auroc", split="all", loss="CE")
    apart = {int(split): observed.values("test.auroc", split=split, loss="CE")[0] for split in ("0", "1")}
    assert together == apart
    assert together[0] != together[1]


def test_further_seeds_of_a_split_are_not_lost():
    class Folder:
        def __init__(self, auroc):
            self.auroc = auroc

        def result(self):
            return {"history": [{"epoch": 3, "test": {"auroc": self.auroc, "oscr": 0.5, "accuracy": 0.5}}]}

    done = [
        ({"split": str(split), "loss": "CE"}, seed, Folder(seed + split / 10)) for split in (0, 1) for seed in (0, 1)
    ]
    made = Observations("x.y", "small", tuple(over_splits(done, None)))
    assert sorted(made.values("test.auroc", split="all").values()) == [0.0, 0.1, 1.0, 1.1]


def test_packaged_numbers_are_plain_tables():
    for one in OURS.values():
        if one.published is not None:
            text = (files("lastlayer.papers") / PAPER / "published" / one.published).read_text()
            assert csv.DictReader(text.splitlines()).fieldnames[-3:] == ["column", "value", "std"]
