"""What every command shares: help, the version, one line for a mistake."""

import itertools
import os
import subprocess
import sys

import numpy
import pytest
from typer.testing import CliRunner

import lastlayer
from lastlayer.cli import app

COMMANDS = [info.name or info.callback.__name__.replace("_", "-") for info in app.registered_commands]
GROUPS = [info.name for info in app.registered_groups]


def test_the_version():
    said = CliRunner().invoke(app, ["--version"])
    assert said.exit_code == 0
    assert said.output == f"lastlayer {lastlayer.__version__}\n"


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS])
def test_every_command_has_help_that_begins_with_a_sentence(command):
    said = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "100"})
    assert said.exit_code == 0
    first = [line.strip() for line in said.output.splitlines() if line.strip()][1]
    assert first[0].isupper()
    assert len(first.split()) >= 4


def test_the_losses_that_compare_takes_by_default_are_those_it_names():
    said = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert "[default: ce,ls,mse,bce,sln,batch-ce]" in said


def test_help_is_broken_where_the_terminal_ends_and_nowhere_else():
    said = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "60"}).output
    paragraph = said.split("Arguments")[0].strip().split("\n" + " " * 60 + "\n")[-2]
    lines = [line.strip() for line in paragraph.splitlines() if line.strip()]
    for line, following in itertools.pairwise(lines):
        assert len(line) + 1 + len(following.split()[0]) > 58, line


@pytest.mark.parametrize("group", [[], *([name] for name in GROUPS)], ids=str)
def test_help_has_every_word_of_the_docstrings(group):
    typed = {info.name: info.typer_instance for info in app.registered_groups}[group[0]] if group else app
    for info in typed.registered_commands:
        name = info.name or info.callback.__name__.replace("_", "-")
        said = CliRunner().invoke(app, [*group, name, "--help"], env={"COLUMNS": "2000"}).output
        assert not set(info.callback.__doc__.split()) - set(said.split()), name


def test_a_command_that_is_not_there():
    said = CliRunner().invoke(app, ["comprae"])
    assert said.exit_code == 2
    assert "comprae" in said.output


def test_a_locale_without_arrows_costs_no_table(tmp_path):
    file = tmp_path / "a.npz"
    numpy.savez(file, features=numpy.random.default_rng(0).normal(size=(30, 4)), target=numpy.arange(30) % 3)
    made = subprocess.run(
        [sys.executable, "-c", "from lastlayer.cli import main; main()", "measure", str(file)],
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": "iso-8859-15"}, timeout=120,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert b"E_com            ?" in made.stdout
    assert b"CDNV" in made.stdout
