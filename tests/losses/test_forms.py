"""What a form says of a loss, computed here from the docstrings of the forms, is what the loss's function gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lastlayer import losses
from lastlayer.losses.forms import DrawnForm, Kind, OthersForm, SoftmaxForm, Sums
from lastlayer.losses.target import read

from .cases import CASES, CLASSIFIER, PER_SAMPLE, K, identity

y = torch.tensor([0, 4, 2, 2, 1, 3])


def inputs_of(case):
    """Logits (6, K), hyperparameters and the loss of each sample."""
    z = case.logits(6, K)
    options = case.module().double().hyperparameters()
    return z, options, case.call(z, y, reduction="none")


def at_label(values):
    return values.gather(1, y[:, None]).squeeze(1)


def false(values, fill):
    return values.masked_fill(F.one_hot(y, K).bool(), fill)


def by_kind(kind, z, offset, factor, a=0.0, b=0.0, c=0.0):
    """The formulas of `Kind`, as they stand there."""
    s = factor * z + offset
    if kind is Kind.NORM:
        s = s / z.norm(dim=1, keepdim=True) ** a
    if kind is Kind.BINARY:
        s = z + a
        return F.softplus(-at_label(s)) + b * (false(F.softplus(s), 0.0).sum(1) + c * F.softplus(at_label(s)))
    if kind is Kind.HINGE:
        return (a - at_label(z) + false(z, -torch.inf).amax(1)).clamp(min=0)
    if kind is Kind.SQUARES:
        return a * (at_label(z) - b) ** 2 + false(z, 0.0).square().sum(1)
    if kind is Kind.SOFTMAX:
        target = (1 - b) * F.one_hot(y, K) + b / K
        return -(target * (s - a * F.one_hot(y, K)).log_softmax(1)).sum(1)
    if kind is Kind.ARC:
        s = s.scatter(1, y[:, None], factor * (z.acos() + c).cos().gather(1, y[:, None]))
    surprise = -at_label(s.log_softmax(1))
    if kind is Kind.FOCUS:
        return (1 - (-surprise).exp()) ** a * surprise
    return surprise + (a * s.logsumexp(1) ** 2 if kind is Kind.PARTITION else 0)


# The kernels know uniform noise alone, and no pos_weight. With the wide margin of arc-margin-2 some angles pass pi.
ROWS = [
    case
    for case in PER_SAMPLE
    if case.module().row_form and case.name != "arc-margin-2" and not case.options.keys() & {"noise", "pos_weight"}
]


@pytest.mark.parametrize("case", ROWS, ids=identity)
def test_a_row_form_is_the_loss(case):
    form = case.module().row_form
    z, options, expected = inputs_of(case)
    offset = form.offset(options, z) if form.offset else 0.0
    torch.testing.assert_close(by_kind(form.kind, z, offset, *form.numbers(options, K)), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_row_form_that_smooths_hands_the_smoothing_over(smoothing):
    smooths = {
        name for name in losses.available() if (form := losses.create_for([9] * K, name).row_form) and form.smooths
    }
    assert smooths == {"ce", "ls"}
    loss = losses.CrossEntropyLoss(label_smoothing=smoothing, temperature=2.0, reduction="none")
    z = torch.randn(6, K, dtype=torch.float64)
    torch.testing.assert_close(
        by_kind(Kind.SOFTMAX, z, 0.0, *loss.row_form.numbers(loss.hyperparameters(), K)), loss(z, y)
    )


def sums_of(s, q):
    """The sums that `Sums` names, of scores s and a target times class weights q."""
    largest = s.amax(1)
    below = s - largest[:, None]
    return Sums(below.exp().sum(1).log(), (q * below).sum(1), largest, q.sum(1))


def scores_of(form, z, options):
    s = z if form.temperature is None else z / options[form.temperature]
    if form.norm is not None:
        gamma, tau = form.norm(options, K)
        s = s / (tau * z.norm(dim=1, keepdim=True) ** gamma)
    return s if form.offset is None else s + form.offset(options, z)


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c.module().class_form, SoftmaxForm)], ids=identity)
def test_a_softmax_form_is_the_loss(case):
    form = case.module().class_form
    z, options, _ = inputs_of(case)
    t = torch.rand(6, K, dtype=torch.float64).softmax(1)
    weight = torch.rand(K, dtype=torch.float64) + 0.5
    expected = case.call(z, t, weight=weight, reduction="none")
    torch.testing.assert_close(form.value(sums_of(scores_of(form, z, options), t * weight), options), expected)


def test_the_softmax_form_of_the_batch_is_its_loss():
    loss, z = losses.BatchCrossEntropyLoss(), 3 * torch.randn(6, K, dtype=torch.float64)
    for t in (F.one_hot(y, K).double(), torch.rand(6, K, dtype=torch.float64)):
        torch.testing.assert_close(loss.class_form.value(sums_of(z, t), loss.hyperparameters()), loss(z, t))


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c.module().class_form, OthersForm)], ids=identity)
def test_a_form_of_the_true_logit_and_the_others_is_the_loss(case):
    form = case.module().class_form
    given, options, expected = inputs_of(case)
    norms, z = None, given
    if case.create_name == "large-margin":  # the inputs are features
        weight = torch.tensor(CLASSIFIER, dtype=torch.float64)
        norms, z = given.norm(dim=1) * weight[y].norm(dim=1), given @ weight.T
    z = z if form.scale is None else options[form.scale] * z
    true, others = at_label(z), false(z, -torch.inf).logsumexp(1)
    if form.replaced is not None:
        found = F.softplus(others - form.replaced(true, norms, options))
    else:
        found = case.module(reduction="none")(torch.stack([true, others], 1), torch.zeros_like(y))
    torch.testing.assert_close(found, expected)


def test_a_drawn_form_reads_the_draws_and_how_often_each_class_is_expected():
    q, drawn = torch.tensor([0.4, 0.3, 0.15, 0.1, 0.05], dtype=torch.float64), torch.tensor([0, 0, 3])
    loss = losses.NceLoss(noise=q, samples=drawn)
    assert isinstance(loss.class_form, DrawnForm)
    samples, expected = loss.class_form.read(loss.hyperparameters(), read(torch.zeros(6, K, dtype=torch.float64), y))
    assert samples.tolist() == [[0, 0, 3]] * 6
    torch.testing.assert_close(expected, 3 * q)


def test_forms_of_labels_alone_are_told_from_those_of_any_target():
    forms = {name: losses.create_for([9] * K, name).class_form for name in losses.available()}
    alone = {name for name, form in forms.items() if form is not None and form.labels_alone}
    assert alone == {"focal", "mse", "nce", "soft-margin", "arc-margin", "large-margin"}
    assert {name for name, form in forms.items() if form is not None and form.shards} == {
        "ce", "ls", "bce", "sln", "ln", "self-norm", "batch-ce", "logit-adjusted",
    }  # fmt: skip
