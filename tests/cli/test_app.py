"""What every command shares: help, the version, one line for a mistake."""

import io
import itertools
import json
import subprocess
import sys

import numpy
import pytest
from typer.testing import CliRunner

import lastlayer
from lastlayer.cli import app, main

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


def test_a_locale_without_arrows_costs_no_table(tmp_path, monkeypatch):
    file, printed = tmp_path / "a.npz", io.BytesIO()
    numpy.savez(file, features=numpy.random.default_rng(0).normal(size=(30, 4)), target=numpy.arange(30) % 3)
    monkeypatch.setattr(sys, "argv", ["lastlayer", "measure", str(file)])
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="iso-8859-15"))
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    sys.stdout.flush()
    assert b"E_com            ?" in printed.getvalue()
    assert b"CDNV" in printed.getvalue()


# fcntl is missing on Windows, and the others take seconds to import.
EARLY = """
import json, sys
sys.modules["fcntl"] = None
from lastlayer.cli import app, main
from typer.testing import CliRunner
codes = [CliRunner().invoke(app, command.split()).exit_code for command in sys.argv[1:]]
heavy = {"torch", "numpy", "scipy", "sklearn", "torchmetrics", "plotly"}
print(json.dumps([codes, sorted(heavy & set(sys.modules))]))
"""


def test_arguments_are_parsed_before_anything_large_is_imported():
    commands = {"compare --help": 0, "measure --help": 0, "compare --no-such-option": 2, "compare --epochs abc": 2}
    ran = subprocess.run([sys.executable, "-c", EARLY, *commands], capture_output=True, text=True, timeout=120)
    assert json.loads(ran.stdout) == [[*commands.values()], []], ran.stderr
