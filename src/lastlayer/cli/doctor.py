"""`lastlayer doctor`: what this machine has, whether the library computes right on it, and what to do if not."""

import json
import os
import re
import shutil
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from lastlayer.cli._options import DataRoot

PURPOSES = {
    "images": "reading folders of images",
    "onnx": "lastlayer export --format onnx",
    "tensorboard": "TensorBoard logs",
    "timm": "--model timm:NAME",
    "hf": "--model hf:NAME",
    "devices": "trials that span several devices",
    "pictures": "lastlayer reproduce --picture",
    "dev": "tests, lint and types",
}
ENOUGH_DISK = 2**30

# soft_logit_norm of these logits for class 0 at gamma 0.7 and tau 0.5, and its gradient by central differences
SLN_LOGITS, SLN_LOSS = (2.0, 1.0, 0.0), 0.35263483
SLN_GRADIENT = (-0.22064363, 0.31515348, 0.08207743)


def doctor(
    data_root: DataRoot = None,
    runs: Annotated[Path, typer.Option(help="Folder that runs would be written to.")] = Path("runs"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
) -> None:
    """Look at this machine: versions, devices, data, extras, disk, and a self-test that takes a second.

    The exit code is 1 if the self-test fails. Anything else that is wrong comes with advice and exit code 0.
    """
    report = examine(data_root, runs)
    if as_json:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)
    if not all(test["ok"] for test in report["self_test"]):
        raise typer.Exit(1)


def examine(data_root: Path | None, runs: Path) -> dict[str, Any]:
    """Everything doctor reports, as plain values."""
    from lastlayer.cli.data import files_there
    from lastlayer.data import available, sources
    from lastlayer.training.machine import describe_machine

    root = sources.data_root(data_root)
    machine = describe_machine()
    report: dict[str, Any] = {
        "versions": {name: machine[name] for name in ("lastlayer", "git", "python", "torch", "numpy")},
        "devices": _devices(machine["device"]),
        "threads": threads_here(),
        "data": {"root": str(root), "sets": {name: files_there(name, root) for name in available()}},
        "extras": extras(),
        "folders": {"runs": folder_state(runs), "data root": folder_state(root)},
        "self_test": self_test(),
    }
    report["advice"] = advice(report)
    return report


def _devices(processor: str) -> list[str]:
    import torch

    found = [processor]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(f"cuda:{index}: {properties.name}, {properties.total_memory / 2**30:.0f} GiB")
    if torch.backends.mps.is_available():
        found.append("mps: Apple GPU")
    return found


def threads_here() -> dict[str, Any]:
    """Torch's threads, all cores, those this process may use, and the load (None if the system does not tell it)."""
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {"torch": torch.get_num_threads(), "cores": os.cpu_count(), "usable_cores": usable, "load": busy}


def extras() -> dict[str, dict[str, Any]]:
    """The optional extras that the package declares: what each is for, and which of its packages are missing.

    Empty if the package is not installed, as in a checkout on PYTHONPATH: then nothing declares them.
    """
    found: dict[str, dict[str, Any]] = {}
    try:
        requirements = metadata.requires("lastlayer") or []
    except metadata.PackageNotFoundError:
        return found
    for requirement in requirements:
        match = re.match(r"([A-Za-z0-9._-]+).*;\s*extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        package, name = match.groups() if match else ("lastlayer", "")
        if package == "lastlayer":  # required without extras, or an extra made of other extras
            continue
        entry = found.setdefault(name, {"for": PURPOSES.get(name, ""), "installed": {}, "missing": []})
        try:
            entry["installed"][package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            entry["missing"].append(package)
    return dict(sorted(found.items()))


def folder_state(folder: Path) -> dict[str, Any]:
    """Free bytes, and whether a file can be written: in the folder, or in the nearest existing one above it."""
    folder = folder.absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    state = {"path": str(folder), "exists": folder.exists(), "free": shutil.disk_usage(existing).free, "problem": None}
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"lastlayer")
    except OSError as error:
        state["problem"] = error.strerror or str(error)
    return state


def self_test() -> list[dict[str, Any]]:
    """Compute a loss, its gradient and a measure, and compare them with their known values."""
    import torch

    from lastlayer import geometry, losses

    def gradient() -> tuple[float, ...]:
        logits = torch.tensor([SLN_LOGITS], requires_grad=True)
        loss = losses.soft_logit_norm(logits, torch.tensor([0]), gamma=0.7, tau=0.5)
        return (loss.item(), *torch.autograd.grad(loss, logits)[0][0].tolist())

    def collapse() -> tuple[float, ...]:
        features = torch.tensor([[-1.5], [-0.5], [0.5], [1.5]])  # scatter within 1/4, between 1, two classes: 1/8
        return (float(geometry.neural_collapse(features, torch.tensor([0, 0, 1, 1])).nc1),)

    outcomes = []
    for name, compute, expected in (
        ("soft_logit_norm and its gradient", gradient, (SLN_LOSS, *SLN_GRADIENT)),
        ("NC1 of four points", collapse, (0.125,)),
    ):
        found: object
        try:
            found = list(compute())
            ok = all(abs(a - b) < 1e-6 for a, b in zip(found, expected, strict=True))
        except Exception as error:  # whatever a broken installation raises is the finding
            found, ok = f"{type(error).__name__}: {error}", False
        outcomes.append({"name": name, "ok": ok, "found": found, "expected": list(expected)})
    return outcomes


def advice_on_threads(threads: dict[str, Any]) -> list[str]:
    """What makes work on the CPU slower than it could be."""
    used, usable, cores, load = (threads[name] for name in ("torch", "usable_cores", "cores", "load"))
    said = []
    if used > usable:
        said.append(f"torch uses {used} threads on {usable} usable cores: set OMP_NUM_THREADS={usable}")
    if used == 1 < usable:
        said.append(f"torch uses 1 of {usable} cores: unset OMP_NUM_THREADS to use them all")
    if load is not None and load > 1.5 * cores:
        busy = f"other processes keep this machine busy (load {load:.1f} on {cores} cores)"
        said.append(f"{busy}: training will be slow and times mean little")
    return said


def advice(report: dict[str, Any]) -> list[str]:
    """One sentence per thing that is wrong."""
    said = advice_on_threads(report["threads"])
    for name, state in report["folders"].items():
        option = "--out (of reproduce: --runs)" if name == "runs" else "--data-root"
        if state["problem"]:
            said.append(f"{state['path']} cannot be written ({state['problem']}): choose another with {option}")
        elif state["free"] < ENOUGH_DISK:
            room = f"only {_size(state['free'])} free for {state['path']}"
            said.append(f"{room}: make room or choose another with {option}")
    return said + [
        f"self-test {test['name']} gave {test['found']} instead of {test['expected']}: reinstall torch"
        for test in report["self_test"]
        if not test["ok"]
    ]


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def _print(report: dict[str, Any]) -> None:
    lines = ["versions   " + ", ".join(f"{name} {value}" for name, value in report["versions"].items() if value)]
    lines += ["devices    " + "; ".join(report["devices"])]
    threads = report["threads"]
    lines += [f"threads    {threads['torch']} of torch, {threads['usable_cores']} usable of {threads['cores']} cores"]
    for name, state in report["folders"].items():
        kind = "" if state["exists"] else ", not made yet"
        writable = f"not writable: {state['problem']}" if state["problem"] else "writable"
        lines.append(f"{name:<10} {state['path']} ({_size(state['free'])} free, {writable}{kind})")
    sets = report["data"]["sets"]
    for kind in ("embedded", "there", "not found"):
        names = [name for name, found in sets.items() if found == kind]
        lines.append(f"data       {kind}: {', '.join(names) or 'none'}")
    for name, extra in report["extras"].items():
        state = ", ".join(f"{package} {version}" for package, version in extra["installed"].items())
        if extra["missing"]:
            state = f"missing {', '.join(extra['missing'])}: pip install 'lastlayer[{name}]'"
        lines.append(f"extra      {name}: " + "; ".join(filter(None, (extra["for"], state))))
    if not report["extras"]:
        lines.append("extra      unknown: lastlayer is not installed here, it runs from its source folder")
    lines += [f"self-test  {'ok' if test['ok'] else 'FAILED'}: {test['name']}" for test in report["self_test"]]
    lines += [f"advice     {sentence}" for sentence in report["advice"]] or ["advice     none: all is well"]
    typer.echo("\n".join(lines))
