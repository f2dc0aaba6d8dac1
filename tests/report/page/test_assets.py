"""The scripts and styles of the page in a real browser, offline: plots, keyboard, dark mode, a phone."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.report import read_run, write_page
from headway.report.exchange_styles import style_sheet
from tests.report.sample_runs import write_adaptive

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright, of headway[test]")
pytest.importorskip("plotly", reason="pages need headway[plot]")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium on the PATH")

NASTY = "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
Open = Callable[..., "playwright.Page"]


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, runs) -> dict[str, Path]:
    """A page with several runs, for a desktop; and one with a single run of a nasty name, for a phone."""
    folder = tmp_path_factory.mktemp("pages")
    nasty = read_run(write_adaptive(folder / "nasty", method=NASTY, num_steps=40))
    for name, shown in {"several": runs, "nasty": [nasty]}.items():
        write_page(shown, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in ("several", "nasty")}


class Tabs:
    """Offline tabs, one for each page, since loading a page takes longer than all that is done with it."""

    def __init__(self, browser: playwright.Browser, pages: dict[str, Path]) -> None:
        self.problems: list[str] = []
        self._contexts = {
            "several": browser.new_context(offline=True),
            "nasty": browser.new_context(offline=True, has_touch=True, is_mobile=True),
        }
        self._pages = pages
        self._open: dict[str, playwright.Page] = {}

    def visit(self, name: str, *, width: int = 1280, scheme: str = "light") -> playwright.Page:
        if name not in self._open:
            self._open[name] = self._load(name)
        page = self._open[name]
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 800})
        if page.locator("#run").count():
            page.locator("#run").select_option("0")
        return page

    def _load(self, name: str) -> playwright.Page:
        page = self._contexts[name].new_page()
        page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", self._note_request)
        page.goto(self._pages[name].as_uri())
        return page

    def _note_request(self, request: playwright.Request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.problems.append(f"asked for {request.url}")


@pytest.fixture(scope="module")
def tabs(browser, pages) -> Tabs:
    return Tabs(browser, pages)


@pytest.fixture
def visit(tabs) -> Iterator[Open]:
    """Show a page; at the end, there must be no errors and no requests to the network."""
    tabs.problems.clear()
    yield tabs.visit
    assert tabs.problems == []


def names_of(page, figure: str) -> list[str]:
    """Return the names of a figure's traces."""
    return page.evaluate("figure => document.querySelector(figure).data.map(trace => trace.name)", figure)


def wait_until(page, condition: str) -> None:
    """Wait for a condition; the page's security policy forbids playwright's own wait."""
    for _ in range(200):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"never came true: {condition}")


def chosen_of(page) -> list[float]:
    """Return the place of the chosen plan."""
    return page.evaluate(
        "() => { const it = document.querySelector('#front-plot').data.find(t => t.name === 'chosen plan');"
        " return [it.x[0], it.y[0]]; }"
    )


def test_several_runs_are_drawn_and_compared(visit):
    page = visit("several")
    drawn = page.locator(".plot")
    assert drawn.count() == 8
    for place in range(drawn.count()):
        assert drawn.nth(place).locator("svg.main-svg").first.is_visible()
        assert drawn.nth(place).get_attribute("aria-label")
    assert page.locator("[data-figure=loss] .scatterlayer .trace").count() >= 6
    assert page.locator("[data-figure=totals] .barlayer .trace").count() >= 3
    assert {"adaptive", "ddp", "gossip"} <= set(names_of(page, "[data-figure=traffic]"))
    assert page.locator(".card").all_inner_texts()[0].startswith("adaptive\n\n10.8×")
    assert page.locator("tbody tr").first.get_by_role("rowheader").inner_text() == "adaptive"


def test_the_slider_moves_by_keyboard_and_changes_plot_and_words(visit):
    page = visit("several")
    slider, words = page.get_by_role("slider", name="Decision"), page.locator("#decision-words")
    slider.focus()
    seen = [(words.inner_text(), chosen_of(page))]
    assert seen[0][0].startswith("Decision 1 of 8: step 4,")
    assert "training starts: dense native -> quantized" in seen[0][0]
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        seen.append((words.inner_text(), chosen_of(page)))
    assert len({text for text, _ in seen}) == 4
    assert seen[3][1] != seen[0][1]
    assert "latency rose" in seen[3][0]
    assert slider.get_attribute("aria-valuetext").startswith("Decision 4 of 8")
    page.keyboard.press("End")
    assert words.inner_text().startswith("Decision 8 of 8")
    assert page.get_by_role("button", name="Later decision").is_disabled()
    page.get_by_role("button", name="Earlier decision").press("Enter")
    assert words.inner_text().startswith("Decision 7 of 8")


@pytest.mark.parametrize("width", [1280, 375])
def test_pointing_at_a_decision_shows_its_words(visit, width):
    page = visit("several", width=width)
    plot = page.locator("[data-figure=timeline]")
    plot.scroll_into_view_if_needed()
    number = names_of(page, "[data-figure=timeline]").index("plan changed")
    wait_until(page, f"document.querySelector('[data-figure=timeline] svg').clientWidth < {width}")
    plot.evaluate(f"plot => Plotly.Fx.hover(plot, [{{curveNumber: {number}, pointNumber: 2}}], 'xy3')")
    label = plot.locator(".hoverlayer")
    assert "latency rose" in label.text_content()
    box = label.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    plot.evaluate("plot => Plotly.Fx.unhover(plot)")


def test_a_tap_shows_the_plan_and_does_not_zoom(visit):
    page = visit("nasty", width=375)
    plot = page.locator("[data-figure=timeline]")
    plot.evaluate("plot => plot.scrollIntoView({behavior: 'instant'})")
    before = plot.evaluate("plot => plot.layout.xaxis.range")
    box = plot.locator("[data-subplot=xy3].nsewdrag").bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    wait_until(page, "document.querySelector('[data-figure=timeline] .hoverlayer').textContent.includes('Plan: ')")
    assert plot.evaluate("plot => plot.layout.xaxis.range") == before


def test_another_run_can_be_picked(visit):
    page = visit("several")
    picker = page.get_by_label("One run at a time")
    assert picker.input_value() == "0"
    assert "estimated link" in names_of(page, "[data-figure=timeline]")
    picker.select_option(label="ddp")
    assert "estimated link" not in names_of(page, "[data-figure=timeline]")
    assert page.locator("#fronts .none").is_visible()
    assert not page.locator("#decision").is_visible()
    assert not page.get_by_role("region", name="Decisions of adaptive").is_visible()
    picker.select_option(label="gossip")
    assert page.get_by_role("region", name="Decisions of gossip").is_visible()
    assert page.locator("#ranks .none").is_visible()
    picker.select_option(label="adaptive")
    assert page.locator("#front-plot svg.main-svg").first.is_visible()
    assert page.get_by_role("region", name="Decisions of adaptive").get_by_role("row").count() == 9


def test_learning_is_shown_against_what_the_reader_chooses(visit):
    page = visit("several")
    title = "document.querySelector('[data-figure=loss]').layout.xaxis.title.text"
    assert page.evaluate(title) == "training time, s"
    page.get_by_role("radio", name="training time").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("radio", name="bytes sent").is_checked()
    assert page.evaluate(title) == "bytes sent by one rank, MB"


def test_the_legend_hides_and_shows_a_run_by_keyboard(visit):
    page = visit("several")
    button = page.locator("#traffic .legend").first.get_by_role("button", name="ddp")
    visible = "document.querySelector('[data-figure=traffic]').data.find(t => t.name === 'ddp').visible"
    button.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate(visible) is False
    button.press("Enter")
    assert page.evaluate(visible) is True


def test_dark_and_light_follow_the_reader_at_once(visit):
    page = visit("several", scheme="light")
    background = "getComputedStyle(document.body).backgroundColor"
    line = "document.querySelector('[data-figure=traffic]').data[0].line.color"
    light = page.evaluate(background), page.evaluate(line)
    page.emulate_media(color_scheme="dark")
    wait_until(page, f"{line} !== '{light[1]}'")
    dark = page.evaluate(background), page.evaluate(line)
    assert light == ("rgb(244, 245, 247)", "#0072b2")
    assert dark == ("rgb(14, 19, 25)", "#4fb0ee")


def test_exchanges_have_their_colours(visit):
    page = visit("several")
    colour = "document.querySelector('[data-figure=totals]').data.find(t => t.name === 'STAR top-k').marker.color"
    assert page.evaluate(colour) == re.search(r"--exchange-star_topk: (#\w{6})", style_sheet())[1]


@pytest.mark.parametrize("name", ["several", "nasty"])
def test_a_phone_needs_no_scrolling_sideways(visit, name):
    page = visit(name, width=375)
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    widths = "[...document.querySelectorAll('svg.main-svg')].map(svg => svg.clientWidth)"
    wait_until(page, f"Math.max(...{widths}) <= 375")  # plots follow a moment later
    assert max(page.evaluate(widths)) > 200
    assert page.evaluate("document.documentElement.scrollWidth") <= 375


def test_on_a_phone_the_table_of_runs_becomes_a_list(visit):
    page = visit("several", width=375)
    table = page.get_by_role("region", name="All runs")
    assert table.evaluate("table => table.scrollWidth <= table.clientWidth")
    assert table.locator("td").first.evaluate("cell => getComputedStyle(cell, '::before').content") == '"Speed-up"'


def test_the_first_tab_skips_the_head_of_the_page(visit):
    page = visit("nasty")
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")  # as after loading
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the report"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"


def test_a_run_named_like_a_script_is_shown_as_text(visit):
    page = visit("nasty")
    page.get_by_role("slider", name="Decision").press("ArrowRight")
    assert page.title().endswith("Headway report")
    assert page.locator("h1").inner_text() == NASTY
    assert page.locator("img").count() == 0
    legend = page.locator("#traffic .legend button").first.inner_text()
    assert legend.startswith("<script>document.title=")
