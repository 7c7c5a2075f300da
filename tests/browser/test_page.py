"""The report's page in a real browser: Debian's chromium, driven by Playwright."""

import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lastlayer.reports import load, summarise, write_page

# Test folders cannot import from each other.
factory = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "reports" / "factory.py")))
trial = factory.trial

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LAPTOP, PHONE = (1280, 800), (390, 844)
LOSSES = {"ce": 0.90, "sln": 0.95, "bce": 0.85}


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("the page is NOT tested in a browser: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("the page is NOT tested in a browser: install chromium (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    """Three losses, three seeds, one run failed, names that want to be code."""
    root = tmp_path_factory.mktemp("runs")
    trials = [trial(loss, seed) for loss in LOSSES for seed in range(3)]
    evil = "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"
    for one in trials[:-1]:
        accuracy = LOSSES[one["loss"]["name"]] + 0.001 * one["seed"]
        spread = {"nc1": 10.0 ** -list(LOSSES).index(one["loss"]["name"]) * (1 + 0.01 * one["seed"])}
        factory.done(root, one, classes=[evil, "<b>b</b>", "c"], test={"accuracy": accuracy, **spread}, samples=90)
    factory.failed(root, trials[-1], evil)
    factory.comparison(root, trials, title=f"Three losses {evil}")
    return write_page(summarise(load(root)), root / "report.html", tsne=True)


class Opened:
    """A page with what went wrong on it."""

    def __init__(self, browser, file, size, scheme="light"):
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
        self.page = self.context.new_page()
        self.errors, self.requests = [], []
        self.page.on(
            "console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.resolve().as_uri())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def scroll_through(self):
        """Charts are drawn when they come near the window."""
        for section in ("training", "seeds", "logits", "cosines", "features"):
            self.page.locator(f"#{section}").scroll_into_view_if_needed()
            for card in self.page.locator(f"#{section} .chart").all():
                card.scroll_into_view_if_needed()
                card.locator("svg.main-svg").first.wait_for()


@pytest.fixture
def laptop(browser, page_file):
    with Opened(browser, page_file, LAPTOP) as opened:
        yield opened


def column(page, name):
    table = page.locator("table.results:visible")
    index = table.locator("thead th").evaluate_all(
        f"heads => heads.findIndex(head => head.dataset.measure === '{name}')"
    )
    return table.locator("tbody tr").evaluate_all(
        f"rows => rows.map(row => Number(row.children[{index}].dataset.value))"
    )


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_drawn_without_errors_and_fits(browser, page_file, size, scheme):
    with Opened(browser, page_file, size, scheme) as opened:
        opened.scroll_through()
        page = opened.page
        assert page.locator("#curves .chart path.js-line").count() >= 4 * len(LOSSES)
        assert page.locator("#strip .scatterlayer path.point").count() >= 8
        assert page.locator("#logits .chart path.js-line").count() == 2 * len(LOSSES)
        assert page.locator("#cosines .heatmaplayer image").count() == len(LOSSES)
        assert page.locator("#features .scatterlayer path.point").count() == 90 * len(LOSSES)
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert opened.errors == []
        assert all(re.match(r"file:|data:|blob:", url) for url in opened.requests)
        assert page.evaluate("window.hacked") is None


def test_texts_are_shown_as_they_are(laptop):
    heading = laptop.page.locator("h1").inner_text()
    assert "</script><script>window.hacked=1</script>" in heading
    assert "1 run not in the results" in laptop.page.locator("#problems").inner_text()
    assert "<b>b</b>" in laptop.page.locator("#class-legend").inner_text()


def test_sorting_by_a_click_on_a_heading(laptop):
    page = laptop.page
    head = page.locator("table.results:visible th[data-measure=accuracy]")
    before = column(page, "accuracy")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, "accuracy") == sorted(before, reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, "accuracy") == sorted(before)
    lower = page.locator("table.results:visible th[data-measure=nc1]")
    lower.locator("button").click()
    assert lower.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") == "none"
    assert column(page, "nc1") == sorted(column(page, "nc1"))
    page.locator("table.results:visible thead th").first.locator("button").click()
    names = page.locator("table.results:visible tbody tr").evaluate_all("rows => rows.map(row => row.dataset.group)")
    assert names == sorted(LOSSES)


def test_train_and_test_and_all_measures(laptop):
    page = laptop.page
    test = column(page, "accuracy")
    page.locator("#splits button[data-split=train]").click()
    assert page.locator("table.results:visible").count() == 1
    assert column(page, "accuracy") != test
    assert page.locator("th[data-measure=nll]:visible").count() == 0
    page.locator("#columns button[data-columns=all]").click()
    assert page.locator("th[data-measure=nll]:visible").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= LAPTOP[0]


def points(page):
    return page.locator("#features .chart").first.evaluate("chart => Array.from(chart.data[0].x)")


def test_stepping_through_training(laptop):
    page = laptop.page
    laptop.scroll_through()
    last = points(page)
    slider = page.locator("#features .stepper input")
    assert page.locator("#features .stepper output").inner_text() == "epoch 10"
    slider.press("ArrowLeft")
    assert page.locator("#features .stepper output").inner_text() == "epoch 5"
    assert points(page) != last
    assert page.locator("#logits .stepper input").input_value() == slider.input_value()
    slider.press("Home")
    page.locator("#features .stepper button").click()
    page.locator("#features .stepper output", has_text="epoch 10").wait_for()
    assert points(page) == last
    assert laptop.errors == []


def test_the_pictures_of_every_seed(laptop):
    page = laptop.page
    laptop.scroll_through()
    first = points(page)
    seeds = page.locator("#features .stepper select")
    assert seeds.locator("option").all_inner_texts() == ["seed 0", "seed 1", "seed 2"]
    seeds.select_option("2")
    assert points(page) != first
    assert page.locator("#logits .stepper select").input_value() == "2"
    # The run of the last loss and seed failed: its card says which seed it shows instead.
    assert page.locator("#features .card small").all_inner_texts() == ["seed 2", "seed 2", "seed 0"]
    seeds.select_option("0")
    assert points(page) == first
    assert laptop.errors == []


def test_choosing_measures_losses_classes_and_views(laptop):
    page = laptop.page
    laptop.scroll_through()
    card = page.locator("#curves .card").first
    card.scroll_into_view_if_needed()
    curve = "chart => chart.data.filter(trace => trace.hoverinfo === 'text').map(trace => Array.from(trace.y))"
    before = card.locator(".chart").evaluate(curve)
    card.locator("select").select_option("nll")
    assert card.locator(".chart").evaluate(curve) != before
    page.locator("#curve-split button").last.click()
    assert len(card.locator(".chart").evaluate(curve)) == len(LOSSES)
    page.locator("#legend .chip").first.click()
    assert len(card.locator(".chart").evaluate(curve)) == len(LOSSES) - 1
    assert page.locator("table.results:visible tbody tr:visible").count() == len(LOSSES) - 1
    assert page.locator("#cosines .card:visible").count() == len(LOSSES) - 1
    page.locator("#legend .chip").first.click()
    page.locator("#features").scroll_into_view_if_needed()
    before = points(page)
    page.locator("#views .switch button").last.click()
    assert points(page) != before
    page.locator("#class-legend .chip").nth(2).click()
    colours = page.locator("#features .chart").first.evaluate("chart => new Set(chart.data[0].marker.color).size")
    assert colours == 2
    assert laptop.errors == []


def test_the_colour_of_a_loss_is_the_same_everywhere(laptop):
    page = laptop.page
    laptop.scroll_through()
    legend = page.locator("#legend .chip line").evaluate_all("lines => lines.map(line => line.getAttribute('stroke'))")
    assert len(set(legend)) == len(LOSSES)
    lines = "chart => chart.data.filter(trace => trace.hoverinfo === 'text').map(trace => trace.line.color)"
    assert page.locator("#curves .chart").first.evaluate(lines) == legend
    assert (
        page.locator("#logits .chart").evaluate_all("charts => charts.map(chart => chart.data[1].line.color)") == legend
    )


def test_a_page_of_nothing_finished(browser, tmp_path):
    factory.failed(tmp_path, trial())
    file = write_page(summarise(load(tmp_path)), tmp_path / "report.html")
    with Opened(browser, file, LAPTOP) as opened:
        assert "No run is finished" in opened.page.locator("body").inner_text()
        assert opened.errors == []


def test_eighteen_losses_and_two_hundred_classes_stay_usable(browser, tmp_path):
    for i in range(18):
        factory.done(
            tmp_path, trial(f"loss-{i:02d}"), classes=[f"class {k}" for k in range(200)], samples=200, epochs=(0, 10)
        )
    file = write_page(summarise(load(tmp_path)), tmp_path / "report.html")
    for size in (LAPTOP, PHONE):
        with Opened(browser, file, size) as opened:
            page = opened.page
            looks = page.locator("#legend .chip line").evaluate_all(
                "lines => lines.map(line => line.getAttribute('stroke') + line.getAttribute('stroke-dasharray'))"
            )
            assert len(set(looks)) == 18
            page.locator("#features .chart").last.scroll_into_view_if_needed()
            page.locator("#features .chart").last.locator("svg.main-svg").first.wait_for()
            assert page.locator("#class-legend select option").count() == 201
            assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
            assert opened.errors == []
