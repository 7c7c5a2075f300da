import html.parser
import itertools
import json
import re

import pytest
import torch

from lastlayer.measures import MEASURES
from lastlayer.reports import load, summarise, write_page
from lastlayer.reports.page import for_script, render_page

from . import factory
from .factory import trial

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=alert(1)>&amp;'\""


class Reader(html.parser.HTMLParser):
    """Tags, attributes and the text of scripts."""

    def __init__(self):
        super().__init__()
        self.tags, self.scripts, self._inside = [], [], None

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append([dict(attrs), ""])
        self._inside = tag

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside == "script":
            self.scripts[-1][1] += data


def read(page):
    reader = Reader()
    reader.feed(page)
    return reader


def data_of(page):
    (text,) = [text for attributes, text in read(page).scripts if attributes.get("type") == "application/json"]
    return json.loads(text)


@pytest.fixture
def small(tmp_path):
    for loss in ("ce", "sln"):
        for seed in range(3):
            factory.done(tmp_path, trial(loss, seed))
    return tmp_path


def test_needs_nothing_but_itself(small):
    page = render_page(summarise(load(small)))
    reader = read(page)
    for tag, attributes in reader.tags:
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert not {"src", "href", "srcset", "action"} & attributes.keys(), (tag, attributes)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", page.replace("// ", ""))
    policy = next(a["content"] for tag, a in reader.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert len(reader.scripts) == 2


def test_names_and_paths_are_text_and_never_code(tmp_path):
    root = tmp_path / "a<b>&'c"
    trials = [trial("ce", seed, options={"note": EVIL}) for seed in range(2)] + [trial(EVIL, seed) for seed in range(2)]
    for one in trials[:3]:
        factory.done(root, one, classes=[EVIL, "b", "c"])
    factory.failed(root, trials[3], error=EVIL)
    factory.comparison(root, trials, title=EVIL, command=f"lastlayer compare {EVIL}")
    page = render_page(summarise(load(root)))
    reader = read(page)
    assert len(reader.scripts) == 2
    assert not any(tag == "img" for tag, _ in reader.tags)
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    data = data_of(page)
    assert data["classes"][0][0] == EVIL
    assert EVIL in data["groups"]
    assert "<script>window.hacked" not in page


def test_json_in_a_script_element():
    text = for_script({"a": EVIL, "b": "<!--"})
    assert "<" not in text
    assert json.loads(text) == {"a": EVIL, "b": "<!--"}
    with pytest.raises(ValueError, match="JSON"):
        for_script({"a": float("nan")})


def test_undefined_values_are_no_broken_json(tmp_path):
    factory.done(tmp_path, trial("ce"), test={"nc1": float("nan"), "nc2": float("inf")})
    factory.done(tmp_path, trial("sln"))
    data = data_of(render_page(summarise(load(tmp_path))))
    assert data["curves"][0]["test"]["nc2"][0][-1] is None


def test_runs_that_are_not_done_are_on_the_page(tmp_path):
    trials = [trial("ce", seed) for seed in range(3)]
    factory.done(tmp_path, trials[0])
    factory.failed(tmp_path, trials[1], "NaN at step 7")
    factory.comparison(tmp_path, trials)
    page = render_page(summarise(load(tmp_path)))
    assert "2 runs not in the results" in page
    assert "NaN at step 7" in page
    assert "1 of 3 runs" in page
    assert factory.identity(trials[2]) in page


def test_a_page_of_nothing_finished(tmp_path):
    factory.failed(tmp_path, trial())
    page = render_page(summarise(load(tmp_path)))
    assert "All runs failed" in page
    assert data_of(page)["groups"] == []


def test_damaged_snapshots_cost_the_pictures_and_not_the_page(small):
    path = small / factory.identity(trial("ce", 0)) / "snapshots.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    page = render_page(summarise(load(small)))
    assert [[one["seed"] for one in group] for group in data_of(page)["snapshots"]] == [[1, 2], [0, 1, 2]]
    assert "No pictures of ce, seed 0" in page
    assert "snapshots.safetensors is damaged" in page


@pytest.mark.parametrize("classes", [50, 1000])
def test_many_losses_and_classes_stay_within_bounds(tmp_path, classes):
    names = [f"loss-{i}" for i in range(18)]
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(2 * classes) % classes
    for name, seed in itertools.product(names, range(2)):
        rows = factory.rows(torch.randn(len(target), classes, generator=generator), target, shown=12)
        values = dict.fromkeys(MEASURES, 0.5 + seed / 7)
        factory.done(
            tmp_path, trial(name, seed), classes=[f"class number {k}" for k in range(classes)],
            epochs=tuple(range(0, 101, 4)), samples=500, train=values, test=values, rows=rows,
        )  # fmt: skip
    page = render_page(summarise(load(tmp_path)))
    assert len(page.encode()) < 2_000_000
    data = data_of(page)
    assert [len(group) for group in data["snapshots"]] == [2] * 18
    for one, _ in data["snapshots"]:
        assert one["frames"][0] == 0
        assert one["frames"][-1] == 100
        assert len(one["frames"]) >= 5
        assert len(one["class_logits"]["range"]) == 12
        assert ("cosines" in one) == (classes <= 50)


def test_a_real_run(tmp_path):
    from lastlayer.training import LossChoice, ModelChoice, Schedule, Trial, finish_fit, fit

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for loss in ("ce", "sln"):
            one = Trial(
                loss=LossChoice(loss),
                model=ModelChoice("mlp"),
                schedule=Schedule(epochs=1),
                batch_size=256,
                evaluations=1,
            ).resolved()
            finish_fit(fit(one, tmp_path / one.identity))
    finally:
        torch.set_num_threads(threads)
    summary = summarise(load(tmp_path))
    path = write_page(summary, tmp_path / "new" / "report.html")
    data = data_of(path.read_text(encoding="utf-8"))
    assert data["groups"] == ["ce", "sln"]
    assert data["classes"] == [[str(k) for k in range(10)]]
    assert all({"points", "logits", "cosines"} <= one.keys() for (one,) in data["snapshots"])
    assert {"accuracy", "nc1", "ece"} <= data["curves"][0]["test"].keys()
