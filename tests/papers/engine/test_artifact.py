"""Artifacts from TOML: layers of settings, sizes, and mistakes that are named."""

import pytest

from lastlayer.papers import PAPERS, SIZES, artifact, artifacts, published
from lastlayer.papers.engine.artifact import parse

TEXT = """
[settings]
"batch_size" = 16
"schedule" = { name = "constant", epochs = 100 }

[smoke]
"schedule.epochs" = 1
"model" = { name = "mlp", options = { width = 8 } }

[choices.momentum]
value = "0.5"
reason = "half way"
settings = { "optimiser.momentum" = 0.5 }

[artifacts.table1]
where = "Table 1"
shows = "something"
columns = { accuracy = "test.accuracy%" }
choices = ["momentum"]
seeds = 4
settings = { "batch_size" = 32 }

[artifacts.table1.axes.model]
"wide" = { "model.name" = "mlp", "model.width" = 64 }
"narrow" = { "model.name" = "mlp", "model.width" = 32 }

[artifacts.table1.axes.loss]
"CE" = { "loss.name" = "ce", "optimiser.lr" = 0.1 }
"SLN" = { "loss.name" = "sln", "loss.gamma" = 0.5, "columns" = { accuracy = "train.accuracy%" } }
"MSE" = { "loss.name" = "mse" }

[artifacts.table1.small]
note = "less"
seeds = 3
keep = { loss = ["SLN"] }
settings = { "schedule.epochs" = 10 }
"""


def table1(text=TEXT):
    return parse("sln", text)["sln.table1"]


def test_the_published_size_is_the_whole_product():
    grid = table1().grid("paper")
    assert [tuple(cell.labels.values()) for cell in grid.cells] == [
        (model, loss) for model in ("wide", "narrow") for loss in ("CE", "SLN", "MSE")
    ]
    assert grid.seeds == (0, 1, 2, 3)
    trials = grid.trials()
    assert len(trials) == 24
    assert {trial.schedule.epochs for trial in trials} == {100}
    assert {trial.batch_size for trial in trials} == {32}  # the artifact's over the paper's
    assert {trial.optimiser.momentum for trial in trials} == {0.5}  # a choice
    assert trials[0].model.options == {"width": 64}


def test_sizes_change_what_they_say():
    small, smoke = table1().grid("small"), table1().grid("smoke")
    assert [cell.labels["loss"] for cell in small.cells] == ["SLN", "SLN"]
    assert (small.note, small.seeds) == ("less", (0, 1, 2))
    assert {cell.trial.schedule.epochs for cell in small.cells} == {10}
    assert small.cells[0].columns == {"accuracy": "train.accuracy%"}
    assert len(smoke.cells) == 4  # two points an axis
    assert smoke.seeds == (0, 1)
    assert all(cell.trial.model.options == {"width": 8} for cell in smoke.cells)  # replaced, not merged


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = 4", "seed = 4", "sln.table1: there is no 'seed'.*seeds"),
        ("seeds = 4", 'average = "los"', "sln.table1, average: there is no 'los'.*loss"),
        ('note = "less"', 'notes = "less"', "sln.table1, small: there is no 'notes'.*note"),
        ('choices = ["momentum"]', 'choices = ["momentun"]', "choices: there is no 'momentun'.*momentum"),
        ('keep = { loss = ["SLN"] }', 'keep = { loss = ["SLM"] }', "keep, loss: there is no 'SLM'.*SLN"),
        ('"batch_size" = 32', '"batchsize" = 32', "there is no setting batchsize.*batch_size"),
    ],
)
def test_mistakes_are_named(old, new, message):
    with pytest.raises(ValueError, match=message):
        table1(TEXT.replace(old, new)).grid("small")


def test_unknown_artifacts_get_a_suggestion():
    with pytest.raises(ValueError, match=r"no artifact 'sln.tabel1'.*sln\.table1"):
        artifact("sln.tabel1")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", sorted(artifacts()))
def test_every_grid_resolves(name, size):
    one = artifact(name)
    grid = one.grid(size)
    assert one.shows
    assert one.where
    assert grid.trials() or one.compute
    if grid.search is not None:
        assert set(grid.search.per) <= set(one.axes)
    if one.figure is not None and "x" in one.figure:
        assert one.figure["x"] == "epoch" or one.figure["x"] in one.axes or one.compute


def test_tiny_imagenet_stands_in_at_32_pixels():
    found = {
        name: trial.data.options
        for name, one in artifacts().items()
        for trial in one.grid("small").trials()
        if trial.data.name == "tiny-imagenet"
    }
    assert len(found) > 10
    assert all(options.get("size") == 32 for options in found.values()), found


def test_every_paper_has_artifacts_and_published_numbers():
    for paper in PAPERS:
        own = [one for one in artifacts().values() if one.paper == paper]
        assert own, paper
        if paper not in ("all_losses", "bn_wd"):  # ours; and a paper whose results are figures alone
            assert any(published(one) for one in own), paper


def test_axes_can_be_shared_or_given_as_values_and_artifacts_can_be_alike():
    text = (
        TEXT
        + """
[axes.kinds]
"plain" = { "loss.name" = "ce" }
"square" = { "loss.name" = "mse" }

[artifacts.fig1]
like = "table1"
where = "Fig 1"
axes = { loss = "kinds", width = { setting = "model.width", values = [8, 0.5] } }
small = { keep = { width = ["8"] } }
"""
    )
    other = parse("sln", text)["sln.fig1"]
    assert (other.where, other.shows) == ("Fig 1", "something")
    assert other.axes == {
        "loss": {"plain": {"loss.name": "ce"}, "square": {"loss.name": "mse"}},
        "width": {"8": {"model.width": 8}, "0.5": {"model.width": 0.5}},
    }
    assert [cell.trial.model.options["width"] for cell in other.grid("small").cells] == [8, 8]
    assert other.grid("small").cells[0].trial.schedule.epochs == 100  # its own small in the place of the other's
    with pytest.raises(ValueError, match="there is no 'kind'"):
        parse("sln", text.replace('"kinds"', '"kind"'))
