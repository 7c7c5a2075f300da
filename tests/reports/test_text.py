import io
import re

import pytest
from rich.console import Console

from lastlayer.reports import load, print_tables, summarise, write_page

from . import factory
from .factory import trial


@pytest.fixture
def root(tmp_path):
    trials = [trial(loss, seed) for loss in ("ce", "sln") for seed in range(3)]
    for one in trials[:5]:
        shift = 0.2 * (one["loss"]["name"] == "sln")
        factory.done(
            tmp_path, one, test={"accuracy": 0.9 + 0.01 * one["seed"]}, train={"nc1": 0.1 + shift + 0.01 * one["seed"]}
        )
    factory.failed(tmp_path, trials[5], "broke [red]badly[/red]")
    factory.comparison(tmp_path, trials, title="Two [bold]losses[/bold]")
    return tmp_path


def printed(root, width=120, terminal=False, **options):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    print_tables(summarise(load(root)), console=console, **options)
    return file.getvalue()


def cells(text, measure, split):
    """What stands in the line of a measure and split."""
    lines = [line for line in text.splitlines() if re.match(r"\S.* (test|train)\b| +(test|train)\b", line)]
    start = next(i for i, line in enumerate(lines) if line.startswith(measure))
    return next(line for line in lines[start:] if f" {split}" in line).split(split)[1].split()


def test_one_table_has_every_default_measure_on_test_and_train(root):
    text = printed(root)
    heads = [line for line in text.splitlines() if line.split() in (["ce", "sln", "(2", "of", "3)"], ["ce", "sln"])]
    assert len(heads) == 1
    for title in ("accuracy", "NC1", "NC2", "NC3", "E_com", "E_sep", "intra/inter", "AUPRC", "P@R90", "P@R99",
                  "violations", "ECE"):  # fmt: skip
        for split in ("test", "train"):
            assert len(cells(text, title, split)) == 2, title
    assert "seconds" in text
    assert "\x1b" not in text


@pytest.mark.parametrize(("losses", "best"), [(("ce",), False), (("ce", "sln"), True)])
def test_of_one_seed_noise_is_not_spoken_of(tmp_path, losses, best):
    for loss in losses:
        factory.done(tmp_path, trial(loss, 0))
    text = printed(tmp_path)
    page = write_page(summarise(load(tmp_path)), tmp_path / "page.html").read_text()
    note = re.search(r'<p class="note">(.*?)</p>', page[page.index('id="splits"') :]).group(1)
    for said in (text, note):
        assert "ithin noise" not in said
        assert "±" not in said
    assert ("* best." in text) == best
    assert ("best" in note) == best


def test_a_file_gets_one_table_of_any_number_of_losses(tmp_path):
    trials = [trial("sln", options={"gamma": gamma / 100}) for gamma in range(20)]
    for one in trials:
        factory.done(tmp_path, one)
    text = printed(tmp_path)
    assert len(cells(text, "accuracy", "test")) == 20
    assert len([line for line in text.splitlines() if line.startswith("accuracy")]) == 1


def test_best_and_within_noise_are_marked(root):
    text = printed(root)
    assert cells(text, "NC1", "train") == ["*0.110±.010", "0.305±.007"]
    accuracy = cells(text, "accuracy", "test")
    assert accuracy == ["*0.9100±.0100", "~0.9050±.0071"]
    assert "\x1b[1m" in printed(root, terminal=True)
    assert "★" not in text  # three seeds have no winner to explain


def test_five_seeds_name_a_winner(tmp_path):
    for seed in range(5):
        for loss, accuracy in (("ce", 0.8), ("sln", 0.9)):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": accuracy + 0.001 * seed * (loss == "ce")})
    text = printed(tmp_path)
    assert cells(text, "accuracy", "test")[1].startswith("★0.9000")
    assert "★ winner" in text


def test_last_and_best_validation_results_stand_together(tmp_path):
    best = {"epoch": 5, "validation_accuracy": 0.77, "test": {"accuracy": 0.66, "nc1": 0.5}}
    for loss in ("ce", "sln"):
        factory.done(tmp_path, trial(loss), best=best)
    lines = printed(tmp_path).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("accuracy"))
    assert [line[:20].split()[-1] for line in lines[start : start + 4]] == ["test", "train", "best", "valid."]
    assert "0.6600" in lines[start + 2]
    assert "0.7700" in lines[start + 3]


def test_runs_that_are_not_done_are_listed_and_counted(root):
    text = printed(root)
    assert "1 of 6 runs are not in the table:" in text
    assert "failed" in text
    assert "sln seed 2: broke [red]badly[/red]" in text
    assert "sln (2 of 3)" in text
    assert "Two [bold]losses[/bold]" in text


def test_a_narrow_terminal_gets_more_parts_instead_of_cut_cells(root):
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(root, width=45, terminal=True))
    assert len([line for line in text.splitlines() if line.startswith("accuracy")]) == 2
    assert "…" not in text
    table = text[text.index("accuracy ↑") : text.rindex("seconds")]
    assert max(map(len, table.splitlines())) <= 45


def test_everything_on_every_split(root):
    text = printed(root, everything=True)
    assert len(cells(text, "NLL", "test")) == len(cells(text, "NLL", "train")) == 2
    assert "log Z mean" in text


def test_one_loss_is_shown_without_talk_of_others(tmp_path):
    for seed in range(2):
        factory.done(tmp_path, trial("ce", seed))
    text = printed(tmp_path)
    assert "best" not in text
    assert "compare" not in text
    assert "± is the standard deviation over seeds." in text


def test_nothing_done(tmp_path):
    factory.failed(tmp_path, trial())
    text = printed(tmp_path)
    assert "No run is finished" in text
    assert "ce seed 0" in text
    assert "(0 of 1)" not in text  # no empty table
