"""The text and the tables of the page, as HTML. Everything that comes from a run is escaped here.

Tests: tests/reports/test_page.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from lastlayer.reports.columns import SPLITS, Column, Split, TableCell, texts_of_cell
from lastlayer.reports.labels import differing, settings_of, text_of
from lastlayer.reports.statistics import ENOUGH_SEEDS
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary
from lastlayer.reports.text import ARROWS
from lastlayer.reports.verdict import rule

_BETTER = {"higher": "Higher is better.", "lower": "Lower is better.", None: ""}
_SAYS = {
    "winner": "winner: ahead of every other after correction",
    "best": "best mean",
    "within": "within noise of the best",
    "behind": "behind the best",
    "unknown": "spread unknown",
    None: "",
}


def results(summary: Summary) -> str:
    """One sortable table per split, all but the first hidden, and the buttons that switch between them."""
    splits = [split for split in summary.splits if split != "run"]
    if not splits:
        return "<p>Nothing is measured yet.</p>"
    buttons = "".join(
        f'<button type="button" data-split="{split}" aria-pressed="{"false" if i else "true"}">'
        f"{escape(SPLITS[split])}</button>"
        for i, split in enumerate(splits)
    )
    tables = "".join(_results_on(summary, split, hidden=i > 0) for i, split in enumerate(splits))
    return (
        '<div class="controls">'
        f'<div class="switch" role="group" aria-label="Measured on" id="splits">{buttons}</div>'
        '<div class="switch" role="group" aria-label="Columns" id="columns">'
        '<button type="button" data-columns="key" aria-pressed="true">key measures</button>'
        '<button type="button" data-columns="all" aria-pressed="false">all</button></div></div>'
        f'{tables}<p class="note">{_legend(summary)}</p>'
    )


def _legend(summary: Summary) -> str:
    """What the marks mean that can be in the tables."""
    if sum(bool(group.done) for group in summary.groups) < 2:
        return "± is the standard deviation over seeds." if summary.seeds > 1 else ""
    best = '<span class="pill best">best</span>'
    if summary.seeds < 2:
        return best
    winner = '<span class="pill winner">winner</span> ' if summary.seeds >= ENOUGH_SEEDS else ""
    return (
        f'{winner}{best} <span class="pill within">within noise of it</span> {escape(rule(summary))} '
        "A spread below the column's median counts as the median. The noise is that of the seeds, "
        "not of the test set. Under a pale heading nothing differs clearly."
    )


def _scrolling(label: str, kind: str, heads: str, rows: Iterable[str], more: str = "") -> str:
    """A table that scrolls sideways in a narrow window."""
    return (
        f'<div class="scroll"{more} tabindex="0" role="region" aria-label="{escape(label)}"><table class="{kind}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _results_on(summary: Summary, split: Split, *, hidden: bool) -> str:
    key = summary.leading(split, (*DECISIONS, *FEATURES))
    rest = [column for column in summary.columns if column.split == split and column not in key]
    columns = [*key, *(column for column in summary.columns if column.split == "run"), *rest]
    rows = []
    for i, group in enumerate(summary.groups):
        done, total = len(group.done), len(group.runs)
        count = f"<small>{done} of {total} runs</small>" if done < total else ""
        cells = "".join(_cell(column, column.cells[i], column in rest) for column in columns)
        rows.append(f"{_row_head(group.label, count)}{cells}</tr>")
    heads = '<th scope="col" aria-sort="none"><button type="button">loss</button></th>'
    heads += "".join(_head(column, column in rest) for column in columns)
    more = f' data-split="{split}"{" hidden" * hidden}'
    return _scrolling(f"Results on {SPLITS[split]}", "results", heads, rows, more)


def _row_head(label: str, more: str = "") -> str:
    """The beginning of a row about a group."""
    name = escape(label)
    return f'<tr data-group="{name}"><th scope="row"><span class="name">{name}</span>{more}</th>'


def _head(column: Column, more: bool) -> str:
    measure = column.measure
    about = f"{measure.meaning[:1].upper()}{measure.meaning[1:]}. {_BETTER[measure.direction]}".strip()
    classes = " ".join(["more"] * more + ["ties"] * (measure.direction is not None and not column.differs))
    return (
        f'<th scope="col" aria-sort="none" class="{classes}" data-measure="{measure.name}" title="{escape(about)}">'
        f'<button type="button">{escape(measure.title)} <span class="arrow">{ARROWS[measure.direction]}</span>'
        "</button></th>"
    )


def _cell(column: Column, cell: TableCell, more: bool) -> str:
    mean, std = texts_of_cell(column.measure, cell)
    undefined = len(cell.values) - cell.n
    p = "" if cell.p is None else f"p = {cell.p:.2g} after correction"
    by_seed = ", ".join(f"seed {seed}: {column.measure.text(value)}" for seed, value in sorted(cell.values.items()))
    says = "; ".join(part for part in (_SAYS[cell.standing], p, by_seed) if part)
    notes = [f"±{std}"] * bool(std) + [f"{undefined} undefined"] * bool(undefined and cell.n)
    value = repr(cell.mean) if cell.n else ""
    below = "".join(f'<span class="std">{note}</span>' for note in notes)
    classes = " ".join(["more"] * more + [cell.standing or ""]).strip()
    return (
        f'<td data-value="{value}" '
        f'class="{classes}" title="{escape(says)}"><span class="pill">{escape(mean)}</span>{below}</td>'
    )


def problems(summary: Summary) -> str:
    """Every run that is not done; nothing if all are done."""
    if not summary.problems and not summary.notes:
        return ""
    items = "".join(
        f'<li><span class="status">{status}</span> <b>{escape(label)}</b>{f", {seeds}" * bool(seeds)}'
        f"<br><span>{escape(reason)}</span></li>"
        for status, label, seeds, reason in summary.problems_by_reason()
    )
    count = len(summary.problems)
    head = f"<h2>{count} run{'s' * (count != 1)} not in the results</h2><ul>{items}</ul>" if count else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in summary.notes)
    return f'<section class="problems" id="problems">{head}{notes}</section>'


def meanings(summary: Summary) -> str:
    """What each measure is, which way is better, and who defined it."""
    items = "".join(
        f"<dt>{escape(measure.title)} {ARROWS[measure.direction]}</dt><dd>{escape(measure.meaning)}"
        f"{f'. <cite>{escape(measure.paper)}</cite>' if measure.paper else ''}</dd>"
        for measure in dict.fromkeys(column.measure for column in summary.columns)
    )
    return f'<details><summary>What the columns mean</summary><dl class="meanings">{items}</dl></details>'


def settings(summary: Summary) -> str:
    """What all groups share, what sets them apart, and every run with its folder."""
    own = [settings_of(group.trial) for group in summary.groups]
    if not own:
        return ""
    different = differing(own)
    shared = {name: value for name, value in own[0].items() if name not in different}
    apart = [name for name in different if name != "loss.name"]  # the label says it
    rows = (
        _row_head(group.label)
        + "".join(f"<td>{escape(text_of(each[name])) if name in each else ''}</td>" for name in apart)
        + "</tr>"
        for group, each in zip(summary.groups, own, strict=True)
    )
    heads = "<th></th>" + "".join(f'<th scope="col">{escape(name)}</th>' for name in apart)
    differences = (
        f"<h3>What sets them apart</h3>{_scrolling('Settings that differ', 'settings', heads, rows)}" if apart else ""
    )
    return (
        f"{differences}<h3>The same for all</h3>{_by_part(shared)}"
        f"<details><summary>Every run and its folder</summary>{_every_run(summary)}</details>"
    )


def _every_run(summary: Summary) -> str:
    rows = []
    for group in summary.groups:
        for run in group.runs:
            measured = (run.result or {}).get("measures", {}).get("test", {}).get("accuracy")
            accuracy = "" if measured is None else f"{measured:.4f}"
            rows.append(
                f'<tr><th scope="row">{escape(group.label)}</th><td>{run.seed}</td><td>{run.status}</td>'
                f"<td>{accuracy}</td><td><code>{escape(str(run.path))}</code></td></tr>"
            )
    heads = "".join(f'<th scope="col">{name}</th>' for name in ("loss", "seed", "status", "test accuracy", "folder"))
    return _scrolling("Every run", "settings", heads, rows)


def machine(summary: Summary) -> str:
    """Data, machine and versions. If runs differ in one, every value, with the number of runs that have it."""
    finished = [run.result for group in summary.groups for run in group.done.values() if run.result]
    data = _values([_data_facts(result.get("data", {})) for result in finished])
    host = _values([result.get("machine", {}) for result in finished])
    return f"<h3>Data</h3>{_pairs(data)}<h3>Machine and versions</h3>{_pairs(host)}"


def _data_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": data.get("name"),
        "samples": ", ".join(f"{count:,} {split}" for split, count in data.get("samples", {}).items()),
        "classes": len(data.get("class_names", [])),
        "input": " x ".join(str(size) for size in data.get("in_shape", [])),
    }
    facts |= {f"checksum of {name}": value for name, value in data.get("checksums", {}).items()}
    if data.get("notes"):
        facts["notes"] = "; ".join(str(note) for note in data["notes"])
    return facts


def _values(facts: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    made = {}
    for name in dict.fromkeys(name for each in facts for name in each):
        counts = Counter(text_of(each[name]) if each.get(name) is not None else "unknown" for each in facts)
        several = len(counts) > 1
        made[name] = "; ".join(f"{value} ({count} runs)" if several else value for value, count in counts.items())
    return made


def _by_part(values: Mapping[str, Any]) -> str:
    """Settings by the part of the trial that they belong to, one line per part."""
    parts: dict[str, list[str]] = {}
    for name, value in values.items():
        part, _, last = name.partition(".")
        text = f"<span><i>{escape(last or name)}</i> {escape(text_of(value))}</span> "
        parts.setdefault(part if last else "trial", []).append(text)
    items = (f"<dt>{escape(part)}</dt><dd>{''.join(texts)}</dd>" for part, texts in parts.items())
    return f'<dl class="parts">{"".join(items)}</dl>'


def _pairs(values: Mapping[str, str]) -> str:
    items = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="pairs">{"".join(items)}</dl>'
