"""One HTML file that shows a whole comparison and needs nothing else: no network, no folder beside it.

In assets/, page.html is the frame, page.css its look, and page.js, curves.js and pictures.js are what moves. `charts`
makes the data of the charts. Everything that comes from a run is escaped. Tests: tests/reports/test_page.py and, in a
real browser, tests/browser/test_page.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import lastlayer
from lastlayer._core.files import write_atomically
from lastlayer.reports.charts import chart_data
from lastlayer.reports.columns import SPLITS, Column, Split, TableCell, texts_of_cell
from lastlayer.reports.statistics import ENOUGH_SEEDS
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary, differing, settings_of, text_of
from lastlayer.reports.text import ARROWS
from lastlayer.reports.verdict import most_differing, rule, verdict

_BETTER = {"higher": "Higher is better.", "lower": "Lower is better.", None: ""}
_SAYS = {
    "winner": "winner: ahead of every other after correction",
    "best": "best mean",
    "within": "within noise of the best",
    "behind": "behind the best",
    "unknown": "spread unknown",
    None: "",
}


def write_page(summary: Summary, path: str | Path, *, tsne: bool = False) -> Path:
    """Write the page of a comparison, and return its path. A crash leaves the old file or the new one.

    Args:
        summary: as `summarise` gives it.
        path: of the HTML file; its folder is made if it does not exist.
        tsne: add a t-SNE view of the final features, which scikit-learn computes in a few seconds per group.
    """
    path = Path(path)
    write_atomically(path, render_page(summary, tsne=tsne).encode())
    return path


def render_page(summary: Summary, *, tsne: bool = False) -> str:
    """The page's HTML. If no run is done, it says so and lists them."""
    from plotly.offline import get_plotlyjs

    data = chart_data(summary, tsne=tsne)
    data["cards"] = _cards(summary)
    notes = "".join(f"<p>{escape(note)}</p>" for note in data.pop("notes"))
    # Two characters that no name holds stand for the tags until everything else is escaped.
    sentences = "".join(f"<p>{escape(sentence)}</p>" for sentence in verdict(summary, marks=("\x02", "\x03")))
    sentences = sentences.replace("\x02", "<b>").replace("\x03", "</b>")
    command = f"<pre><code>{escape(summary.command)}</code></pre>" if summary.command else ""
    return _filled(
        _asset("page.html"),
        {
            "title": escape(summary.title),
            "css": _asset("page.css"),
            "facts": escape(_facts(summary)),
            "verdict": sentences,
            "problems": _problems(summary) + (f'<section class="problems">{notes}</section>' if notes else ""),
            "results": _results(summary),
            "meanings": _meanings(summary),
            "settings": _settings(summary),
            "command": command,
            "machine": _machine(summary),
            "footer": f"Written by lastlayer {lastlayer.__version__}. This file holds everything it shows.",
            "data": for_script(data),
            "plotly": get_plotlyjs(),
            "js": "".join(_asset(name) for name in ("page.js", "curves.js", "pictures.js")),
        },
    )


def _facts(summary: Summary) -> str:
    """What was compared, in one line."""
    if not summary.results:
        return ""
    data = summary.results[0].get("data", {})
    models = dict.fromkeys(str(group.trial.get("model", {}).get("name", "")) for group in summary.groups)
    epochs = sorted({int(group.trial.get("schedule", {}).get("epochs", 0)) for group in summary.groups})
    seeds = sorted({len(group.done) for group in summary.groups})
    parts = [
        str(data.get("name", "")),
        f"{len(data.get('class_names', []))} classes",
        _samples(data),
        ", ".join(filter(None, models)),
        f"{_span(epochs)} epochs",
        f"{_span(seeds)} seed{'s' * (seeds != [1])}",
    ]
    return " · ".join(filter(None, parts))


def _samples(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in data.get("samples", {}).items())


def _span(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _cards(summary: Summary) -> list[str]:
    """The measures of the first four curves: accuracy, those that differ most, then the usual ones."""
    ranked = [column.measure.name for column in most_differing(summary)]
    wanted = dict.fromkeys(["accuracy", *ranked, "nc1", "separability", "precision_at_99"])
    return [name for name in wanted if summary.column("test", name) is not None][:4]


def _results(summary: Summary) -> str:
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
    """What the marks in the tables mean."""
    if len(summary.finished) < 2:
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
        count = f"<small>{group.incomplete} runs</small>" if group.incomplete else ""
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
    attributes = f'data-value="{value}" class="{classes}" title="{escape(says)}"'
    return f'<td {attributes}><span class="pill">{escape(mean)}</span>{below}</td>'


def _problems(summary: Summary) -> str:
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


def _meanings(summary: Summary) -> str:
    """What each measure is, which way is better, and who defined it."""
    items = "".join(
        f"<dt>{escape(measure.title)} {ARROWS[measure.direction]}</dt><dd>{escape(measure.meaning)}"
        f"{f'. <cite>{escape(measure.paper)}</cite>' if measure.paper else ''}</dd>"
        for measure in dict.fromkeys(column.measure for column in summary.columns)
    )
    return f'<details><summary>What the columns mean</summary><dl class="meanings">{items}</dl></details>'


def _settings(summary: Summary) -> str:
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


def _machine(summary: Summary) -> str:
    """Data, machine and versions. If runs differ in one, every value, with the number of runs that have it."""
    data = _values([_data_facts(result.get("data", {})) for result in summary.results])
    host = _values([result.get("machine", {}) for result in summary.results])
    return f"<h3>Data</h3>{_pairs(data)}<h3>Machine and versions</h3>{_pairs(host)}"


def _data_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "name": data.get("name"),
        "samples": _samples(data),
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


def for_script(data: object) -> str:
    """JSON for a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("lastlayer.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Fill all places in one pass, so that the text put in one place is never searched for others."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
