"""The report in headless Chromium: `pytest -m browser`; what it lacks is said where it is skipped.

TEST_SHOTS=DIRECTORY keeps screenshots of the page.
"""

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from experiments import report, runs, sweep
from tests.experiments import fake_sweep

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
BREAKING = "the loss is nan at step 40 <script>alert(2)</script>"


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is missing: pip install '.[browser]'"
    )
    if not CHROMIUM:
        pytest.skip("chromium is missing: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(the page's address, its points) of a sweep of 3 x 2 conditions with 3 seeds."""
    folder = tmp_path_factory.mktemp("runs") / "fake"
    overrides = sweep.product(
        {"model.attention.score": ["additive", "projected_dot", "none"]},
        {"model.hidden_size": [16, 256]},
        sweep.seeds(3),
    )
    points = fake_sweep.make(folder, np.random.default_rng(), overrides, heads=2)
    fake_sweep.undo(points[4], "diverged", BREAKING)
    fake_sweep.undo(points[11], "missing")
    report.write(folder, points, ["launch.py", "<script>alert(3)</script>"], print)
    return (folder / "report.html").as_uri(), points


class Watched:
    """A page, and all that it complained of or asked for."""

    def __init__(self, browser, address, width=1280, scheme="light"):
        size = {"width": width, "height": 900}
        self.page = browser.new_page(viewport=size, color_scheme=scheme)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("#attention-plot .heatmaplayer image", state="attached")

    def shot(self, name):
        if folder := os.environ.get("TEST_SHOTS"):
            self.page.screenshot(path=str(Path(folder) / f"{name}.png"), full_page=True)


@pytest.fixture
def watch(browser, made):
    """Opens the report; no page may complain, or ask for anything but itself."""
    pages = []

    def open_page(**options):
        pages.append(Watched(browser, made[0], **options))
        return pages[-1]

    yield open_page
    for one in pages:
        one.page.close()
        assert one.complaints == [] and one.requests == [made[0]]


def column(page, table, name):
    """The shown cells of a column."""
    heads = page.locator(f"{table} thead th").all_inner_texts()
    k = next(k for k, text in enumerate(heads) if text.strip() == name)
    return page.locator(f"{table} tbody tr:visible td:nth-child({k + 1})").all_inner_texts()


def head(page, table, name):
    button = page.get_by_role("button", name=name, exact=True)
    return page.locator(f"{table} thead th").filter(has=button)


def test_tables_sort_by_click_and_by_keyboard(watch):
    page = watch().page
    before = column(page, "#runs-table", "test/exact_match")
    assert len(before) == 18 and before.count("–") == 2
    th = head(page, "#runs-table", "test/exact_match")
    assert th.get_attribute("aria-sort") == "none"
    th.get_by_role("button").click()
    assert th.get_attribute("aria-sort") == "ascending"
    numbers = sorted((text for text in before if text != "–"), key=float)
    assert column(page, "#runs-table", "test/exact_match") == [*numbers, "–", "–"]
    th.get_by_role("button").press("Enter")
    assert th.get_attribute("aria-sort") == "descending"
    assert column(page, "#runs-table", "test/exact_match") == [*numbers[::-1], "–", "–"]
    other = head(page, "#runs-table", "hidden_size")
    other.get_by_role("button").press("Space")
    assert other.get_attribute("aria-sort") == "ascending"
    assert th.get_attribute("aria-sort") == "none"
    assert column(page, "#runs-table", "hidden_size") == ["16"] * 9 + ["256"] * 9


def test_tables_filter(watch):
    page = watch().page
    texts = page.locator("#runs-table tbody tr").all_inner_texts()
    found = sum("projected" in text and "256" in text for text in texts)  # in any column
    assert 3 <= found < 18
    box = page.locator("#runs-table").get_by_label("Filter")
    box.fill("PROJECTED 256")
    assert column(page, "#runs-table", "score") == ["projected_dot"] * found
    assert column(page, "#runs-table", "hidden_size").count("256") == 3
    assert page.locator("#runs-table [role=status]").inner_text() == f"{found} of 18 rows"
    box.fill("")
    assert len(column(page, "#runs-table", "score")) == 18


def test_metric_of_the_conditions_is_chosen(watch, made):
    page = watch().page
    assert (
        column(page, "#results-table", "n")
        == ["3 of 3", "2 of 3", "3 of 3", "2 of 3"] + ["3 of 3"] * 2
    )
    page.get_by_label("Metric").first.select_option("test/loss")
    values = [runs.result(point.path)["test/loss"] for point in made[1][:3]]
    (first, *_) = column(page, "#results-table", "mean")
    assert float(first) == pytest.approx(np.mean(values), abs=1e-3)
    assert column(page, "#results-table", "difference")[0] == "baseline"


def test_heatmap_says_values_and_steps_through_runs_sentences_and_heads(watch, made):
    seen = watch()
    page = seen.page
    with np.load(made[1][0].path / "figures" / "attention_0.npz") as saved:
        weights = saved["weights"]
    plot = page.locator("#attention-plot .plot-container")
    plot.scroll_into_view_if_needed()
    box = page.locator("#attention-plot .heatmaplayer image").bounding_box()
    rows, columns = weights.shape[1:]

    def hovered(i, j):
        page.mouse.move(box["x"] - 30, box["y"] - 30)
        page.wait_for_timeout(100)
        x, y = (j + 0.5) * box["width"] / columns, (i + 0.5) * box["height"] / rows
        page.mouse.move(box["x"] + x, box["y"] + y)
        page.wait_for_selector("#attention-plot .hovertext")
        return page.locator("#attention-plot .hovertext").text_content()

    assert hovered(0, 1) == (
        f"output: <b>dog</b>source: <b>dog</b>weight: {weights[0, 0, 1]:.4f}"
    )  # row 0 is at the top
    assert hovered(2, 0).endswith(f"weight: {weights[0, 2, 0]:.4f}")
    page.get_by_role("button", name="next head").click()
    assert hovered(2, 0).endswith(f"weight: {weights[1, 2, 0]:.4f}")
    page.get_by_role("button", name="next example").press("Enter")
    status = page.locator("#attention-plot [role=status]")
    assert status.inner_text().startswith("<script>alert(1)</script> & </script> <eos> →")
    page.get_by_role("button", name="previous example").click()
    page.get_by_role("button", name="previous run").click()  # the last: "none" draws none
    runs = page.locator("#attention-controls").get_by_label("run", exact=True)
    chosen = runs.evaluate("select => select.selectedOptions[0].textContent")
    assert chosen == "hidden_size=256, score=projected_dot, seed=1"
    assert page.locator("#attention-controls").get_by_label("layer", exact=True).is_hidden()


def test_plots_answer_their_controls(watch):
    page = watch().page
    count = "document.querySelectorAll('#curves-plot .scatterlayer .js-line').length"
    lines = page.evaluate(count)
    page.locator("#curves").get_by_role("button", name="none", exact=True).click()
    assert page.evaluate(count) == 0 < lines
    page.locator("#curves").get_by_label("only those with").fill("PROJ 256")
    on = page.locator("#curves .keys label:has(input:checked)")
    assert on.all_inner_texts() == ["hidden_size=256, score=projected_dot"]
    page.locator("#curves").get_by_role("button", name="none", exact=True).click()
    page.locator("#curves .keys input").nth(1).check()
    assert page.evaluate(count) > 0
    page.locator("#curves-metric").select_option("validation/exact_match")
    page.locator("#curves summary").click()
    page.wait_for_selector("#curves-plot table")
    rows = column(page, "#curves-plot", "condition")
    assert len(rows) == 4 and set(rows) == {"hidden_size=256, score=additive"}
    for axis in ("model.attention.score", "condition", "model.hidden_size"):
        page.locator("#axis-axis").select_option(axis)
        label = page.locator("#axis-plot .canvas").get_attribute("aria-label")
        assert label.startswith("test/exact_match against ") and axis in label
    dots = page.locator("#axis-plot .scatterlayer .point").count()
    assert dots == 6 + 16  # means, and the runs that are done


def test_text_of_the_runs_is_text(watch):
    page = watch().page
    assert BREAKING in page.locator("#unfinished").inner_text()
    assert "<script>alert(3)</script>" in page.locator("#what pre").inner_text()
    assert page.locator("script").count() == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone(watch, scheme):
    seen = watch(width=375, scheme=scheme)
    page = seen.page
    for details in page.locator("details").all():
        details.locator("summary").first.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    assert page.evaluate("() => { scrollTo(100, 0); return scrollX; }") == 0
    seen.shot(f"phone_{scheme}")


def test_dark_where_the_reader_has_it_dark(watch):
    def brightness(page, what):
        colours = page.evaluate(f"getComputedStyle(document.body).{what}")
        return sum(int(x) for x in re.findall(r"\d+", colours)[:3]) / 3

    light, dark = watch(), watch(scheme="dark")
    light.shot("light")
    dark.shot("dark")
    for seen, background, ink in ((light, 255, 40), (dark, 30, 220)):
        assert brightness(seen.page, "backgroundColor") == pytest.approx(background, abs=20)
        assert brightness(seen.page, "color") == pytest.approx(ink, abs=30)
    tick = "getComputedStyle(document.querySelector('#curves-plot .xtick text')).fill"
    before = light.page.evaluate(tick)
    assert before != dark.page.evaluate(tick)
    light.page.emulate_media(color_scheme="dark")  # changed while it is open
    light.page.wait_for_timeout(500)
    assert light.page.evaluate(tick) == dark.page.evaluate(tick)


def test_everything_has_a_name_and_can_be_reached(watch):
    page = watch().page
    unnamed = page.evaluate(
        """[...document.querySelectorAll('select, input')]
            .filter(x => !x.labels.length || !x.labels[0].textContent.trim()).length"""
    )
    assert unnamed == 0
    for plot in ("axis", "curves", "lengths", "attention"):
        assert len(page.locator(f"#{plot}-plot .canvas").get_attribute("aria-label")) > 40
        assert page.locator(f"#{plot}-plot details table").count() == 0
        page.locator(f"#{plot}-plot summary").press("Enter")
        page.wait_for_selector(f"#{plot}-plot details table")
    reached = set()
    page.locator("body").press("Tab")
    for _ in range(150):
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
        page.keyboard.press("Tab")
    assert reached >= {"results-metric", "axis-axis", "axis-log", "curves-metric", "SUMMARY", "A"}
