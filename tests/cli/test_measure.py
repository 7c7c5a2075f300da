"""`lastlayer measure` as its user meets it: values, JSON, the page, and one line for every mistake."""

import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from lastlayer import geometry, tasks
from lastlayer.cli import app

runner = CliRunner()


def arrays(seed: int = 0, spread: float = 1.0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    target = np.arange(90) % 3
    weight = random.normal(size=(3, 5)).astype(np.float32)
    features = (4 * weight[target] + spread * random.normal(size=(90, 5))).astype(np.float32)
    return {"features": features, "target": target, "weight": weight, "bias": np.ones(3, np.float32)}


def save(path, content):
    np.savez(path, **content)
    return str(path)


def run(*arguments, code=0):
    result = runner.invoke(app, ["measure", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def measures(*arguments):
    return [each["measures"] for each in json.loads(run(*arguments, "--json").stdout)["snapshots"]]


def test_json_holds_what_the_library_computes(tmp_path):
    content = arrays()
    file = save(tmp_path / "a.npz", content)
    parsed = json.loads(run(file, "--json").stdout)["snapshots"][0]
    assert (parsed["file"], parsed["samples"], parsed["classes"]) == (file, 90, 3)
    t = {name: torch.from_numpy(array) for name, array in content.items()}
    collapse = geometry.neural_collapse(t["features"], t["target"], t["weight"], t["bias"])
    logits = t["features"].double() @ t["weight"].double().T + t["bias"].double()
    assert parsed["measures"]["nc1"] == pytest.approx(collapse.nc1.item(), rel=1e-9)
    assert parsed["measures"]["nc3"] == pytest.approx(collapse.nc3.item(), rel=1e-9)
    assert parsed["measures"]["accuracy"] == tasks.accuracy(logits, t["target"]).item()
    assert parsed["measures"]["auprc"] == pytest.approx(tasks.single_logit(logits, t["target"]).auprc.item(), rel=1e-9)


@pytest.mark.parametrize("name", ["labels", "y"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint64, ">i4"])
def test_labels_under_any_name_and_dtype(tmp_path, name, dtype):
    content = arrays()
    expected = measures(save(tmp_path / "a.npz", content))
    content[name] = content.pop("target").astype(dtype)
    assert measures(save(tmp_path / "b.npz", content)) == expected


def test_safetensors_equal_npz(tmp_path):
    content = arrays()
    save_file({name: torch.from_numpy(a) for name, a in content.items()}, tmp_path / "a.safetensors")
    assert measures(tmp_path / "a.safetensors") == measures(save(tmp_path / "a.npz", content))


def test_bfloat16_features_are_measured_in_float32_or_better(tmp_path):
    t = {name: torch.from_numpy(array) for name, array in arrays().items()}
    rounded = t["features"].bfloat16()
    save_file({**t, "features": rounded}, tmp_path / "half.safetensors")
    save_file({**t, "features": rounded.double()}, tmp_path / "double.safetensors")
    (half,), (double,) = measures(tmp_path / "half.safetensors"), measures(tmp_path / "double.safetensors")
    assert half["nc1"] == pytest.approx(double["nc1"], rel=1e-5)


def test_features_alone_give_geometry_alone(tmp_path):
    content = arrays()
    (values,) = measures(save(tmp_path / "a.npz", {k: content[k] for k in ("features", "target")}))
    assert "nc1" in values
    assert "nc2" not in values
    assert "accuracy" not in values


def test_logits_and_target_alone_are_enough(tmp_path):
    content = arrays()
    logits = content["features"] @ content["weight"].T + content["bias"]
    file = save(tmp_path / "a.npz", {"logits": logits, "target": content["target"]})
    (values,) = measures(file)
    assert values["accuracy"] == (logits.argmax(1) == content["target"]).mean()
    assert {"balanced_accuracy", "auprc", "logit_gap", "log_partition_mean"} <= values.keys()
    assert not {"nc1", "feature_norm", "bias_mean"} & values.keys()
    assert "balanced accuracy" in run(file).stdout
    page = tmp_path / "page.html"
    run(file, save(tmp_path / "b.npz", {"logits": -logits, "y": content["target"]}), "--plot", page)
    html = page.read_text(encoding="utf-8")
    assert "True and false logits" in html
    assert "Mean cosine" not in html
    flat = save(tmp_path / "flat.npz", {"logits": logits[:, 0], "target": content["target"]})
    assert "logits must have shape (N, K), got (90,)" in run(flat, code=2).output


def test_given_logits_are_used(tmp_path):
    content = arrays()
    content["logits"] = -(content["features"] @ content["weight"].T)
    (values,) = measures(save(tmp_path / "a.npz", content))
    assert values["accuracy"] < 0.1


def test_table_names_every_measure(tmp_path):
    output = run(save(tmp_path / "run.npz", arrays())).stdout
    for title in ("accuracy", "NC1", "NC4", "E_com", "AUPRC", "violations"):
        assert title in output
    assert "90 samples" in output


def test_snapshots_are_columns_and_curves(tmp_path):
    files = [save(tmp_path / f"epoch{i}.npz", arrays(spread=s)) for i, s in enumerate((2.0, 1.0, 0.1))]
    nc1 = [each["nc1"] for each in measures(*files)]
    assert nc1 == sorted(nc1, reverse=True)
    page = tmp_path / "page.html"
    output = run(*files, "--plot", page).stdout
    assert all(f"epoch{i}" in output for i in range(3))
    html = page.read_text(encoding="utf-8")
    for heading in ("Neural collapse over snapshots", "Mean cosine of centred features", "True and false logits"):
        assert heading in html


@pytest.mark.parametrize("terminal", [{}, {"FORCE_COLOR": "1", "TERM": "xterm"}], ids=["pipe", "terminal"])
def test_more_snapshots_than_fit_leave_every_number_beside_the_name_of_its_measure(tmp_path, terminal):
    files = [save(tmp_path / f"features_after_epoch_{10 * i:04d}.npz", arrays(seed=i)) for i in range(8)]
    said = runner.invoke(app, ["measure", *files], env={"COLUMNS": "60", **terminal}).stdout
    lines = re.sub(r"\x1b\[[0-9;]*m", "", said).splitlines()
    numbers = [number for line in lines if line.startswith("NC1 ") for number in line.split()[2:]]
    assert [float(number) for number in numbers] == pytest.approx([one["nc1"] for one in measures(*files)], rel=0.02)
    assert "…" not in said
    if terminal:
        assert max(map(len, lines)) <= 60
    else:
        assert lines[0].split() == [f"features_after_epoch_{10 * i:04d}" for i in range(8)]


def test_snapshots_of_the_same_name_in_different_folders_are_told_apart(tmp_path):
    files = []
    for epoch in ("1", "2"):
        (tmp_path / epoch).mkdir()
        files.append(save(tmp_path / epoch / "features.npz", arrays()))
    page = tmp_path / "page.html"
    run(*files, "--plot", page)
    html = page.read_text(encoding="utf-8")
    assert html.count('features.npz","') >= 3  # one x for each of NC1 to NC3, instead of one point above another


def test_arrays_that_no_measure_takes_may_be_of_any_type(tmp_path):
    names, objects = np.array(["cat", "dog", "owl"]), np.array([{}], dtype=object)
    file = save(tmp_path / "a.npz", {**arrays(), "class_names": names, "config": objects})
    assert measures(file) == measures(save(tmp_path / "b.npz", arrays()))


def test_page_needs_no_network(tmp_path):
    page = tmp_path / "page.html"
    run(save(tmp_path / "<b>.npz", arrays()), "--plot", page)
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)\s*=", html)
    assert html.count("Plotly.newPlot(") >= 2
    assert "&lt;b&gt;" in html
    assert "over snapshots" not in html


def test_undefined_values_are_null_and_valid_json(tmp_path):
    content = arrays()
    content["target"] = np.zeros(90, np.int64)
    (values,) = measures(
        save(tmp_path / "a.npz", {**content, "weight": content["weight"][:1], "bias": content["bias"][:1]})
    )
    assert values["violation_rate"] is None


def wrong(**changes):
    content = {**arrays(), **changes}
    return {name: array for name, array in content.items() if array is not None}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (wrong(features=None), "holds no features and no logits; it holds bias, target, weight"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, "holds no features and no logits; it holds x, y"),
        (wrong(target=None), "holds no target (or labels, y)"),
        (wrong(labels=np.zeros(90, int)), "target and labels"),
        (wrong(features=np.zeros((2, 90, 5))), "one file per snapshot"),
        (wrong(features=np.zeros((90, 5), int)), "float"),
        (wrong(target=np.zeros(90)), "integer"),
        (wrong(target=np.array(["cat"] * 90)), "got texts: save np.unique(target, return_inverse=True)[1]"),
        (wrong(target=np.arange(90)), "label 89"),
        (wrong(target=np.zeros(7, int)), "features and target must have as many rows"),
        (wrong(logits=np.zeros((7, 3))), "features and logits must have as many rows"),
        (wrong(weight=np.zeros((3, 4), np.float32)), "the same number of columns"),
        (wrong(bias=np.zeros(4, np.float32)), "bias"),
        (wrong(features=np.full((90, 5), np.nan, np.float32)), "NaN"),
        (wrong(features=np.zeros((0, 5), np.float32), target=np.zeros(0, int)), "empty"),
        (wrong(features=np.array([{"a": 1}], dtype=object)), "cannot be read"),
    ],
)
def test_a_wrong_file_is_one_line_and_exit_code_two(tmp_path, content, message):
    result = run(save(tmp_path / "bad.npz", content), code=2)
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("lastlayer measure: ")
    assert "bad.npz" in lines[0]
    assert message in lines[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.npz", None, "no such file"),
        ("a.npz", b"not a zip", "a.npz is damaged or not an npz file, as numpy.savez writes it"),
        ("a.safetensors", b"not one either", "a.safetensors is damaged or not a safetensors file"),
        ("a.pt", b"", "read from .npz and .safetensors files, not .pt"),
        ("a", b"", "read from .npz and .safetensors files"),
    ],
)
def test_unreadable_files(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    lines = run(tmp_path / name, code=2).stderr.strip().splitlines()
    assert len(lines) == 1
    assert message in lines[0]


@pytest.mark.parametrize(("name", "code"), [("bias", 2), ("extra", 0)])
def test_pickles_are_never_opened(tmp_path, name, code):
    marker = tmp_path / "opened"

    class Trap:
        def __reduce__(self):
            return (open, (str(marker), "w"))

    run(save(tmp_path / "trap.npz", {**arrays(), name: np.array([Trap()], dtype=object)}), code=code)
    assert not marker.exists()


def test_the_folder_of_the_page_must_exist(tmp_path):
    result = run(save(tmp_path / "a.npz", arrays()), "--plot", tmp_path / "no" / "page.html", code=2)
    assert "folder does not exist" in result.stderr
    result = run(save(tmp_path / "a.npz", arrays()), "--plot", tmp_path, code=2)
    assert "is a folder: name a file" in result.stderr
    assert not result.stdout


def test_a_page_that_cannot_be_written_is_named_and_leaves_what_was_there(tmp_path, failing_disk):
    page = tmp_path / "page.html"
    page.write_text("the one before")
    with failing_disk():
        made = run(save(tmp_path / "a.npz", arrays()), "--plot", page, code=2)
    assert str(page) in made.stderr.replace("\n", "")
    assert page.read_text() == "the one before"


def test_unused_arrays_are_told_apart_from_the_result(tmp_path):
    result = run(save(tmp_path / "a.npz", {**arrays(), "label": np.zeros(3)}), "--json")
    assert "not measured: label" in result.stderr
    json.loads(result.stdout)


def test_a_terminal_sees_what_is_being_measured(tmp_path):
    file = save(tmp_path / "long[red].npz", wrong())
    said = runner.invoke(app, ["measure", file], env={"FORCE_COLOR": "1", "COLUMNS": "500"})
    assert said.exit_code == 0
    assert f"measuring {file}" in said.stderr
    assert "measuring" not in runner.invoke(app, ["measure", file], env={"FORCE_COLOR": ""}).stderr


def test_one_class_alone_is_told_as_the_reason_for_nan(tmp_path):
    content = arrays()
    result = run(save(tmp_path / "a.npz", {**content, "target": np.full(90, 2)}))
    assert "every label is 2: what compares classes is nan" in result.stderr
    assert "nan" in result.stdout
    assert "every label" not in run(save(tmp_path / "b.npz", content)).stderr
