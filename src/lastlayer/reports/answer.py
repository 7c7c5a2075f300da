"""What a comparison says first: for each goal one recommendation, how sure it is, and what it costs elsewhere.

`lastlayer.reports.decision` decides, and the sentences here claim no more than it shows.

Tests: tests/reports/test_answer.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lastlayer.losses import Loss, available, entry
from lastlayer.reports.decision import Decision, Rival, critical_value, decide
from lastlayer.reports.evidence import Rows, evidence
from lastlayer.reports.goals import GOALS, Goal, KnownData, about_skew, default_goals
from lastlayer.reports.summary import Group, Summary

MOST_NAMED = 6  # losses that a sentence names; of more it names three
MOST_COUNTED = 10_000  # test rows: errors of more rows are told in per cent
MOST_FOLDS = 5  # seeds that test on rows that no other has tested
MOST_ROWS, MOST_SEEDS = 10_000_000, 1000  # a larger number is no advice


@dataclass(frozen=True)
class Answer:
    """What to choose for one goal.

    Attributes:
        goal: the goal.
        loss: the label of the recommended group; "" if there is none.
        is_sure: whether every other group is shown to be worse.
        headline: the recommendation in one sentence.
        sentences: what it rests on, what it would take to tell more, what it costs for other goals, what was tuned.
        decision: what the recommendation follows from; None if nothing can be compared.
        intervals: of each group the lower end, the mean and the upper end, at 95 %.
        problem: why there is no recommendation; "" if there is one.
        counted_rows: on how many rows one run was tested, if the answer speaks of errors; else 0.
    """

    goal: Goal
    loss: str = ""
    is_sure: bool = False
    headline: str = ""
    sentences: tuple[str, ...] = ()
    decision: Decision | None = None
    intervals: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)
    problem: str = ""
    counted_rows: float = 0.0


def answers(summary: Summary, goals: Sequence[Goal] | None = None) -> tuple[Answer, ...]:
    """One answer per goal.

    There is none if there is only one group, or if all runs were measured on validation samples alone, to choose
    settings by them.

    Args:
        summary: as `summarise` gives it.
        goals: what the loss is wanted for; if not given, what the comparison file says, or else the usual goals.
    """
    if len(summary.groups) < 2 or summary.is_of_validation:
        return ()
    wanted = chosen_goals(summary) if goals is None else tuple(goals)
    rows = Rows()
    asked = dict.fromkeys([*wanted, GOALS["accuracy"]])  # what each costs in accuracy is always said
    found = {goal: _decided(goal, summary, rows) for goal in asked}
    made = []
    for goal in wanted:
        others = [other for one, other in found.items() if one != goal]
        made.append(_in_words(found[goal], others, summary))
    return tuple(made)


def chosen_goals(summary: Summary) -> tuple[Goal, ...]:
    """What the comparison was asked for, or else accuracy and, if classes are skewed, balanced accuracy before it."""
    if summary.goals:
        return tuple(GOALS[name] for name in summary.goals if name in GOALS)
    data = summary.results[0].get("data", {}) if summary.results else {}
    return default_goals(KnownData.of_result(data), len(data.get("class_names", [])))


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words as a list in a sentence.

    Example:
        >>> listed(["ce", "ls", "mse"])
        'ce, ls and mse'
    """
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


# the decision


@dataclass(frozen=True)
class _Decided:
    """The decision of one goal, before it is put in words."""

    goal: Goal
    decision: Decision | None = None
    loss: str = ""
    notes: tuple[str, ...] = ()
    problem: str = ""
    mean_rows: float = 0.0  # on which one run was tested
    reason: str = ""  # why this loss, if several are not shown to be worse

    @property
    def on_folds(self) -> bool:
        """Whether each seed was tested on other rows."""
        return self.decision is not None and self.mean_rows < self.decision.rows

    @property
    def one_seed(self) -> bool:
        """Whether nothing is known of the noise of training."""
        return self.decision is not None and math.isnan(self.decision.spread)


def _decided(goal: Goal, summary: Summary, rows: Rows) -> _Decided:
    shown = evidence(goal, summary, rows)
    if shown.problem:
        return _Decided(goal, problem=shown.problem, notes=shown.notes)
    found = decide(
        shown.values,
        shown.losses,
        shown.noise,
        higher_is_better=goal.higher_is_better,
        folds=shown.folds,
        overlap=shown.overlap,
    )
    parts = 1 if shown.folds is None else len(set(shown.folds))
    decided = _Decided(goal, found, notes=shown.notes, mean_rows=found.rows / parts)
    groups = {group.label: group for group in summary.groups}
    near = _not_worse(decided, shown.noise.freedom)
    sign = -1.0 if goal.higher_is_better else 1.0
    loss = min(near, key=lambda label: (_complexity(groups[label]), sign * found.means[label]))
    alike = [label for label in near if _complexity(groups[label]) == _complexity(groups[loss])]
    if len(near) == 1:
        reason = "which is ahead by more than chance in the test rows explains"
    elif len(alike) == 1:
        reason = "the simplest of them"
    elif len(alike) == len(near):
        reason = "which has the best mean of them"
    else:
        reason = f"which has the best mean of the simplest, {listed(alike)}"
    return replace(decided, loss=loss, reason=reason)


def _not_worse(decided: _Decided, freedom: float) -> list[str]:
    """The losses to recommend one of.

    If there is one seed per loss, no loss is shown to be worse. Then those are left out that would be, if training had
    no noise.
    """
    found = decided.decision
    assert found is not None
    if not decided.one_seed:
        return found.not_worse
    critical = critical_value(len(found.rivals), freedom)
    far = [name for name, rival in found.rivals.items() if rival.gap > critical * math.sqrt(rival.from_rows)]
    return [name for name in found.means if name not in far]


def _complexity(group: Group) -> tuple[int, int]:
    """Small for a simple loss."""
    loss = group.trial.get("loss", {})
    name, options = str(loss.get("name", "")), loss.get("options", {})
    if name not in available():
        return Loss.complexity, len(options)
    known = entry(name)
    module = known.module
    asks_more = module.couples_batch or module.takes_layer or module.needs_teacher or module.needed_head is not None
    return module.complexity + 3 * asks_more, len({**known.hyperparameters, **options})


# the words


def _in_words(decided: _Decided, others: Sequence[_Decided], summary: Summary) -> Answer:
    goal, found = decided.goal, decided.decision
    name = f"{goal.noun[:1].upper()}{goal.noun[1:]}"
    if found is None:
        problem = decided.problem[:1].lower() + decided.problem[1:]
        return Answer(goal, headline=f"{name}: {problem}", sentences=decided.notes, problem=decided.problem)
    rates = _rates(summary)
    prefix = f"{name} ({rates})" if rates else name
    sentences = [
        *_about_skew(goal, summary),
        *_why(decided),
        *_costs(decided.loss, others),
        *_about_tuning(summary),
        *decided.notes,
    ]
    low, high = (0.0, 1.0) if goal.is_share else (0.0, math.inf)
    intervals = {
        label: (max(low, ends[0]), found.means[label], min(high, ends[1])) for label, ends in found.intervals.items()
    }
    return Answer(
        goal,
        decided.loss,
        found.is_sure,
        f"{prefix}: {_recommendation(decided)}.",
        tuple(filter(None, sentences)),
        found,
        intervals,
        counted_rows=decided.mean_rows if _in_counts(decided) else 0.0,
    )


def _recommendation(decided: _Decided) -> str:
    found, loss = decided.decision, decided.loss
    assert found is not None
    near = found.not_worse
    far = [name for name in found.means if name not in near]
    if found.is_sure:
        others = f"each of the {len(far)} others is" if len(far) > 1 else f"{far[0]} is"
        return f"we recommend {loss}; {others} shown to be worse"
    if decided.one_seed:
        return f"no difference shown, because there is one seed per loss; we suggest {loss}, {decided.reason}"
    worse = f"; {_some(far)} {'is' if len(far) == 1 else 'are'} shown to be worse" if far else ""
    return f"no difference shown between {_some(near)}; we recommend {loss}, {decided.reason}{worse}"


def _some(labels: Sequence[str]) -> str:
    """All labels, or three of many."""
    if len(labels) <= MOST_NAMED:
        return listed(labels)
    return listed([*labels[:3], f"{len(labels) - 3} others"])


def _why(decided: _Decided) -> list[str]:
    """The best mean, that of the loss it is compared with, where their difference lies, and what would tell more."""
    found = decided.decision
    assert found is not None
    best, other = found.best, _compared_with(decided)
    rival = found.rivals[other]
    seeds = f"over {found.seeds} seeds" if found.seeds > 1 else "with one seed"
    if rival.gap <= 0:
        equal = [name for name in found.means if name == best or found.rivals[name].gap <= 0]
        values = f"{_some(equal)} have the best mean, {_value(decided, found.means[best])}"
    elif found.is_sure:
        next_best = ", the next best" if len(found.rivals) > 1 else ""
        values = f"{best} has {_against(decided, best, other)}{next_best}"
    else:
        values = f"{best} has the best mean: {_against(decided, best, other)}"
    sentences = [f"{values}{_on_rows(decided)}, {seeds}."]
    if decided.one_seed:
        sentences.append("One seed does not tell how much training varies: give --seeds 3 or more.")
        return sentences
    sentences.append(f"With 95 % confidence, {_difference(decided, best, other, rival)}.")
    if not found.is_sure:
        sentences.append(_what_would_tell(decided, rival, best, other))
    return sentences


def _compared_with(decided: _Decided) -> str:
    """The loss that the best one is told apart from: the recommended one, or else the next best."""
    found = decided.decision
    assert found is not None
    if decided.loss != found.best:
        return decided.loss
    return min(found.rivals, key=lambda name: found.rivals[name].gap)


def _in_counts(decided: _Decided) -> bool:
    """Whether to speak of errors rather than of shares."""
    return (
        decided.goal.is_share
        and decided.goal.source != "draws"
        and not decided.goal.by_class
        and decided.mean_rows <= 10_000
    )


def _counts(*errors: float) -> list[str]:
    """Numbers of errors, all with one decimal if they are small."""
    decimals = 1 if max(map(abs, errors)) < 20 else 0
    return [f"{one:,.{decimals}f}".removesuffix(".0") for one in errors]


def _value(decided: _Decided, value: float) -> str:
    if not _in_counts(decided):
        return value_in_words(decided.goal, value)
    (count,) = errors_in_words(decided.mean_rows, value)
    return f"{count} error{'s' * (count != '1')}"


def _against(decided: _Decided, one: str, other: str) -> str:
    """The value of a loss beside that of another one."""
    assert decided.decision is not None
    a, b = decided.decision.means[one], decided.decision.means[other]
    if not _in_counts(decided):
        decimals = decimals_of([(min(a, b), max(a, b))], percent=decided.goal.is_share)
        texts = [value_in_words(decided.goal, value, decimals) for value in (a, b)]
        return f"{texts[0]} against {texts[1]} of {other}"
    first, second = errors_in_words(decided.mean_rows, a, b)
    return f"{first} error{'s' * (first != '1')} against {second} of {other}"


def errors_in_words(rows: float, *accuracies: float) -> list[str]:
    """How many rows are wrong, all with one decimal if there are few.

    Example:
        >>> errors_in_words(359, 0.992572, 1.0), errors_in_words(1000, 0.9504, 0.9923)
        (['2.7', '0'], ['50', '8'])
    """
    return _counts(*((1 - accuracy) * rows for accuracy in accuracies))


def decimals_of(intervals: Iterable[tuple[float, ...]], *, percent: bool) -> int:
    """With how many decimals intervals are told: the usual number, or one or two more for a narrow one.

    Example:
        >>> decimals_of([(0.91, 0.93)], percent=True), decimals_of([(0.9996, 1.0)], percent=True)
        (1, 2)
    """
    usual, scale = (1, 100) if percent else (3, 1)
    width = min((scale * (one[-1] - one[0]) for one in intervals), default=0)
    if not 0 < width < math.inf:
        return usual
    return min(usual + 2, max(usual, -math.floor(math.log10(width) + 1e-9)))


def value_in_words(goal: Goal, value: float, decimals: int | None = None) -> str:
    """A value of the goal's measure.

    Example:
        >>> value_in_words(GOALS["balanced"], 0.7012), value_in_words(GOALS["calibration"], 0.1234)
        ('70.1 %', '0.123')
    """
    if decimals is None:
        decimals = decimals_of([], percent=goal.is_share)
    return f"{100 * value:.{decimals}f} %" if goal.is_share else f"{value:.{decimals}f}"


def _difference(decided: _Decided, best: str, other: str, rival: Rival) -> str:
    """Where the difference of two losses lies."""
    low, high = rival.interval
    if decided.goal.is_share:
        if low <= -1 and high >= 1:
            return f"{other} may be better or worse than {best} by any amount"
        low, high = max(low, -1.0), min(high, 1.0)  # a share is 0 to 1
    if _in_counts(decided):
        fewest, most = _counts(abs(low) * decided.mean_rows, high * decided.mean_rows)
        if low > 0:
            return f"{other} makes {fewest} to {most} errors more than {best}"
        return f"{other} makes between {fewest} errors fewer and {most} more than {best}"
    unit = " points" if decided.goal.is_share else ""
    scale, decimals = 100 if decided.goal.is_share else 1, decimals_of([(low, high)], percent=decided.goal.is_share)
    least, most = (f"{scale * end:.{decimals}f}" for end in (abs(low), high))
    where = f"{best} in {decided.goal.noun}"
    if low > 0:
        return f"{other} is {least} to {most}{unit} worse than {where}"
    return f"{other} is between {least}{unit} better and {most}{unit} worse than {where}"


def _on_rows(decided: _Decided) -> str:
    found = decided.decision
    assert found is not None
    kind = {"unknown classes": "rows of new classes", "rare": "test rows of rare classes"}.get(
        decided.goal.needs, "test rows"
    )
    if decided.on_folds:
        return f", on {decided.mean_rows:,.0f} {kind} per seed ({found.rows:,} in all)"
    return f", on the same {found.rows:,} {kind}"


def _what_would_tell(decided: _Decided, rival: Rival, best: str, other: str) -> str:
    found = decided.decision
    assert found is not None
    if rival.gap <= 0:
        return f"The means of {best} and {other} are equal, so no number of test rows or seeds would tell them apart."
    rows, seeds = found.rows * rival.factor(rows=True), found.seeds * rival.factor(rows=False)
    ways = [f"{_round(rows)} test rows"] if rows <= MOST_ROWS else []
    ways += [f"{_round(seeds)} seeds per loss"] if seeds <= (MOST_FOLDS if decided.on_folds else MOST_SEEDS) else []
    if not ways:
        return (
            "Beside the noise the difference is so small that neither more test rows nor more seeds alone would show "
            "it in practice; more of both may."
        )
    return (
        f"If the true difference is the one seen here, about {' or '.join(ways)} would show it in four of five cases."
    )


def _round(number: float) -> str:
    """A number as advice gives it: rounded up to one or two digits."""
    number = math.ceil(number)
    step = 10 ** max(0, len(str(number)) - (2 if str(number)[0] == "1" or number < 100 else 1))
    return f"{math.ceil(number / step) * step:,}"


def _costs(loss: str, others: Sequence[_Decided]) -> list[str]:
    """What the recommended loss costs for other goals."""
    best, unsure, worse, unknown = [], [], [], []
    for other in others:
        found, noun = other.decision, other.goal.noun
        if found is None:
            continue
        if loss not in found.means:
            unknown.append(noun)
        elif loss == found.best:
            best.append(noun)
        elif found.rivals[loss].is_worse:
            difference = _difference(other, found.best, loss, found.rivals[loss])
            values = _against(other, loss, found.best)
            worse.append(f"It costs {noun}: {values}. With 95 % confidence, {difference}.")
        else:
            unsure.append(f"{noun} ({_against(other, loss, found.best)}, the best)")
    return [
        *worse,
        *([f"{loss} also has the best mean {listed(best)}."] if best else []),
        *([f"It is not shown to cost {listed(unsure, 'or')}."] if unsure else []),
        *([f"What {loss} costs in {listed(unknown, 'or')} is not known."] if unknown else []),
    ]


def _about_skew(goal: Goal, summary: Summary) -> list[str]:
    data = summary.results[0].get("data", {})
    known = KnownData.of_result(data)
    if not goal.by_class or goal.needs or not known.is_skewed(len(data.get("class_names", []))):
        return []
    unsaid = "Classes are of very different size in training, and balanced accuracy counts each of them the same."
    return [about_skew(known) or unsaid]


def _rates(summary: Summary) -> str:
    """What the headline says of rates that were not tuned; "" if they were."""
    if summary.tuning is None:  # older comparisons tuned only with --tune; a plain folder does not say
        return "" if "--tune" in summary.command.split() else "rates not tuned" if summary.command else "tuning unknown"
    untuned = [group.label for group in summary.groups if not summary.tuning.get(group.label, {}).get("tuned")]
    if len(untuned) == len(summary.groups):
        return "rates not tuned"
    return f"rates of {_some(untuned)} not tuned" if untuned else ""


def _about_tuning(summary: Summary) -> list[str]:
    """What was tuned over what, or that nothing was."""
    if summary.tuning is None:
        return {
            "": ["Learning rate and weight decay were tuned for each loss."],
            "rates not tuned": [
                "Learning rate and weight decay were not tuned, which may change the order of the losses."
            ],
            "tuning unknown": ["The runs do not say whether their learning rates were tuned."],
        }[_rates(summary)]
    sentences = []
    tuned = {label: each for label, each in summary.tuning.items() if each.get("tuned")}
    ways: dict[str, list[str]] = {}
    for label, each in tuned.items():
        ways.setdefault(str(each.get("over", "")), []).append(label)
    for over, labels in ways.items():
        who = "Each loss" if len(labels) == len(summary.groups) else _some(labels)
        was = "was" if len(labels) in (1, len(summary.groups)) else "were"
        tried = sorted({int(tuned[label].get("tried", 0)) for label in labels})
        many = f"{tried[0]} to {tried[-1]}" if len(tried) > 1 else f"{tried[0]}"
        sentences.append(f"{who} {was} tuned over {over}; {many} settings were tried per loss.")
    reasons: dict[str, list[str]] = {}
    for label, each in summary.tuning.items():
        if label not in tuned:
            reasons.setdefault(str(each.get("why_not", "")), []).append(label)
    for why, labels in reasons.items():
        who = "all losses" if len(labels) == len(summary.groups) else _some(labels)
        sentences.append(f"Learning rate and weight decay of {who} were not tuned{f': {why}' * bool(why)}.")
    if wider := [label for label, each in tuned.items() if each.get("widened")]:
        sentences.append(f"For {_some(wider)} the grid was widened once, because the best setting lay at its edge.")
    if edges := [label for label, each in tuned.items() if each.get("edge")]:
        sentences.append(f"For {_some(edges)} the best setting lies at the edge of what was tried.")
    return sentences
