"""The report's page in a real browser: Debian's chromium, driven by Playwright."""

import re
import runpy
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lastlayer.measures import MEASURES
from lastlayer.reports import answers, load, summarise, write_page

# Test folders cannot import from each other.
factory = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "reports" / "factory.py")))
trial = factory.trial

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
LAPTOP, PHONE = (1280, 800), (400, 844)
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
    generator = torch.Generator().manual_seed(0)
    target = torch.arange(90) % 3
    for one in trials[:-1]:
        chance = torch.randn(90, 3, generator=generator)
        rows = factory.rows(chance + 4 * LOSSES[one["loss"]["name"]] * torch.nn.functional.one_hot(target, 3), target)
        accuracy = LOSSES[one["loss"]["name"]] + 0.001 * one["seed"]
        spread = {"nc1": 10.0 ** -list(LOSSES).index(one["loss"]["name"]) * (1 + 0.01 * one["seed"])}
        values = {"accuracy": accuracy, "balanced_accuracy": accuracy - 0.1, **spread}
        factory.done(
            root, one, classes=[evil, "<b>b</b>", "c"], test=values, samples=90, rows=rows, counts=(300, 60, 9)
        )
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
        for section in ("training", "logits", "cosines", "features"):
            self.page.locator(f"#{section}").scroll_into_view_if_needed()
            for card in self.page.locator(f"#{section} .chart").all():
                card.scroll_into_view_if_needed()
                card.locator("svg").first.wait_for()

    def fits(self):
        """Whether nothing but tables scrolls sideways."""
        return self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture
def laptop(browser, page_file):
    with Opened(browser, page_file, LAPTOP) as opened:
        yield opened


def column(page, name):
    table = page.locator("#decisions table:visible, #geometry table:visible").filter(
        has=page.locator(f"th[data-measure={name}]")
    )
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
        assert page.locator("#curves .chart path.line").count() == 4 * len(LOSSES)
        assert page.locator("#logits .chart path.shares").count() == 2 * len(LOSSES)
        assert page.locator("#cosines .chart image").count() == len(LOSSES)
        assert page.locator("#features .chart path.points").count() == 3 * len(LOSSES)
        assert opened.fits()
        assert opened.errors == []
        assert all(re.match(r"file:|data:|blob:", url) for url in opened.requests)
        assert page.evaluate("window.hacked") is None


def test_the_first_screen_says_what_to_choose_and_how_sure_that_is(laptop, page_file):
    page = laptop.page
    summary = summarise(load(page_file.parent))
    for answer in answers(summary):
        card = page.locator(f".answer[data-goal={answer.goal.name}]")
        assert f"Use {answer.loss}" in card.inner_text()
        assert answer.headline in card.inner_text()
        for label, (low, mean, high) in answer.intervals.items():
            row = card.locator(f".intervals li[data-group={label}]")
            assert f"{100 * mean:.1f} % ({100 * low:.1f} to {100 * high:.1f})" in row.locator(".value").inner_text()
            said = row.locator(".says").inner_text()
            is_near = label in answer.decision.not_worse
            assert said == ("recommended" if label == answer.loss else "not " * is_near + "shown to be worse")
            track, line = row.locator(".track").bounding_box(), row.locator(".reach").bounding_box()
            assert track["x"] - 1 <= line["x"]
            assert line["x"] + line["width"] <= track["x"] + track["width"] + 1
        ticks = [float(text) for text in card.locator(".ticks span").all_inner_texts()]
        assert min(ticks) >= 0
        assert max(ticks) <= 100
        assert f"{answer.goal.noun} on test, in %. higher is better." in card.locator("figcaption").inner_text().lower()
    first = page.locator(".answer").first
    assert first.locator(".choice").bounding_box()["y"] < 300
    assert first.locator(".intervals").bounding_box()["y"] < 400


def test_texts_are_shown_as_they_are(laptop):
    heading = laptop.page.locator("h1").inner_text()
    assert "</script><script>window.hacked=1</script>" in heading
    assert "1 run not in the results" in laptop.page.locator("#problems").inner_text()
    assert "<b>b</b>" in laptop.page.locator("#class-legend").inner_text()


def test_sorting_by_a_click_on_a_heading(laptop):
    page = laptop.page
    head = page.locator("#decisions table:visible th[data-measure=accuracy]")
    before = column(page, "accuracy")
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    assert column(page, "accuracy") == sorted(before, reverse=True)
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert column(page, "accuracy") == sorted(before)
    lower = page.locator("#decisions table:visible th[data-measure=ece]")
    lower.locator("button").click()
    assert lower.get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") == "none"
    lower = page.locator("#geometry table:visible th[data-measure=nc1]")
    lower.locator("button").click()
    assert lower.get_attribute("aria-sort") == "ascending"
    assert column(page, "nc1") == sorted(column(page, "nc1"))
    page.locator("#decisions table:visible thead th").first.locator("button").click()
    names = page.locator("#decisions table:visible tbody tr").evaluate_all("rows => rows.map(row => row.dataset.group)")
    assert names == sorted(LOSSES)


def test_train_and_test_and_all_measures(laptop):
    page = laptop.page
    table = page.locator("#decisions table:visible")
    test = column(page, "accuracy")
    page.locator("#decisions .splits button[data-split=train]").click()
    assert table.count() == 1
    assert column(page, "accuracy") != test
    assert page.locator("th[data-measure=log_partition_mean]:visible").count() == 0
    page.locator("#decisions .columns button[data-columns=all]").click()
    assert page.locator("th[data-measure=log_partition_mean]:visible").count() == 1
    assert laptop.fits()


def points(page):
    """Where the samples of the first card are drawn."""
    return (
        page.locator("#features .chart")
        .first.locator("path.points")
        .evaluate_all("all => all.map(one => one.getAttribute('d'))")
    )


def curves(card):
    """The lines of a card, drawn from left to right."""
    return card.locator("path.line").evaluate_all("all => all.map(one => one.getAttribute('d'))")


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
    before = curves(card)
    card.locator("select").select_option("nll")
    card.locator("text.title.y", has_text="log-loss on test").wait_for()
    assert curves(card) != before
    page.locator("#curve-split button").last.click()
    assert card.locator("text.title.y").text_content() == "log-loss on train"
    page.locator("#legend .chip").first.click()
    assert len(curves(card)) == len(LOSSES) - 1
    assert page.locator("#decisions table:visible tbody tr:visible").count() == len(LOSSES) - 1
    assert page.locator("#cosines .card:visible").count() == len(LOSSES) - 1
    page.locator("#legend .chip").first.click()
    for count in (1, len(LOSSES)):
        page.locator("#legend .chip").first.click(modifiers=["Shift"])
        card.scroll_into_view_if_needed()
        card.locator("path.line").nth(count - 1).wait_for()
        card.locator("path.line").nth(count).wait_for(state="detached")
    page.locator("#features").scroll_into_view_if_needed()
    before = points(page)
    page.locator("#views .switch button").last.click()
    assert points(page) != before
    page.locator("#class-legend .chip").nth(2).click()
    assert page.locator("#features .chart").first.locator("path.points:not(.faded)").count() == 1
    assert laptop.errors == []


def test_the_logits_of_one_class(laptop):
    page = laptop.page
    laptop.scroll_through()
    choose = page.locator("#logit-class select")
    choose.scroll_into_view_if_needed()
    assert choose.locator("option").all_inner_texts()[0] == "all classes"
    assert choose.locator("option").count() == 4
    assert page.locator("#logits .stepper input").is_hidden()
    choose.select_option("2")
    page.locator("#logits text.title.x", has_text="logit of c").first.wait_for()
    page.locator("#logits text.title.x", has_text="logit of c").last.wait_for()
    assert page.locator("#logits text.title.x").all_text_contents() == ["logit of c"] * len(LOSSES)
    assert page.locator("#logits text.title.y").first.text_content() == "share of test rows"
    choose.select_option("")
    page.locator("#logits text.title.x", has_text=re.compile("^logit$")).last.wait_for()
    assert page.locator("#logits text.title.x").first.text_content() == "logit"
    assert page.locator("#logits .stepper input").is_visible()


def test_each_class_and_each_confusion_is_read(laptop):
    text = laptop.page.locator("#classes").inner_text()
    assert "Every class, the worst first" in text
    assert "Most frequent confusions" in text
    rows = laptop.page.locator("#classes table").first.locator("tbody tr")
    assert rows.count() == 3
    heads = laptop.page.locator("#classes table").first.locator("thead th").all_inner_texts()
    assert heads[:3] == ["class", "test rows", "training samples"]
    by_name = {row.locator("th").inner_text(): row.locator("td").all_inner_texts() for row in rows.all()}
    assert by_name["c"][:2] == ["30", "9"]
    recalls = [float(re.match(r"([\d.]+) %", cell)[1]) for cell in by_name["c"][2:]]
    assert all(0 <= recall <= 100 for recall in recalls)
    assert len(recalls) == len(LOSSES)


def axes(page):
    """Titles and numbers of the axes of every chart that is drawn."""
    return page.locator(".chart svg[role=img]").evaluate_all(
        """charts => charts.map((chart) => ({
            titles: [...chart.querySelectorAll("text.title")].map((text) => text.textContent),
        }))"""
    )


def test_every_axis_has_a_title_and_no_impossible_value(laptop):
    page = laptop.page
    laptop.scroll_through()
    shown = 0
    card = page.locator("#curves .card").first
    for measure in card.locator("select option").evaluate_all("all => all.map(one => one.value)"):
        card.locator("select").select_option(measure)
        low, high = MEASURES[measure].limits
        first = card.locator("text.tick[text-anchor=end]").all_text_contents()
        assert all(low <= float(text) <= high for text in first), (measure, first)
        shown += len(first)
    assert shown > 20
    for chart in axes(page):
        assert len(chart["titles"]) == 2
        assert all(chart["titles"])


def test_keys_reach_every_control_and_read_the_values_of_a_chart(laptop):
    page = laptop.page
    laptop.scroll_through()
    page.evaluate("window.scrollTo(0, 0); document.activeElement.blur()")
    wanted = page.evaluate(
        """() => [...document.querySelectorAll("button, select, input, summary, .scroll, .chart")]
            .filter((one) => one.checkVisibility() && !one.disabled).length"""
    )
    page.evaluate("window.reached = new Set(); addEventListener('focusin', ({target}) => window.reached.add(target))")
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
    assert page.evaluate("window.reached.size") >= wanted
    area = page.locator("#curves .chart").first
    area.focus()
    page.keyboard.press("End")
    told = page.locator("#tip").inner_text()
    assert "epoch 10" in told
    assert all(loss in told for loss in LOSSES)
    page.keyboard.press("ArrowLeft")
    assert "epoch 5" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()


CONTRAST = """() => {
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
        .map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
        .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
    const paper = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const found = getComputedStyle(one).backgroundColor;
            if (found.startsWith("rgb(")) return parse(found);
        }
        return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const poor = [];
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
        const look = getComputedStyle(element);
        if (element.closest("script, style, option") || element.textContent === "■" || element.ariaHidden) continue;
        const ink = light(parse(element.closest("svg") ? look.fill : look.color)), back = light(paper(element));
        const ratio = (Math.max(ink, back) + 0.05) / (Math.min(ink, back) + 0.05);
        if (ratio < 4.5) poor.push([element.textContent.slice(0, 40), ratio.toFixed(2), look.color]);
    }
    return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_paper(browser, page_file, scheme):
    with Opened(browser, page_file, LAPTOP, scheme) as opened:
        opened.scroll_through()
        assert opened.page.evaluate(CONTRAST) == []


def test_losses_differ_in_more_than_their_colour(laptop):
    looks = laptop.page.locator("#legend .chip line").evaluate_all(
        "lines => lines.map(line => line.getAttribute('stroke-dasharray'))"
    )
    assert len(set(looks)) == len(LOSSES)


def test_the_look_of_a_loss_is_the_same_everywhere(laptop):
    page = laptop.page
    laptop.scroll_through()
    look = "lines => lines.map(line => [line.getAttribute('stroke'), line.getAttribute('stroke-dasharray')])"
    legend = page.locator("#legend .chip line").evaluate_all(look)
    assert page.locator("#curves .chart").first.locator("path.line").evaluate_all(look) == legend
    colours = page.locator("#logits path.shares.true").evaluate_all("all => all.map(one => one.getAttribute('stroke'))")
    assert colours == [colour for colour, _ in legend]


def test_old_runs_say_what_is_missing_and_show_the_rest(browser, tmp_path):
    for loss, accuracy in LOSSES.items():
        for seed in range(2):
            factory.done(tmp_path, trial(loss, seed), test={"accuracy": accuracy + 0.01 * seed})
    file = write_page(summarise(load(tmp_path)), tmp_path / "report.html")
    with Opened(browser, file, PHONE) as opened:
        opened.scroll_through()
        assert "older version" in opened.page.locator("#classes").inner_text()
        assert opened.page.locator(".answer .choice").inner_text().startswith("Use")
        assert opened.page.locator("#logit-class select").count() == 0
        assert opened.page.locator("#logits .chart path.shares").count() == 2 * len(LOSSES)
        assert opened.fits()
        assert opened.errors == []


def test_a_page_of_nothing_finished(browser, tmp_path):
    factory.failed(tmp_path, trial())
    file = write_page(summarise(load(tmp_path)), tmp_path / "report.html")
    with Opened(browser, file, LAPTOP) as opened:
        assert "All runs failed" in opened.page.locator("body").inner_text()
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
            page.locator("#features .chart").last.locator("svg").first.wait_for()
            assert page.locator("#class-legend select option").count() == 201
            assert opened.fits()
            assert opened.errors == []
