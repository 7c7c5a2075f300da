"""The parts of the page that say what came out: the answers, the tables of measures, and how each class fares.

Everything is HTML without a script, so that it can be read anywhere, printed, and checked. Everything that comes from a
run is escaped. Tests: tests/reports/test_results.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from lastlayer.measures import MEASURES, Measure
from lastlayer.reports.answer import Answer, chosen_goals, decimals_of
from lastlayer.reports.classes import MOST_CLASSES, Classes
from lastlayer.reports.columns import SPLITS, Column, Split, TableCell, texts_of_cell
from lastlayer.reports.evidence import nothing_finished
from lastlayer.reports.summary import DECISIONS, FEATURES, Summary
from lastlayer.reports.text import ARROWS

_SAYS = {"chosen": "recommended", "near": "not shown to be worse", "far": "shown to be worse"}
MOST_SEEDS = 10  # with more, tables do not tell the value of each seed, so that the page stays small
BETTER = {"higher": "Higher is better.", "lower": "Lower is better.", None: ""}
Interval = tuple[float, float, float]  # low, mean, high


def answer_cards(answers: Sequence[Answer], summary: Summary) -> str:
    """One card per goal: which loss to take, why, and a chart of all losses with their intervals."""
    if not summary.finished:
        return f'<p class="headline">{nothing_finished(summary)}</p>'
    labels = [group.label for group in summary.groups]
    told = [answer.sentences for answer in answers]
    common = [one for one in told[0] if all(one in other for other in told)] if len(told) > 1 else []
    cards = "".join(_answer_card(answer, labels, common) for answer in answers)
    return cards + "".join(f'<p class="note">{emphasised(sentence, labels)}</p>' for sentence in common)


def _answer_card(answer: Answer, labels: Sequence[str], common: Sequence[str]) -> str:
    """The card of one goal. Sentences that all cards have in common are left out."""
    chosen, chart = "", ""
    if answer.decision is not None:
        near = answer.decision.not_worse
        badge = f'<span class="badge">{escape(_standing(answer.loss, near, len(answer.decision.means)))}</span>'
        chosen = f'<p class="choice">Use <b>{escape(answer.loss)}</b> {badge}</p>'
        chart = interval_chart(answer.intervals, MEASURES[answer.goal.measure], answer.loss, near)
    own = [sentence for sentence in answer.sentences if sentence not in common]
    sentences = "".join(f"<p>{emphasised(sentence, labels)}</p>" for sentence in own)
    return (
        f'<article class="answer" data-goal="{answer.goal.name}"><div><h2 class="goal">{escape(answer.goal.noun)}</h2>'
        f'{chosen}<p class="headline">{emphasised(answer.headline, labels)}</p></div>'
        f'{chart}<div class="why">{sentences}</div></article>'
    )


def _standing(loss: str, near: Sequence[str], all_losses: int) -> str:
    """How sure the recommendation is, in a few words."""
    others = [label for label in near if label != loss]
    if not others:
        return "✓ shown to be best"
    if len(near) == all_losses:
        return "≈ no difference shown"
    return f"≈ not told apart from {others[0] if len(others) == 1 else f'{len(others)} others'}"


def emphasised(sentence: str, labels: Sequence[str]) -> str:
    """The sentence as HTML, with the labels of losses in bold."""
    either = "|".join(re.escape(label) for label in sorted(labels, key=len, reverse=True))
    pieces = re.split(rf"(?<![\w-])({either})(?![\w-])", sentence) if either else [sentence]
    return "".join(f"<b>{escape(piece)}</b>" if i % 2 else escape(piece) for i, piece in enumerate(pieces))


def interval_chart(intervals: Mapping[str, Interval], measure: Measure, chosen: str, not_worse: Sequence[str]) -> str:
    """A dot and a 95 % interval per loss, the best first. The axis holds no value that the measure cannot have."""
    known = {label: one for label, one in intervals.items() if all(map(math.isfinite, one))}
    if not known:
        return ""
    percent = measure.limits == (0.0, 1.0)
    scale = 100.0 if percent else 1.0
    low, high = axis_range([end for one in known.values() for end in one], measure.limits)
    ticks = round_numbers(scale * low, scale * high)
    decimals = decimals_of(known.values(), percent=percent)
    unit = " %" if percent else ""

    def place(value: float) -> str:
        return f"{100 * (min(max(value, low), high) - low) / (high - low):.2f}%"

    rows = []
    sign = -1 if measure.direction == "higher" else 1
    for label, (start, mean, end) in sorted(known.items(), key=lambda item: sign * item[1][1]):
        kind = "chosen" if label == chosen else "near" if label in not_worse else "far"
        text = [f"{scale * value:.{decimals}f}" for value in (mean, start, end)]
        width = f"calc({place(end)} - {place(start)})"
        rows.append(
            f'<li class="{kind}" data-group="{escape(label)}"><span class="name">{escape(label)}</span>'
            f'<span class="says">{_SAYS[kind]}</span>'
            f'<span class="track" aria-hidden="true"><i class="reach" style="left:{place(start)};width:{width}"></i>'
            f'<i class="dot" style="left:{place(mean)}"></i></span>'
            f'<span class="value">{text[0]}{unit} <small>({text[1]} to {text[2]})</small></span></li>'
        )
    marks = "".join(f'<span style="left:{place(at / scale)}">{text}</span>' for at, text in ticks)
    title = f"{measure.plain} on test{', in %' if percent else ''}. {BETTER[measure.direction]}"
    return (
        f'<figure class="intervals"><ol>{"".join(rows)}</ol>'
        f'<div class="ticks" aria-hidden="true"><div>{marks}</div></div>'
        f"<figcaption>{escape(title[:1].upper() + title[1:])} Lines are 95 % intervals.</figcaption></figure>"
    )


def axis_range(values: Sequence[float], limits: tuple[float, float]) -> tuple[float, float]:
    """From a little below the smallest to a little above the largest value, within the limits.

    Example:
        >>> axis_range([0.5, 1.0], (0.0, 1.0))
        (0.475, 1.0)
    """
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return max(low - room, min(limits[0], low)), min(high + room, max(limits[1], high))


def round_numbers(low: float, high: float, most: int = 5) -> list[tuple[float, str]]:
    """At most `most` + 1 round numbers in a range, each with its text.

    Example:
        >>> [text for _, text in round_numbers(0.33, 1.12)]
        ['0.4', '0.6', '0.8', '1.0']
    """
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * 0.999)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [(i * step, f"{i * step:.{decimals}f}") for i in range(first, last + 1)]


def measure_tables(summary: Summary, section: str, *, geometry: bool) -> str:
    """One sortable table per split, all but the first hidden, and the buttons that switch between them."""
    columns = [column for column in summary.columns if is_geometry(column.measure) == geometry]
    order: Sequence[Split] = ("train", *SPLITS) if geometry else tuple(SPLITS)
    splits = list(dict.fromkeys(s for s in order if s != "run" and any(column.split == s for column in columns)))
    if not splits:
        return "<p>Nothing is measured yet.</p>"
    buttons = "".join(
        f'<button type="button" data-split="{split}" aria-pressed="{"false" if i else "true"}">'
        f"{escape(SPLITS[split])}</button>"
        for i, split in enumerate(splits)
    )
    tables = "".join(_table(summary, split, columns, hidden=i > 0) for i, split in enumerate(splits))
    return (
        f'<div class="tables" id="{section}"><div class="controls">'
        f'<div class="switch splits" role="group" aria-label="Measured on">{buttons}</div>'
        '<div class="switch columns" role="group" aria-label="Columns">'
        '<button type="button" data-columns="key" aria-pressed="true">key measures</button>'
        f'<button type="button" data-columns="all" aria-pressed="false">all</button></div></div>{tables}</div>'
    )


def is_geometry(measure: Measure) -> bool:
    """Whether a measure is of features and classifier alone, and not of what is decided."""
    needs = set(measure.needs)
    return bool({"features", "weight", "gamma"} & needs) and not {"logits", "probabilities"} & needs


def _table(summary: Summary, split: Split, columns: Sequence[Column], *, hidden: bool) -> str:
    key = [column for column in summary.leading(split, _key(summary)) if column in columns and _has_values(column)]
    rest = [column for column in columns if column.split == split and column not in key]
    shown = [*key, *(column for column in columns if column.split == "run"), *rest]
    rows = []
    for i, group in enumerate(summary.groups):
        count = f"<small>{group.incomplete} runs</small>" if group.incomplete else ""
        cells = "".join(_cell(column, column.cells[i], column in rest) for column in shown)
        rows.append(f"{row_head(group.label, count)}{cells}</tr>")
    heads = '<th scope="col" aria-sort="none"><button type="button">loss</button></th>'
    heads += "".join(_head(column.measure, column in rest) for column in shown)
    more = f' data-split="{split}"{" hidden" * hidden}'
    return scrolling(f"Measured on {SPLITS[split]}", "results", heads, rows, more)


def _key(summary: Summary) -> list[str]:
    """The measures that are shown first: those of the goals, then the usual ones."""
    usual = ("accuracy", "balanced_accuracy", "macro_f1", "nll", *DECISIONS, *FEATURES)
    return list(dict.fromkeys([*(goal.measure for goal in chosen_goals(summary)), *usual]))


def _has_values(column: Column) -> bool:
    return any(cell.n for cell in column.cells)


def scrolling(label: str, kind: str, heads: str, rows: Iterable[str], more: str = "") -> str:
    """A table that scrolls sideways in a narrow window."""
    return (
        f'<div class="scroll"{more} tabindex="0" role="region" aria-label="{escape(label)}"><table class="{kind}">'
        f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def row_head(label: str, more: str = "") -> str:
    """The beginning of a row about a group."""
    name = escape(label)
    return f'<tr data-group="{name}"><th scope="row"><span class="name">{name}</span>{more}</th>'


def about(measure: Measure) -> str:
    """What a measure is, which direction is better, and its symbol in the papers."""
    symbol = f" In the papers: {measure.title}." if measure.title != measure.plain else ""
    return f"{measure.meaning[:1].upper()}{measure.meaning[1:]}. {BETTER[measure.direction]}".strip() + symbol


def _head(measure: Measure, more: bool) -> str:
    return (
        f'<th scope="col" aria-sort="none" class="{"more" * more}" data-measure="{measure.name}" '
        f'title="{escape(about(measure))}">'
        f'<button type="button">{escape(measure.plain)} <span class="arrow">{ARROWS[measure.direction]}</span>'
        "</button></th>"
    )


def _cell(column: Column, cell: TableCell, more: bool) -> str:
    mean, std = texts_of_cell(column.measure, cell)
    undefined = len(cell.values) - cell.n
    by_seed = ", ".join(f"seed {seed}: {column.measure.text(value)}" for seed, value in sorted(cell.values.items()))
    by_seed = by_seed if len(cell.values) <= MOST_SEEDS else ""
    notes = [f"±{std}"] * bool(std) + [f"{undefined} undefined"] * bool(undefined and cell.n)
    value = repr(cell.mean) if cell.n else ""
    below = "".join(f'<span class="std">{note}</span>' for note in notes)
    return f'<td data-value="{value}" class="{"more" * more}" title="{escape(by_seed)}">{escape(mean)}{below}</td>'


def class_tables(classes: Classes | None, *, finished: bool = True) -> str:
    """The worst classes, those that differ most between losses, and what is confused with what."""
    if not finished:
        return "<p>Nothing is measured yet.</p>"
    if classes is None:
        return (
            "<p>These runs did not keep their test rows, because they were made by an older version. "
            "Train them again to see each class.</p>"
        )
    parts = [f"<p>{escape(note)}</p>" for note in classes.notes]
    few = len(classes.names) <= MOST_CLASSES
    if worst := classes.by_recall if few else classes.by_recall[:MOST_CLASSES]:
        said = "Every class, the worst first" if few else f"The {MOST_CLASSES} worst classes"
        parts.append(f"<h3>{said}</h3>{_class_table(classes, worst)}")
    if not few and (differing := classes.differing):
        parts.append(f"<h3>Classes that differ most between losses</h3>{_class_table(classes, differing)}")
    if len(classes.labels) > 1 and not classes.differing:
        parts.append('<p class="note">No class differs between losses by more than the noise of its test rows.</p>')
    parts.append('<p class="note">Recall: share of the rows of a class that are decided as it. Precision: share of the '
                 "rows decided as a class that are of it. Both over all seeds.</p>")  # fmt: skip
    if classes.pairs:
        parts.append(f"<h3>Most frequent confusions</h3>{_confusion_table(classes)}")
        parts.append('<p class="note">Share of the rows of a class that are decided as another, over all seeds.</p>')
    return "".join(parts)


def _class_table(classes: Classes, chosen: Sequence[int]) -> str:
    heads = ["class", "test rows", *(["training samples"] if classes.training is not None else [])]
    rows = []
    for k in chosen:
        counts = [classes.rows[k], *([classes.training[k]] if classes.training is not None else [])]
        cells = "".join(f"<td>{int(count):,}</td>" for count in counts)
        best = classes.recall[:, k].max()
        for i in range(len(classes.labels)):
            recall, precision = classes.recall[i, k], classes.precision[i, k]
            told = f"precision {_percent(precision)}" if math.isfinite(precision) else "never decided"
            mark = ' class="top"' if recall == best > classes.recall[:, k].min() else ""
            cells += (
                f'<td{mark}>{_percent(recall)}<i class="meter" style="width:{4 * recall:.2f}rem"></i>'
                f'<span class="std">{told}</span></td>'
            )
        differs = "<small>differs between losses</small>" if k in classes.differing else ""
        rows.append(
            f'<tr><th scope="row"><span class="name">{escape(classes.names[k])}</span>{differs}</th>{cells}</tr>'
        )
    titles = "".join(f'<th scope="col">{title}</th>' for title in heads)
    titles += "".join(f'<th scope="col">{escape(label)}<small>recall</small></th>' for label in classes.labels)
    return scrolling("Classes", "classes", titles, rows)


def _confusion_table(classes: Classes) -> str:
    rows = []
    for pair in classes.pairs:
        cells = "".join(
            f'<td>{_percent(count / total)}<span class="std">{count:,} of {total:,}</span></td>'
            for count, total in zip(pair.counts, pair.rows, strict=True)
        )
        rows.append(
            f'<tr><th scope="row"><span class="name">{escape(classes.names[pair.label])}</span></th>'
            f'<td class="text">{escape(classes.names[pair.decision])}</td>{cells}</tr>'
        )
    heads = '<th scope="col">rows of</th><th scope="col" class="text">decided as</th>'
    heads += "".join(f'<th scope="col">{escape(label)}</th>' for label in classes.labels)
    return scrolling("Confusions", "classes", heads, rows)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share in (0, 1) or 0.01 <= share <= 0.99 else f"{100 * share:.1f} %"
