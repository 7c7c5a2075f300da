"""Tables of text in terminals of any width."""

import io

import pytest
from rich.console import Console

from lastlayer.reports.text import Layout, PrintedColumn, parts, print_table, stdout


def printed(columns, groups=(), width=40, terminal=True, **layout):
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, color_system=None)
    print_table(console, columns, groups, layout=Layout(**layout))
    return file.getvalue()


NAMES = [PrintedColumn("loss", ["ce", "sln"])]
GROUPS = [[PrintedColumn(f"measure {i}", [f"{i}.5", "[bold]7"], right=True)] for i in range(6)]


def test_a_file_gets_one_table_however_wide_it_is() -> None:
    lines = printed(NAMES, GROUPS, terminal=False).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["ce", *(f"{i}.5" for i in range(6))]
    assert lines[2].split() == ["sln", *["[bold]7"] * 6]  # a text is never read as markup


def test_a_console_is_as_wide_after_a_table_as_before() -> None:
    console = Console(file=io.StringIO(), width=40, force_terminal=False)
    print_table(console, NAMES, GROUPS)
    assert console.width == 40


def test_sentences_in_a_pipe_have_at_least_120_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    stdout().print("a word " * 20)
    assert [len(line.strip()) for line in capsys.readouterr().out.splitlines()] == [120, 18]


def test_a_narrow_terminal_gets_several_parts_with_the_first_columns_in_each() -> None:
    lines = printed(NAMES, GROUPS).splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split()[0] for line in lines if line.strip()].count("ce") == len(
        [line for line in lines if "loss" in line]
    )
    assert sum(line.count("measure") for line in lines) == 6


@pytest.mark.parametrize("framed", [True, False])
def test_the_width_of_a_layout_is_that_of_its_table(framed: bool) -> None:
    columns = [*NAMES, GROUPS[0][0]]
    layout = Layout(framed=framed)
    longest = max(map(len, printed(columns, width=200, framed=framed).splitlines()))
    assert longest in (layout.width(columns), layout.width(columns) + 2 * (not framed))


def test_columns_are_divided_in_order_and_one_that_is_too_wide_stands_alone() -> None:
    assert parts([3, 3, 3], 9) == [[0, 1, 2]]
    assert parts([50, 3], 9) == [[0], [1]]
