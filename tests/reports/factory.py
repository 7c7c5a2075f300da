"""Run folders without training: files as a run leaves them, with numbers of the test's choosing."""

import copy
from collections.abc import Mapping
from pathlib import Path

import torch

from lastlayer._core.files import write_json
from lastlayer.runs import RunFolder, identity_of

MEASURED = ("accuracy", "nc1", "nc2", "nc3", "compactness", "separability", "intra_inter_ratio", "auprc",
            "precision_at_90", "precision_at_99", "violation_rate", "ece", "nll", "log_partition_mean")  # fmt: skip


def trial(loss="ce", seed=0, options=None, data="digits", lr=0.1, **parts):
    made = {
        "data": {"name": data, "options": {}, "seed": 0},
        "model": {"name": "mlp", "options": {}},
        "head": {"name": "linear", "options": {}},
        "loss": {"name": loss, "options": options or {}},
        "optimiser": {"name": "sgd", "lr": lr, "weight_decay": 1e-4},
        "schedule": {"name": "cosine", "epochs": 10, "milestones": [0.5, 0.75]},
        "batch_size": 64,
        "seed": seed,
    }
    return {**made, **copy.deepcopy(parts)}


def identity(content: Mapping) -> str:
    return identity_of(content)


def measures(generator, **given):
    values = {name: 0.5 + 0.1 * float(torch.rand((), generator=generator)) for name in MEASURED}
    return {**values, **given}


def result(content, *, train=None, test=None, classes=("0", "1", "2"), epochs=(0, 5, 10), seconds=2.0, **more):
    generator = torch.Generator().manual_seed(int(identity(content), 16) % 2**31)
    history = [
        {"epoch": e, "train": measures(generator, **(train or {})), "test": measures(generator, **(test or {}))}
        for e in epochs
    ]
    return {
        "trial": content,
        "measures": {part: history[-1][part] for part in ("train", "test")},
        "history": history,
        "seconds": seconds,
        "data": {
            "name": content["data"]["name"],
            "class_names": list(classes),
            "in_shape": [1, 8, 8],
            "samples": {"train": 1000, "test": 200},
            "checksums": {"tensors": "ab" * 32},
            "notes": [],
        },
        "machine": {"device": "cpu: a processor", "torch": "2.13.0", "git": None},
        **more,
    }


def snapshots(classes, epochs=(0, 5, 10), samples=500, dim=8, seed=0, most_cosines=200):
    generator = torch.Generator().manual_seed(seed)
    moments, target = len(epochs), torch.arange(samples) % classes
    made = {
        "epochs": torch.tensor(epochs),
        "target": target,
        "features": torch.randn(classes, dim, generator=generator)[target] + torch.randn(samples, dim) / 5,
        "points": torch.randn(moments, samples, 2, generator=generator),
        "range": torch.tensor([[-1.0, 2.0]] * moments),
        "true_logits": torch.rand(moments, 80, generator=generator) * 100,
        "false_logits": torch.rand(moments, 80, generator=generator) * 900,
    }
    if classes <= most_cosines:
        made["cosines"] = torch.rand(moments, classes, classes, generator=generator) * 2 - 1
    return made


def rows(logits: torch.Tensor, target: torch.Tensor, shown=3) -> dict[str, torch.Tensor]:
    """What a run keeps of its test rows, with histograms of the first few logits."""
    own = [(column[target == k], column[target != k], column) for k, column in enumerate(logits.T[:shown].float())]
    return {
        "target": target.int(),
        "decision": logits.argmax(1).int(),
        "log_loss": torch.nn.functional.cross_entropy(logits.float(), target.long(), reduction="none"),
        "logit_classes": torch.arange(len(own)).int(),
        "logit_range": torch.stack([torch.stack([every.min(), every.max()]) for _, _, every in own]),
        "logit_true": torch.stack([torch.histc(true, 80, every.min(), every.max()) for true, _, every in own]),
        "logit_false": torch.stack([torch.histc(false, 80, every.min(), every.max()) for _, false, every in own]),
    }


def done(
    root, content, *, classes=("0", "1", "2"), epochs=(0, 5, 10), samples=60, most_cosines=200, rows=None, counts=None,
    **options,
) -> Path:  # fmt: skip
    """A finished run. With `rows`, one that keeps its test rows."""
    folder = RunFolder(Path(root) / identity(content))
    folder.start(content)
    folder.append_metrics({"epoch": epochs[-1]})  # a line for each epoch would only wait for the disk
    made = result(content, classes=classes, epochs=epochs, **options)
    shown = snapshots(len(classes), epochs, samples, seed=content["seed"], most_cosines=most_cosines)
    if counts is not None:
        made["data"] = {**made["data"], "counts": list(counts)}
    folder.finish(made, {"w": torch.zeros(1)}, shown, rows)
    return folder.path


def cut(root, content) -> Path:
    """A run that was interrupted after epoch 3."""
    folder = RunFolder(Path(root) / identity(content))
    folder.start(content)
    folder.append_metrics({"epoch": 3})
    return folder.path


def failed(root, content, error="the loss is not finite at step 7") -> Path:
    folder = RunFolder(cut(root, content))
    folder.fail({"error": error})
    return folder.path


def comparison(root, trials, title="A comparison", command="lastlayer compare", name="one") -> Path:
    path = Path(root) / f"compare-{name}.json"
    listed = [{"identity": identity(content), "trial": content} for content in trials]
    write_json(path, {"title": title, "command": command, "trials": listed})
    return path
