"""What the golden files hold: identities, names and shapes, trials trained a little, gradients, chosen paths."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lastlayer import heads, losses, models, papers
from lastlayer.linear_loss import Plan, linear_loss, plan
from lastlayer.training import Trial
from tests.golden import access
from tests.golden.records import digest, numbers, shapes

Record = dict[str, Any]
N, D, K = 9, 5, 7
LOSSES = (
    "arc-margin", "batch-ce", "batch-max-margin", "bce", "ce", "fn-kd", "focal", "kd", "large-margin", "ln",
    "logit-adjusted", "ls", "max-margin", "mse", "nce", "self-norm", "sln", "soft-margin",
)  # fmt: skip
NEEDED: dict[str, dict[str, Any]] = {"logit-adjusted": {"counts": [50, 20, 10, 5, 3, 2, 1]}}


# identities


def papers_grid(name: str) -> Record:
    """The trials of an artifact at every size, in the order they run, and its cells."""
    artifact, record = papers.artifact(name), {}
    for size in papers.SIZES:
        grid = artifact.grid(size)
        identities = [trial.identity for trial in papers.all_trials(grid)]
        cells = [[dict(cell.labels), dict(cell.columns)] for cell in grid.cells]
        record[size] = [len(identities), digest(identities), len(cells), digest(cells), list(grid.seeds)]
    return {"same": record}


COMPARED: dict[str, dict[str, Any]] = {
    "compare": {"losses": access.default_losses()},
    "compare, the data": {
        "losses": ["ce", "sln:gamma=0.5:tau=0.3", "arc-margin:scale=30", "logit-adjusted", "large-margin:lam=5"],
        "train_samples": 300, "long_tail": 10.0, "unknown": 2, "holdout": 0.1,
    },
    "compare, the training": {
        "losses": ["ls", "bce", "sln"],
        "data": "gaussian", "model": "mlp4", "scale": 8.0, "epochs": 3, "batch_size": 32, "optimiser": "adamw",
        "lr": 0.01, "weight_decay": 0.1, "decay": "head", "clip": 1.0, "schedule": "linear", "warmup": 1.0,
        "label_smoothing": 0.2, "mixup": 0.3, "precision": "bfloat16", "set": ["model.width=32", "evaluations=2"],
    },
    "compare, the head": {
        "losses": ["ce", "max-margin:margin=2", "nce"], "head": "normalized",
        "crop": 1, "flip": True, "rotation": 10.0, "cutmix": 1.0, "set": ["data.seed=3", "head.bias=false"],
    },
}  # fmt: skip


def command_trials(name: str) -> Record:
    """The trials that a command makes of its options."""
    probed = ["ce", "sln", "bce", "mse", "batch-ce"]
    made = access.probe_trials(probed) if name == "linear-probe" else access.compared_trials(**COMPARED[name])
    return {"same": [trial.identity for trial in made]}


# names and shapes of what is saved


def model_record(name: str) -> Record:
    """The state_dict of a backbone. For a small one, also the initial weights that a seed gives."""
    torch.manual_seed(0)
    few = name in SMALL_MODELS
    with torch.device("cpu" if few else "meta"):
        state = models.create(name, tuple(MODELS[name])).state_dict()
    named = shapes(state)
    record: Record = {"same": [MODELS[name], len(named), digest(named), *named[:2], *named[-1:]]}
    return {**record, **(numbers(state.values()) if few else {})}


MODELS = {
    "classifier32": [3, 32, 32], "cnn6": [3, 32, 32], "densenet121": [3, 64, 64], "identity": [64], "mlp": [1, 8, 8],
    "mlp4": [16], "mlp500": [1, 28, 28], "mlp6": [16], "resnet101": [3, 64, 64], "resnet110": [3, 32, 32],
    "resnet18": [3, 64, 64], "resnet20": [3, 32, 32], "resnet32": [3, 32, 32], "resnet34": [3, 64, 64],
    "resnet44": [3, 32, 32], "resnet50": [3, 64, 64], "resnet56": [3, 32, 32], "vgg11": [3, 32, 32],
    "vgg11_bn": [3, 32, 32], "vgg19": [3, 32, 32], "vgg19_bn": [3, 32, 32], "vit": [3, 32, 32],
    "wideresnet18": [3, 32, 32], "wideresnet50": [3, 32, 32], "wrn": [3, 32, 32],
}  # fmt: skip
SMALL_MODELS = {"classifier32", "identity", "mlp", "mlp4", "mlp6", "mlp500", "resnet20", "resnet56", "vit"}
HEADS: dict[str, Callable[[], heads.Head]] = {
    "linear": lambda: heads.LinearHead(D, K),
    "linear, no bias": lambda: heads.LinearHead(D, K, bias=False),
    "normalized": lambda: heads.NormalizedHead(D, K),
    "normalized, random bias": lambda: heads.NormalizedHead(D, K, scale=4.0, bias_mean=1.0, bias_std=0.5),
    "normalized, no bias": lambda: heads.NormalizedHead(D, K, bias=False),
    "batch-norm": lambda: heads.BatchNormHead(D, K),
    "batch-norm, gamma": lambda: heads.BatchNormHead(D, K, gamma=2.0),
    "simplex": lambda: heads.SimplexHead(D + 1, K, scale=3.0),
    "large-margin": lambda: heads.LargeMarginHead(D, K, margin=3, lam=(100.0, 5.0)),
}


def head_record(name: str) -> Record:
    """The state_dict of a head made from a seed, and its logits in training and evaluation."""
    torch.manual_seed(0)
    head = HEADS[name]()
    x = drawn(N, head.in_features, seed=3).float()
    made = [
        head(x),
        head.eval()(x),
        head.logit(x, [1, 3]),
        head.features(x),
        *(p for p in head.linear() if p is not None),
    ]
    state = head.state_dict()
    learnt = [key for key, parameter in head.named_parameters() if parameter.requires_grad]
    return {"same": [shapes(state), learnt], **numbers([*state.values(), *made])}


def loss_state(name: str) -> Record:
    """What a loss made with class weights saves, its hyperparameters, and how it predicts."""
    plain = losses.create(name, K, **needed(name))
    weights = {weight_of(name): WEIGHT} if weight_of(name) in plain.hyperparameters() else {}
    loss = losses.create(name, K, **needed(name), **weights)
    hyperparameters = {n: "tensor" if isinstance(v, Tensor) else v for n, v in loss.hyperparameters().items()}
    return {
        "same": [shapes(loss.state_dict()), hyperparameters, loss.probability_formula(), loss.aligned,
                 loss.learning_rate, loss.weight_decay, type(loss).__name__],
        **numbers([loss.probabilities(drawn(N, K, seed=4))]),
    }  # fmt: skip


# trials trained a little

BASE = "schedule.epochs=2 batch_size=32 evaluations=1 model.width=24 "
DIGITS = BASE + "data.train=160 "
GAUSSIAN = BASE + "data.name=gaussian data.num_classes=5 data.dim=12 data.per_class=24 data.test_per_class=12 "
TRIALS = {
    "ce": DIGITS,
    "ls": DIGITS + "optimiser.name=adamw optimiser.decay=head schedule.name=linear schedule.warmup=0.5",
    "focal": DIGITS + "loss.gamma=2 head.name=batch-norm optimiser.name=adam",
    "mse": DIGITS + "optimiser.nesterov=true optimiser.clip=1.0 augmentation.mixup=0.4",
    "bce": DIGITS + "head.name=normalized head.scale=8.0 data.holdout=0.25 evaluations=2",
    "sln": DIGITS + "precision=bfloat16 model.name=mlp4 model.batch_norm=all",
    "ln": DIGITS + "data.unknown=3 optimiser.decay=head",
    "max-margin": GAUSSIAN + "data.long_tail=6",
    "self-norm": DIGITS + 'model={"name":"mlp500"} data.train=64',
    "nce": GAUSSIAN + "loss.num_noise=5 schedule.name=milestones",
    "batch-ce": DIGITS
    + "augmentation.crop=1 augmentation.flip=true augmentation.cutmix=1 augmentation.mixup=0.2 "
    + "augmentation.mix_probability=0.7",
    "batch-max-margin": GAUSSIAN + "schedule.name=constant",
    "soft-margin": DIGITS + "head.name=simplex head.scale=4 augmentation.rotation=15",
    "large-margin": DIGITS + "loss.margin=2 loss.lam=[10.0,1.0] seed=5",
    "arc-margin": DIGITS
    + 'loss.scale=16 optimiser.name=adamw model={"name":"vit","options":{"dim":12,"depth":1,"heads":2}}',
    "logit-adjusted": DIGITS
    + 'data.train=null data.classes=4 data.long_tail=20 model={"name":"resnet20"} schedule.epochs=1',
    "kd": DIGITS + "teacher=ce seed=1 model.width=12",
    "fn-kd": DIGITS + "teacher=ce seed=2 augmentation.mixup=0.5",
    "dropout": DIGITS + 'loss.name=ce model={"name":"classifier32"} data.train=32 schedule.epochs=1 batch_size=16',
    "linear-probe": BASE
    + 'loss.name=sln data.name=features.safetensors model={"name":"identity"} optimiser.name=adamw optimiser.lr=0.01',
}  # a trial that names no loss has the loss that it is named after


def settings_of(name: str) -> dict[str, Any]:
    """The settings of a smoke trial."""
    settings: dict[str, Any] = {"loss.name": name}
    for word in TRIALS[name].split():
        key, _, value = word.partition("=")
        try:
            settings[key] = json.loads(value)
        except json.JSONDecodeError:
            settings[key] = value
        if key == "model":  # a whole part replaces all earlier settings of it
            del settings["model.width"]
    return settings


@functools.cache
def smoke_folder() -> tempfile.TemporaryDirectory[str]:
    """The folder in which smoke trials are trained, with a file of features. It is deleted when the process ends."""
    folder = tempfile.TemporaryDirectory()
    target = torch.arange(60) % 4
    features = drawn(60, 6, seed=8).float() + torch.nn.functional.one_hot(target, 6)
    save_file({"features": features, "target": target}, Path(folder.name) / "features.safetensors")
    return folder


@functools.cache
def trained(name: str) -> Path:
    """The run folder of a smoke trial, which is trained when it is first asked for."""
    folder, settings = Path(smoke_folder().name), settings_of(name)
    if "teacher" in settings:
        trained(settings["teacher"])
    if name == "linear-probe":
        settings["data.name"] = str(folder / settings["data.name"])
    access.train(Trial().with_settings(settings), folder / name)
    return folder / name


def trial_record(name: str) -> Record:
    """The results of a smoke trial: its identity, its files and their content."""
    run = trained(name)
    result = json.loads((run / "result.json").read_text())
    asked = result["trial"]
    weights, pictures = load_file(run / "weights.safetensors"), load_file(run / "snapshots.safetensors")
    state = access.checkpoint(run)
    parts = {**result["measures"], "best": result.get("best", {}).get("test", {})}
    measures = {f"{part}.{name}": value for part, made in parts.items() for name, value in made.items()}
    history = [[entry["epoch"], entry.get("loss"), entry.get("accuracy")] for entry in result["history"]]
    asked["data"]["name"] = Path(asked["data"]["name"]).name
    last = max(run.glob("checkpoint-*.pt")).name
    kept = sorted(path.name for path in run.iterdir() if not path.name.startswith("checkpoint-"))
    return {
        "same": {
            "identity": Trial.from_dict(asked).identity,
            "files": [*kept, last],
            "keys": sorted(result),
            "parameters": result["parameters"],
            "samples": result["data"]["samples"],
            "weights": [len(weights), digest(shapes(weights))],
            "snapshots": shapes(pictures),
            "checkpoint": outline(state),
            "metrics": sorted(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])),
        },
        "bits": digest([history, state["last"], result["data"]["checksums"]]),
        "exact": measures,
        "weights": numbers([weights[key] for key in sorted(weights)]),
        "snapshots": {"bits": numbers(pictures[key] for key in sorted(pictures))["bits"]},
        "state": {"bits": numbers(leaves({part: v for part, v in state.items() if part != "snapshots"}))["bits"]},
        "close": {name: value for name, value in measures.items() if name.endswith(".accuracy")},
    }


def outline(state: Any) -> Any:
    """The names in a checkpoint, with the shapes of the optimiser's tensors in their order."""
    optimiser = state["optimiser"]
    groups = [{key: group[key] for key in ("params", "weight_decay")} for group in optimiser["param_groups"]]
    moments = [[index, sorted(held), *{tuple(t.shape) for t in held.values() if isinstance(t, Tensor) and t.dim()}]
               for index, held in optimiser["state"].items()]  # fmt: skip
    moments = [[list(part) if isinstance(part, tuple) else part for part in moment] for moment in moments]
    return [
        sorted(state),
        sorted(optimiser["param_groups"][0]),
        groups,
        digest(moments),
        digest(shapes(state["network"])),
    ]


def leaves(tree: Any) -> list[Tensor]:
    """Every tensor in a tree of dicts and lists, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, Mapping | list):
        return [leaf for part in (tree.values() if isinstance(tree, Mapping) else tree) for leaf in leaves(part)]
    return []


# gradients of losses

WEIGHT = torch.linspace(0.2, 2.0, K, dtype=torch.float64)
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "arc-margin": [{"margin": 0.3, "scale": 4.0}],
    "batch-max-margin": [{"margin": 2.0}, {"sample_term": False}],
    "bce": [{"label_smoothing": 0.1}, {"pos_weight": WEIGHT.flip(0)}],
    "ce": [{"temperature": 2.0, "label_smoothing": 0.1}],
    "fn-kd": [],
    "focal": [{"gamma": 0.5}],
    "kd": [{"temperature": 2.0, "alpha": 0.3}],
    "large-margin": [{"margin": 2, "lam": 1.5}],
    "logit-adjusted": [{"tau": 0.5}],
    "max-margin": [{"margin": 3.0}],
    "mse": [{"kappa": 3.0, "beta": 2.0}],
    "nce": [
        {"num_noise": 3, "include_target": False}, {"noise": WEIGHT / WEIGHT.sum()},
        {"samples": torch.tensor([0, 2, 2, 5])},
    ],
    "self-norm": [{"alpha": 0.7}],
    "sln": [{"gamma": 0.4, "tau": 0.3}, {"label_smoothing": 0.2}],
    "ln": [{"tau": 0.5}],
    "soft-margin": [{"margin": 2.0}],
}  # fmt: skip


def needed(name: str) -> dict[str, Any]:
    """The arguments without which a loss cannot be made."""
    return NEEDED.get(name, {})


def weight_of(name: str) -> str:
    """What a loss calls its class weights."""
    return "class_weight" if name == "large-margin" else "weight"


def drawn(*shape: int, seed: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets(n: int = N, k: int = K) -> dict[str, Any]:
    """Labels, class probabilities and a mixed pair."""
    generator = torch.Generator().manual_seed(1)
    first, second = (torch.randint(k, (n,), generator=generator) for _ in range(2))
    soft = drawn(n, k, seed=2).softmax(1)
    return {"index": first, "probabilities": soft, "pair": (first, second, 0.3)}


def attempt(compute: Callable[[], list[Tensor]], shown: int = 0) -> Record:
    """The record of a result, or the kind of error if the call is refused."""
    try:
        return numbers(compute(), shown)
    except (ValueError, TypeError, RuntimeError) as error:
        return {"refused": type(error).__name__}


def with_gradients(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """A value and its gradients. Each entry of the value has another upstream gradient."""
    upstream = torch.linspace(-1.0, 2.0, value.numel(), dtype=value.dtype).reshape(value.shape)
    upstream = upstream if value.dim() else torch.tensor(1.7, dtype=value.dtype)
    found = torch.autograd.grad(value, inputs, upstream, allow_unused=True, materialize_grads=True)
    return [value, *found]


def loss_gradients(name: str) -> Record:
    """Value and gradients of a loss with every kind of target, several options and dtypes."""
    common: list[dict[str, Any]] = [{}]
    own = losses.create(name, K, **needed(name)).hyperparameters()
    if "reduction" in own:
        weight = {weight_of(name): WEIGHT}
        common += [{**weight, "reduction": "sum"}, {**weight, "ignore_index": 1, "reduction": "none"}]
    record: Record = {}
    for number, options in enumerate([*common, *OPTIONS.get(name, [])]):
        for kind, target in targets().items():
            for dtype in ("float64", "float32") if number < 2 else ("float64",):
                compute = functools.partial(_loss_case, name, options, target, getattr(torch, dtype))
                record[f"{number} {kind} {dtype}"] = attempt(compute, shown=2)
    for dtype in (torch.float16, torch.bfloat16):
        record[f"0 index {dtype}"] = attempt(functools.partial(_loss_case, name, {}, targets()["index"], dtype))
    return record


def _loss_case(name: str, options: dict[str, Any], target: Any, dtype: torch.dtype) -> list[Tensor]:
    loss = losses.create(name, K, **needed(name), **options).to(
        torch.float64 if dtype is torch.float64 else torch.float32
    )
    logits, others, features = drawn(N, K, seed=5), drawn(N, K, seed=6), drawn(N, D, seed=7)
    if name == "arc-margin":
        logits = logits / 8
    given = [logits]
    if name == "large-margin":
        given = [features, drawn(K, D, seed=9)]
    if name == "kd":
        given = [logits, others]
    if name == "fn-kd":
        given = [logits, features, others, drawn(N, D, seed=10)]
    given = [g.to(dtype).requires_grad_() for g in given]
    return with_gradients(loss(*given, target), given)


# linear_loss

PATHS = {
    "dense": Plan("dense", "pinned"),
    "rows 4": Plan("rows", "pinned", rows=4),
    "rows 20": Plan("rows", "pinned", rows=20),
    "classes 3": Plan("classes", "pinned", classes=3),
}
SIZES = [
    (8, 4, 3), (256, 64, 100), (8192, 2048, 32768), (4096, 512, 2**20), (256, 512, 1_000_000), (2**20, 32, 64),
    (2**19, 16, 256), (3000, 4096, 9000), (100, 8, 2**22), (65536, 256, 1024), (70000, 64, 5),
]  # fmt: skip


def linear_loss_record(name: str) -> Record:
    """Value and gradients of linear_loss on every path, with every kind of target."""
    record: Record = {}
    cases: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
        ("plain", {}, {}, "float64"), ("plain", {}, {}, "float32"), ("plain", {}, {}, "bfloat16"),
        ("normalized", {}, {"normalized": True, "scale": 6.0}, "float64"),
        ("none", {"reduction": "none"}, {}, "float64"),
        ("weighted", {weight_of(name): WEIGHT, "reduction": "sum"}, {}, "float64"),
        ("ignored", {"ignore_index": 1}, {}, "float64"),
    ]  # fmt: skip
    if name == "nce":
        cases.append(("samples", {"samples": torch.tensor([0, 2, 2, 5])}, {}, "float64"))
    for path, chosen in PATHS.items():
        for case, options, layer, dtype in cases:
            for kind, target in targets().items():
                compute = functools.partial(_linear_case, name, options, layer, target, chosen, getattr(torch, dtype))
                record.setdefault(path, {}).setdefault(f"{case} {dtype}", {})[kind] = attempt(compute)
    return record


def _linear_case(
    name: str, options: dict[str, Any], layer: dict[str, Any], target: Any, chosen: Plan, dtype: torch.dtype
) -> list[Tensor]:
    loss = losses.create(name, K, **needed(name), **({"scale": 4.0} if name == "arc-margin" else {}), **options)
    loss = loss.to(torch.float64 if dtype is torch.float64 else torch.float32)
    small = 8 if name == "arc-margin" and not layer else 1
    leaves = [
        (drawn(*shape, seed=seed) / small).to(dtype).requires_grad_()
        for seed, shape in enumerate([(N, D), (K, D), (K,)])
    ]
    bias = None if name in ("large-margin", "arc-margin") else leaves[2]
    value = linear_loss(leaves[0], leaves[1], target, loss, bias, plan=chosen, **layer)
    return with_gradients(value, leaves)


def plan_record(name: str) -> Record:
    """The paths that `plan` chooses by sizes, target and device."""
    made: list[Any] = []
    loss = losses.create(name, **needed(name))
    for size in SIZES:
        for device in ("cpu", "cuda"):
            for probabilities in (False, True):
                try:
                    found = plan(*size, loss, probabilities=probabilities, device=device)
                    made.append([found.path, found.rows, found.classes])
                except ValueError as error:
                    made.append(type(error).__name__)
    return {"same": made}


COMMANDS = (*COMPARED, "linear-probe")
RECORDS: dict[str, Callable[[str], Record]] = {
    "identities": lambda name: command_trials(name) if name in COMMANDS else papers_grid(name),
    "models": model_record,
    "heads": head_record,
    "states": loss_state,
    "trials": trial_record,
    "losses": loss_gradients,
    "linear_loss": linear_loss_record,
    "plans": plan_record,
}  # golden file -> function from a name to its record
NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "identities": lambda: [*papers.artifacts(), *COMMANDS],
    "models": lambda: MODELS,
    "heads": lambda: HEADS,
    "trials": lambda: TRIALS,
}  # golden file -> names of its records. A file that is not here has one record per loss.
