"""What a run keeps of its test samples is what a second look at its network finds."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from lastlayer import data, losses
from lastlayer.runs import RunFolder
from lastlayer.training import Trial, finish_fit, fit, load
from lastlayer.training.engine.evaluate import Outputs
from lastlayer.training.engine.evidence import MOST_ROWS, evidence, log_loss, logit_histograms

CE = losses.create("ce")


def outputs(rows: int, classes: int, *, unknown: int = 0) -> Outputs:
    target = torch.arange(rows) % classes
    logits = torch.randn(rows, classes)
    logits[torch.arange(rows), target] += 1.5
    features = torch.randn(classes, 5)[target] + 0.3 * torch.randn(rows, 5)
    others = None
    if unknown:
        labels = torch.arange(unknown) % 3
        others = Outputs(
            torch.randn(3, 5)[labels] + 0.3 * torch.randn(unknown, 5), torch.randn(unknown, classes), labels
        )
    return Outputs(features, logits, target, unknown=others)


def test_a_run_keeps_labels_decisions_and_log_losses(tmp_path: Path) -> None:
    trial = Trial().with_settings({"schedule.epochs": 2, "evaluations": 1})
    result = finish_fit(fit(trial, tmp_path / "run"))
    kept, test = RunFolder(tmp_path / "run").tensors("rows"), data.load("digits").test
    with torch.no_grad():
        logits = load(tmp_path / "run").network(test.inputs).double()
    assert torch.equal(kept["target"].long(), test.target)
    assert torch.equal(kept["decision"].long(), logits.argmax(1))
    assert torch.allclose(
        kept["log_loss"].double(), torch.nn.functional.cross_entropy(logits, test.target, reduction="none")
    )
    found = result["measures"]["test"]
    assert (kept["decision"] == kept["target"]).double().mean().item() == found["accuracy"]
    assert kept["log_loss"].mean().item() == pytest.approx(found["nll"], rel=1e-5)
    assert kept["draw.auprc"].mean().item() == pytest.approx(found["auprc"], abs=0.02)
    assert "measured" not in kept
    assert "draw.auroc" not in kept


@pytest.mark.parametrize("name", ["nce", "bce", "self-norm"])
def test_losses_of_single_logits_are_judged_by_their_posterior(tmp_path: Path, name: str) -> None:
    trial = Trial().with_settings({"schedule.epochs": 2, "evaluations": 1, "loss.name": name})
    found = finish_fit(fit(trial, tmp_path / "run"))["measures"]["test"]
    kept, test = RunFolder(tmp_path / "run").tensors("rows"), data.load("digits").test
    with torch.no_grad():
        z = load(tmp_path / "run").network(test.inputs).double()
    posterior = torch.sigmoid(z) / torch.sigmoid(z).sum(1, keepdim=True) if name == "bce" else z.softmax(1)
    expected = -posterior[torch.arange(len(z)), test.target].log()
    assert torch.allclose(kept["log_loss"].double(), expected, rtol=1e-5)
    assert found["nll"] == pytest.approx(expected.mean().item(), rel=1e-5)
    assert 0 <= found["single_ece"] < 0.2
    assert ("probability_ece" in found) == (name != "self-norm")


def test_a_run_without_a_folder_and_one_that_was_cut_at_its_end(tmp_path: Path) -> None:
    """A run that was stopped after its last epoch measures its test samples once more, and keeps the same."""
    trial = Trial().with_settings({"schedule.epochs": 1, "evaluations": 1, "data.unknown": 3})
    assert "files" not in finish_fit(fit(trial))
    whole = RunFolder(tmp_path / "whole")
    finish_fit(fit(trial, whole))
    cut = RunFolder(tmp_path / "cut")
    steps = fit(trial, cut)
    for progress in steps:
        if progress.epoch == 1 and progress.measuring and cut.load_checkpoint() is not None:
            break
    steps.close()
    assert cut.status == "interrupted"
    finish_fit(fit(trial, cut))
    assert whole.tensors("rows").keys() == cut.tensors("rows").keys()
    for name, tensor in whole.tensors("rows").items():
        assert torch.equal(tensor, cut.tensors("rows")[name]), name


def test_an_older_run_says_that_it_has_no_rows(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.finish({"measures": {}}, {"w": torch.ones(1)}, {})
    with pytest.raises(FileNotFoundError, match=r"no rows\.safetensors"):
        run.tensors("rows")


def test_of_a_split_measured_in_part_every_decision_is_kept(
    tmp_path: Path, largest_logits: Callable[[int], None]
) -> None:
    largest_logits(10 * 100)
    trial = Trial().with_settings({"schedule.epochs": 1, "evaluations": 1})
    result = finish_fit(fit(trial, tmp_path / "run"))
    kept, test = RunFolder(tmp_path / "run").tensors("rows"), data.load("digits").test
    assert len(kept["target"]) == len(kept["decision"]) == len(test)
    assert len(kept["log_loss"]) == len(kept["measured"]) == 100
    accuracy = (kept["decision"] == kept["target"]).double().mean().item()
    assert accuracy == result["measures"]["test"]["accuracy"]
    with torch.no_grad():
        logits = load(tmp_path / "run").network(test.inputs[kept["measured"]]).double()
    expected = torch.nn.functional.cross_entropy(logits, test.target[kept["measured"]], reduction="none")
    assert torch.allclose(kept["log_loss"].double(), expected, atol=1e-6)


def test_unknown_classes_add_draws_and_nearest_means() -> None:
    made = outputs(90, 4, unknown=60)
    assert made.unknown is not None
    kept = evidence(CE, made)
    scores = torch.cat([made.logits, made.unknown.logits]).amax(1)
    auroc = roc_auc_score([1] * 90 + [0] * 60, scores)
    assert kept["draw.auroc"].mean().item() == pytest.approx(auroc, abs=0.02)
    assert bool((kept["draw.oscr"] <= kept["draw.auroc"]).all())
    features, labels = made.unknown.features.double(), made.unknown.target
    for i in range(60):
        others = torch.arange(60) != i
        means = torch.stack([features[others & (labels == k)].mean(0) for k in range(3)])
        nearest = (features[i] - means).norm(dim=1).argmin()
        assert bool(kept["unknown_right"][i]) == bool(nearest == labels[i])
    assert torch.equal(kept["unknown_target"].long(), labels)


def test_unknown_samples_of_one_class_have_no_nearest_mean() -> None:
    made = outputs(20, 3, unknown=6)
    assert made.unknown is not None
    made.unknown.target.zero_()
    kept = evidence(CE, made)
    assert "draw.oscr" in kept
    assert "unknown_right" not in kept


def test_a_class_may_be_missing_and_another_have_one_row() -> None:
    made = outputs(9, 4)
    made.target[:] = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1, 3])
    kept = evidence(CE, made)
    assert all(tensor.isfinite().all() for tensor in kept.values() if tensor.is_floating_point())
    assert kept["logit_true"].sum(1).tolist() == [3, 5, 0, 1]
    assert kept["logit_false"].sum(1).tolist() == [6, 4, 9, 8]


def test_draws_are_the_measure_on_equal_resamples_of_all_runs() -> None:
    """The difference of two runs varies less than each of them, because both are drawn alike."""
    made = outputs(300, 3)
    close = Outputs(made.features, made.logits + 0.1 * torch.randn(300, 3), made.target)
    one, other = (evidence(CE, each)["draw.auprc"] for each in (made, close))
    assert (one - other).std() < 0.5 * one.std()
    exact = [average_precision_score(made.target == k, made.logits[:, k]) for k in range(3)]
    assert one.mean().item() == pytest.approx(sum(exact) / 3, abs=3 * one.std().item() / 5)


def test_many_rows_are_thinned_and_vary_as_all_of_them_do() -> None:
    """Four times as many rows as are drawn from vary half as much as these."""
    whole, thinned = evidence(CE, outputs(MOST_ROWS, 3)), evidence(CE, outputs(4 * MOST_ROWS, 3))
    for name in ("draw.auprc", "draw.ece"):
        assert 2 * thinned[name].std().item() == pytest.approx(whole[name].std().item(), rel=0.35), name


@pytest.mark.parametrize("name", losses.available())
def test_the_log_loss_is_finite_for_extreme_logits(name: str) -> None:
    needed = {"counts": [3, 2, 1]} if losses.entry(name).module.needs_counts else {}
    loss = losses.create(name, 3, **needed)
    logits = torch.tensor([[0.0, 900.0, -900.0], [0.0, 0.0, 0.0], [50.0, -50.0, 0.0]])
    value = log_loss(loss, logits, torch.tensor([2, 1, 0]))
    assert bool(value.isfinite().all())
    assert bool((value >= 0).all())


@pytest.mark.gpu
def test_a_gpu_keeps_what_a_cpu_keeps() -> None:
    made = outputs(300, 4, unknown=60)
    assert made.unknown is not None
    moved = [Outputs(one.features.cuda(), one.logits.cuda(), one.target.cuda()) for one in (made, made.unknown)]
    found = evidence(CE, dataclasses.replace(moved[0], unknown=moved[1]))
    expected = evidence(CE, made)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].device.type == "cpu"
        assert torch.allclose(found[name].double(), tensor.double(), rtol=1e-5, atol=1e-6), name


def test_histograms_count_each_logit_once() -> None:
    logits, target = torch.randn(500, 40), torch.arange(500) % 40
    found = logit_histograms(logits, target)
    classes = found["logit_classes"].tolist()
    assert len(classes) == 12
    assert (classes[0], classes[-1]) == (0, 39)
    for i, k in enumerate(classes):
        column, (low, high) = logits[:, k], found["logit_range"][i].tolist()
        assert (low, high) == (column.min().item(), column.max().item())
        own = histogram(column[target == k], low, high)
        assert (found["logit_true"][i] - own).abs().sum() <= 2  # a logit on an edge may fall on either side
        assert found["logit_false"][i].sum() == 500 - own.sum()
    constant = logit_histograms(torch.zeros(4, 2), torch.tensor([0, 0, 1, 1]))
    assert constant["logit_true"].sum() == 4


def histogram(values: Tensor, low: float, high: float) -> Tensor:
    """Counted with numpy, which is another implementation."""
    import numpy as np

    return torch.from_numpy(np.histogram(values.numpy(), 80, (low, high))[0]).float()
