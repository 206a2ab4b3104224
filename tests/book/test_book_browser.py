"""The book and the microscope in a real browser: scripts, keyboard, a phone."""

import pytest
from made import unpacked

from common.book import costs, explorer
from common.catalog import catalog
from common.report import traces

pytestmark = pytest.mark.xdist_group("book")

PAGES = [
    "index.html",
    "lessons/02_shared_tiling/index.html",
    "lessons/04_register_blocking/gemm_register_blocked.code.html",
    "lessons/GLOSSARY.html",
    "results/nvidia-h200.html",
    "explore/index.html",
]
EXPLORED = ["conv2d_constant_weights", "hgemm_specialised"]
WIDTH = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def told(page, place=0):
    return page.locator(".told").nth(place).text_content()


@pytest.fixture
def made(tmp_path):
    """The page of one step or two, as ``trace --html`` writes it."""

    def made(*names):
        steps = [costs.Shown(step, traces.load(step), step.path) for step in map(catalog.find, names)]
        path = tmp_path / "page.html"
        path.write_text(explorer.page(steps), encoding="utf-8")
        return path

    return made


# --- the book ---


@pytest.mark.parametrize("name", PAGES)
def test_pages_load_and_on_a_phone_scroll_in_one_direction(book, visit, name):
    page = visit(book[0] / name, width=390, height=800)
    assert page.locator("h1").first.text_content()
    assert page.evaluate(WIDTH) == 0


def test_an_answer_opens_by_keyboard(book, visit):
    page = visit(book[0] / "lessons/02_shared_tiling/index.html")
    fold = page.locator("article details").first
    assert not fold.evaluate("node => node.open")
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("node => node.open")


def test_a_reader_gets_from_a_lesson_to_the_pair(book, visit):
    page = visit(book[0] / "lessons/04_register_blocking/gemm_register_blocked.code.html")
    page.locator("article").get_by_text("What each line costs", exact=True).click()
    with page.expect_navigation():
        page.get_by_text("beside gemm_rectangular_tiles").click()
    assert page.locator("h1").text_content() == "gemm_rectangular_tiles and gemm_register_blocked"
    assert page.locator(".source").count() == 2


# --- the microscope ---


@pytest.mark.parametrize("name", EXPLORED)
def test_every_line_shows_its_cost(made, visit, name):
    page = visit(made(name))
    kernel = traces.load(catalog.find(name)).chief
    lines = sorted({access.line for access in kernel.accesses})
    for line in lines:
        page.locator(f"button.row[data-line='{line}']").click()
        here = [access for access in kernel.accesses if access.line == line]
        assert page.locator("button.pick").count() == len(here)
        for place, access in enumerate(here):
            page.locator("button.pick").nth(place).click()
            assert f"{access.moved:,} " in page.locator(".sums").text_content()
            assert told(page)
            assert page.locator(".picture svg").count() == bool(access.seen)


def test_lanes_and_banks_are_those_of_the_trace(made, visit):
    """Each bank of the picture holds as many words as the request wants of it."""
    page = visit(made("hgemm_shared"))
    kernel = traces.load(catalog.find("hgemm_shared")).chief
    access = next(a for a in kernel.accesses if a.space == "shared" and a.op == "read")
    page.locator(f"button.row[data-line='{access.line}']").click()
    one = access.seen[0]
    places = unpacked(one.runs)[: one.together]
    banks = [set() for _ in range(32)]
    for place in places:
        for word in range(place // 4, place // 4 + access.bits // 32):
            banks[word % 32].add(word)
    drawn = page.locator("rect[data-bank]").evaluate_all("nodes => nodes.map((node) => Number(node.dataset.words))")
    assert drawn == [len(words) for words in banks]
    assert max(drawn) * (32 // one.together) == one.wavefronts
    assert "A red bank" in told(page)


def test_the_keyboard_alone_is_enough(made, visit):
    page = visit(made("gemm_shared_tile"))
    rows = page.locator("button.row")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('button.row[aria-pressed=true]')")
    page.keyboard.press("Home")
    assert rows.first.get_attribute("aria-pressed") == "true"
    first = page.locator(".panel h2").text_content()
    page.keyboard.press("ArrowDown")
    assert rows.nth(1).get_attribute("aria-pressed") == "true"
    assert page.locator(".panel h2").text_content() != first
    page.keyboard.press("End")
    page.keyboard.press("ArrowDown")
    assert rows.last.get_attribute("aria-pressed") == "true"
    assert page.locator("button.row[tabindex='0']").count() == 1
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.type === 'range'"):
            break
    before = page.locator("output").text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator("output").text_content() != before


@pytest.mark.parametrize("names", [["hgemm_specialised"], ["gemm_shared_tile", "gemm_register_blocked"]], ids=len)
def test_the_microscope_on_a_phone(made, visit, names):
    page = visit(made(*names), width=390, height=800)
    assert page.evaluate(WIDTH) == 0
    assert page.locator("button.row").first.bounding_box()["height"] >= 18
    assert page.locator(".row .text").nth(1).evaluate("node => node.getBoundingClientRect().x") < 60
    if len(names) > 1:
        assert page.locator(".bars").bounding_box()["y"] < page.locator(".said").first.bounding_box()["y"]
