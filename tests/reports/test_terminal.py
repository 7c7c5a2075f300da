"""The terminal shows the answer, a small table without symbols, and everything if it is wanted."""

import dataclasses
import io
import re

import pytest
import torch
from rich.console import Console

from lastlayer._core.files import write_json
from lastlayer.reports import answers, load, print_tables, summarise
from lastlayer.runs import RunFolder

from . import factory
from .factory import trial


@pytest.fixture
def root(tmp_path):
    trials = [trial(loss, seed) for loss in ("ce", "sln") for seed in range(3)]
    for one in trials[:5]:
        test = {"accuracy": 0.9 + 0.01 * one["seed"], "nll": 0.5, "ece": 0.1}
        factory.done(tmp_path, one, test=test, train={"nc1": 0.1 + 0.01 * one["seed"]})
    factory.failed(tmp_path, trials[5], "broke [red]badly[/red]")
    factory.comparison(tmp_path, trials, title="Two [bold]losses[/bold]")
    return tmp_path


def printed(root, width=120, terminal=False, goals=(), **options):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system="truecolor" if terminal else None)
    print_tables(dataclasses.replace(summarise(load(root)), goals=goals), console=console, **options)
    return file.getvalue()


def tables(text):
    """The lines of each table, split where two or more blanks are."""
    blocks = re.split(r"\n\s*\n", text)
    rows = [[re.split(r" {2,}", line.strip()) for line in block.splitlines()] for block in blocks]
    return [block for block in rows if block[0][0] == "loss"]


def cells(text, measure, split):
    """What stands in the line of a measure and split in the table of everything."""
    lines = [line for line in text.splitlines() if re.match(r"\S.* (test|train)\b| +(test|train)\b", line)]
    start = next(i for i, line in enumerate(lines) if line.startswith(measure))
    return next(line for line in lines[start:] if f" {split}" in line).split(split)[1].split()


def test_what_failed_altogether_is_said_once(tmp_path):
    trials = [trial(loss, seed) for loss in ("ce", "sln") for seed in range(2)]
    for one in trials:
        factory.failed(tmp_path, one, "the loss is not finite")
    factory.comparison(tmp_path, trials)
    text = printed(tmp_path)
    assert text.count("nothing to") == 1
    assert "ll runs failed, so there is nothing to compare." in text
    assert "yet" not in text


def test_the_ends_of_a_narrow_interval_do_not_look_the_same(tmp_path):
    """No error on 2,000 rows: another test set may show one or two."""
    trials = [trial(loss, seed) for loss in ("ce", "sln") for seed in range(3)]
    target = torch.arange(2000, dtype=torch.int32) % 4
    for one in trials:
        kept = {"target": target, "decision": target, "log_loss": torch.ones(2000)}
        factory.done(tmp_path, one, test={"accuracy": 1.0}, rows=kept)
    factory.comparison(tmp_path, trials)
    (table,) = tables(printed(tmp_path))
    value, interval = table[1][1:3]
    low, high = interval.split(" to ")
    assert value == "100.00 %"
    assert high == "100.00"
    assert 99.8 < float(low) < 99.95


def test_the_answer_comes_first_and_then_a_line_per_loss(root):
    text = printed(root, more="lastlayer report x --all")
    lines = [line for line in text.splitlines() if line]
    (answer,) = answers(summarise(load(root)))
    assert lines[0] == "Two [bold]losses[/bold]"
    assert lines[1].startswith(answer.headline[:80])
    assert all(sentence in text.replace("\n", " ") for sentence in answer.sentences if len(sentence) < 100)
    (table,) = tables(text)
    assert table[0] == ["loss", "accuracy", "95 % interval", "errors of 200", "finding"]
    assert table[1][:2] == ["ce", "91.0 %"]
    assert table[1][3:] == ["18", "recommended"]
    assert table[2][0] == "sln (2 of 3)"
    assert "Every measure: lastlayer report x --all" in text
    assert "\x1b" not in text


def test_the_best_loss_stands_first_and_every_loss_has_a_finding(tmp_path):
    for loss, accuracy in (("ce", 0.3), ("sln", 0.9), ("mse", 0.88)):
        for seed in range(3):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": accuracy + 0.001 * seed})
    (table,) = tables(printed(tmp_path))
    assert [row[0] for row in table[1:]] == ["sln", "mse", "ce"]
    assert [row[-1] for row in table[1:]] == ["best mean", "recommended", "shown to be worse"]


MANY = ("accuracy", "balanced", "single-logit", "calibration", "open-set", "tail")


@pytest.mark.parametrize("goals", [(), ("calibration",), ("accuracy", "calibration"), MANY])
def test_tables_have_no_symbols_and_at_most_five_columns(root, goals):
    text = printed(root, goals=goals)
    assert not re.search(r"[^\x00-\x7f]|\bNC\d|[*~↑]", text)
    assert tables(text)
    assert all(len(row) <= 5 for table in tables(text) for row in table)


def test_goals_that_cannot_be_answered_are_said_and_their_means_are_shown(root):
    text = " ".join(printed(root, goals=("accuracy", "open-set", "calibration")).split())
    assert "Open-set score: the data cannot answer open-set" in text
    assert "Log-loss: no difference in log-loss can be judged" in text
    heads = tables(printed(root, goals=("accuracy", "open-set", "calibration")))[0][0]
    assert heads == ["loss", "accuracy", "log-loss"]


def test_sentences_that_hold_for_all_goals_are_said_once(root):
    text = " ".join(printed(root, goals=("accuracy", "accuracy")).split())
    assert text.count("were not tuned") == 1


def test_everything_on_every_split(root):
    text = printed(root, everything=True)
    assert len(cells(text, "NLL", "test")) == len(cells(text, "NLL", "train")) == 2
    assert "log Z mean" in text
    assert cells(text, "NC1", "train") == ["0.110±.010", "0.105±.007"]
    assert "± is the standard deviation over seeds." in text
    assert "seconds" in text


def test_a_file_gets_one_table_of_any_number_of_losses(tmp_path):
    trials = [trial("sln", options={"gamma": gamma / 100}) for gamma in range(20)]
    for one in trials:
        factory.done(tmp_path, one)
    text = printed(tmp_path, everything=True)
    assert len(cells(text, "accuracy", "test")) == 20
    assert len([line for line in text.splitlines() if line.startswith("accuracy ↑")]) == 1
    assert len(tables(text)[0]) == 21


def test_last_and_best_validation_results_stand_together(tmp_path):
    best = {"epoch": 5, "validation_accuracy": 0.77, "test": {"accuracy": 0.66, "nc1": 0.5}}
    for loss in ("ce", "sln"):
        factory.done(tmp_path, trial(loss), best=best)
    lines = printed(tmp_path, everything=True).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("accuracy ↑"))
    assert [line[:20].split()[-1] for line in lines[start : start + 4]] == ["test", "train", "best", "valid."]
    assert "0.6600" in lines[start + 2]
    assert "0.7700" in lines[start + 3]


def test_runs_that_are_not_done_are_listed_and_counted(root):
    text = printed(root)
    assert "1 of 6 runs are not in the table:" in text
    assert "failed" in text
    assert "sln seed 2: broke [red]badly[/red]" in text


def test_a_narrow_terminal_gets_more_parts_instead_of_cut_cells(root):
    text = re.sub(r"\x1b\[[0-9;]*m", "", printed(root, width=38, terminal=True, everything=True))
    assert len([line for line in text.splitlines() if line.startswith("accuracy ↑")]) == 2
    assert "…" not in text
    table = text[text.index("accuracy ↑") : text.rindex("seconds")]
    assert max(map(len, table.splitlines())) <= 38


def test_one_loss_is_shown_without_talk_of_others(tmp_path):
    for seed in range(2):
        factory.done(tmp_path, trial("ce", seed))
    text = printed(tmp_path)
    assert tables(text)[0][0] == ["loss", "accuracy", "log-loss", "precision of a single logit"]
    assert not re.search("best|compare|recommend|interval", text)


def test_nothing_done(tmp_path):
    factory.failed(tmp_path, trial())
    text = printed(tmp_path)
    assert "All runs failed" in text
    assert "ce seed 0" in text
    assert "(0 of 1)" not in text  # no empty table


def test_runs_that_chose_settings_on_validation_samples_recommend_nothing(tmp_path):
    for lr, accuracy in ((0.1, 0.9), (0.2, 0.8)):
        path = factory.done(tmp_path, trial("ce", lr=lr))
        kept = RunFolder(path).result()
        write_json(path / "result.json", {**kept, "measures": {"validation": {"accuracy": accuracy, "nll": 0.5}}})
    text = printed(tmp_path)
    assert "Measured on validation samples alone" in text
    assert tables(text)[0][1:] == [["ce lr=0.1", "0.9000", "0.5000"], ["ce lr=0.2", "0.8000", "0.5000"]]
    assert "recommend ce" not in text
