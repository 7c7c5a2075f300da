import io

import pytest
from rich.console import Console

from lastlayer.reports import load, print_tables, summarise

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


def test_plain_text_fits_120_columns_and_has_every_default_measure(root):
    text = printed(root)
    for title in ("accuracy", "NC1", "NC2", "NC3", "E_com", "E_sep", "intra/inter", "AUPRC", "P@R90", "P@R99",
                  "violations", "ECE", "seconds"):  # fmt: skip
        assert title in text
    tables = [line for line in text.splitlines() if line.startswith(("ce", "sln"))]
    assert len(tables) == 4  # two tables of two losses, none cut in two
    assert max(map(len, tables)) <= 120
    assert "\x1b" not in text


def test_best_and_within_noise_are_marked(root):
    lines = printed(root).splitlines()
    features = lines[next(i for i, line in enumerate(lines) if "features (train)" in line) :]
    ce = next(line for line in features if line.startswith("ce"))
    assert "*0.11 ±.01" in ce
    sln = next(line for line in features if line.startswith("sln"))
    assert " 0.305 ±.007" in sln
    assert "\x1b[1m" in printed(root, terminal=True)


def test_runs_that_are_not_done_are_listed_and_counted(root):
    text = printed(root)
    assert "1 of 6 runs are not in the tables" in text
    assert "failed" in text
    assert "sln seed 2: broke [red]badly[/red]" in text
    assert "sln (2 of 3)" in text
    assert "Two [bold]losses[/bold]" in text


def test_a_narrow_terminal_gets_more_tables_instead_of_cut_ones(root):
    text = printed(root, width=60, terminal=True)
    assert "continued" in text
    assert "…" not in text
    for title in ("accuracy", "ECE", "intra/inter"):
        assert title in text


def test_everything_on_every_split(root):
    text = printed(root, everything=True)
    assert text.count("NLL") == 2
    assert "log Z mean" in text


def test_nothing_done(tmp_path):
    factory.failed(tmp_path, trial())
    text = printed(tmp_path)
    assert "No run is finished" in text
    assert "ce seed 0" in text
