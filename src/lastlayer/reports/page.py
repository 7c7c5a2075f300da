"""One HTML file that shows a whole comparison and needs nothing else: no network, no folder beside it.

In assets/, page.html is the frame, page.css its look, and page.js, curves.js and pictures.js are what moves. The tables
come from `tables`, the data of the charts from `charts`. Tests: tests/reports/test_page.py and, in a real browser,
tests/browser/test_page.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path

import lastlayer
from lastlayer._core.files import write_atomically
from lastlayer.reports import tables
from lastlayer.reports.charts import chart_data
from lastlayer.reports.summary import Summary
from lastlayer.reports.verdict import most_differing, verdict


def write_page(summary: Summary, path: str | Path, *, tsne: bool = False) -> Path:
    """Write the page of a comparison; a crash leaves the old file or the new one.

    Args:
        summary: as `summarise` gives it.
        path: of the HTML file; its folder is made if it does not exist.
        tsne: add a t-SNE view of the final features, which scikit-learn computes in a few seconds per group.

    Returns:
        The path.
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
            "facts": escape(facts(summary)),
            "verdict": sentences,
            "problems": tables.problems(summary) + (f'<section class="problems">{notes}</section>' if notes else ""),
            "results": tables.results(summary),
            "meanings": tables.meanings(summary),
            "settings": tables.settings(summary),
            "command": command,
            "machine": tables.machine(summary),
            "footer": f"Written by lastlayer {lastlayer.__version__}. This file holds everything it shows.",
            "data": for_script(data),
            "plotly": get_plotlyjs(),
            "js": "".join(_asset(name) for name in ("page.js", "curves.js", "pictures.js")),
        },
    )


def facts(summary: Summary) -> str:
    """What was compared, in one line."""
    run = next((run for group in summary.groups for run in group.done.values()), None)
    if run is None or run.result is None:
        return ""
    data = run.result.get("data", {})
    samples = data.get("samples", {})
    models = dict.fromkeys(str(group.trial.get("model", {}).get("name", "")) for group in summary.groups)
    epochs = sorted({int(group.trial.get("schedule", {}).get("epochs", 0)) for group in summary.groups})
    seeds = sorted({len(group.done) for group in summary.groups})
    return " · ".join(
        part
        for part in (
            str(data.get("name", "")),
            f"{len(data.get('class_names', []))} classes",
            ", ".join(f"{count:,} {split}" for split, count in samples.items()),
            ", ".join(name for name in models if name),
            f"{_span(epochs)} epochs",
            f"{_span(seeds)} seed{'s' * (seeds != [1])}",
        )
        if part
    )


def _span(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _cards(summary: Summary) -> list[str]:
    """The measures of the first four curves: accuracy, those that differ most, then the usual ones."""
    ranked = [column.measure.name for column in most_differing(summary)]
    wanted = dict.fromkeys(["accuracy", *ranked, "nc1", "separability", "precision_at_99"])
    return [name for name in wanted if summary.column("test", name) is not None][:4]


def for_script(data: object) -> str:
    """JSON that may stand in a script element: no text in it can end the element or begin a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return files("lastlayer.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """Fill all places in one pass, so that the text put in one place is never searched for others."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
