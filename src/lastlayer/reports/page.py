"""One HTML file that shows a whole comparison and needs nothing else: no network, no folder beside it.

In assets/, page.html is the frame, page.css its look, and the scripts draw charts in SVG and sort tables. `results`
makes what is read, `charts` the data of what is drawn. Everything that comes from a run is escaped. Tests:
tests/reports/test_page.py and, in a real browser, tests/browser/test_page.py.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import lastlayer
from lastlayer._core.files import write_atomically
from lastlayer.reports.answer import Answer, answers
from lastlayer.reports.charts import chart_data
from lastlayer.reports.classes import classes_of
from lastlayer.reports.evidence import Rows
from lastlayer.reports.results import about, answer_cards, class_tables, measure_tables, row_head, scrolling
from lastlayer.reports.summary import Summary, differing, settings_of, text_of
from lastlayer.reports.text import ARROWS


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
    rows, found = Rows(), answers(summary)
    data = chart_data(summary, rows, tsne=tsne)
    data["cards"] = _cards(summary, found)
    notes = "".join(f"<p>{escape(note)}</p>" for note in data.pop("notes"))
    command = f"<pre><code>{escape(summary.command)}</code></pre>" if summary.command else ""
    return _filled(
        _asset("page.html"),
        {
            "title": escape(summary.title),
            "css": _asset("page.css"),
            "facts": escape(_facts(summary)),
            "answers": answer_cards(found, summary),
            "problems": _problems(summary) + (f'<section class="problems">{notes}</section>' if notes else ""),
            "results": measure_tables(summary, "decisions", geometry=False),
            "geometry": measure_tables(summary, "features-table", geometry=True),
            "spread": "Mean over seeds, ± one standard deviation. " if summary.seeds > 1 else "",
            "classes": class_tables(classes_of(summary, rows), finished=bool(summary.finished)),
            "meanings": _meanings(summary),
            "settings": _settings(summary),
            "command": command,
            "machine": _machine(summary),
            "footer": f"Written by lastlayer {lastlayer.__version__}. This file holds everything it shows.",
            "data": for_script(data),
            "js": "".join(_asset(name) for name in ("page.js", "draw.js", "curves.js", "pictures.js")),
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
        f"{_span(epochs)} epoch{'s' * (epochs != [1])}",
        f"{_span(seeds)} seed{'s' * (seeds != [1])}",
    ]
    return " · ".join(filter(None, parts))


def _samples(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in data.get("samples", {}).items())


def _span(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _cards(summary: Summary, found: Sequence[Answer]) -> list[str]:
    """The measures of the first four curves: those of the goals, then the usual ones."""
    wanted = dict.fromkeys([*(answer.goal.measure for answer in found), "accuracy", "nll", "nc1", "separability"])
    return [name for name in wanted if summary.column("test", name) is not None][:4]


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
        f"<dt>{escape(measure.plain)} {ARROWS[measure.direction]}</dt><dd>{escape(about(measure))}"
        f"{f' <cite>{escape(measure.paper)}</cite>' if measure.paper else ''}</dd>"
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
        row_head(group.label)
        + "".join(f"<td>{escape(text_of(each[name])) if name in each else ''}</td>" for name in apart)
        + "</tr>"
        for group, each in zip(summary.groups, own, strict=True)
    )
    heads = "<th></th>" + "".join(f'<th scope="col">{escape(name)}</th>' for name in apart)
    differences = (
        f"<h3>What sets them apart</h3>{scrolling('Settings that differ', 'settings', heads, rows)}" if apart else ""
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
    return scrolling("Every run", "settings", heads, rows)


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
