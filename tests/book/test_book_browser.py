"""The book and the microscope in a real browser: scripts, keyboard, a phone."""

import mutants
import pytest

from common.book import explorer
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

    def made(*names, file=None):
        steps = [explorer.shown(catalog.find(name), traces.load(catalog.find(name)), file) for name in names]
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
        page.get_by_text("beside gemm_shared_tile").click()
    assert page.locator("h1").text_content() == "gemm_shared_tile and gemm_register_blocked"
    assert "it waits for shared memory" in page.locator(".said").first.text_content()
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


def test_a_pair_shows_both_on_one_scale(made, visit):
    page = visit(made("gemm_shared_tile", "gemm_register_blocked"))
    bars = page.locator(".heat.shared i").evaluate_all(
        "nodes => nodes.map((node) => node.getBoundingClientRect().width)"
    )
    cells = page.locator(".heat.shared").evaluate_all("nodes => nodes.map((node) => parseFloat(node.textContent))")
    rate = max(bars) / max(cells)
    assert len(bars) > 5
    for bar, cell in zip(bars, cells, strict=True):
        assert bar == pytest.approx(max(cell * rate, max(bars) * 0.015), abs=1.5)


def test_the_slider_moves_the_lanes(made, visit):
    page = visit(made("gemm_shared_tile"))
    step = catalog.find("gemm_shared_tile")
    line = step.path.read_text().splitlines().index("            acc += a_tile[ty, k] * b_tile[k, tx]") + 1
    page.locator(f"button.row[data-line='{line}']").click()
    slider = page.locator("input[type=range]")
    slider.focus()
    seen = [page.locator(".picture").inner_html()]
    for _ in range(11):
        page.keyboard.press("ArrowRight")
        seen.append(page.locator(".picture").inner_html())
    assert slider.input_value() == slider.get_attribute("max") == "12"
    assert len(set(seen)) > 2  # a_tile[ty, k]: another k, another bank
    assert "12 of the first 12" in page.locator("output").text_content()


def test_lanes_and_banks_are_those_of_the_trace(made, visit):
    """Each bank of the picture holds as many words as the request wants of it."""
    page = visit(made("hgemm_shared"))
    kernel = traces.load(catalog.find("hgemm_shared")).chief
    access = next(a for a in kernel.accesses if a.space == "shared" and a.op == "read")
    page.locator(f"button.row[data-line='{access.line}']").click()
    one = access.seen[0]
    places = traces.unpacked(one.runs)[: one.together]
    banks = [set() for _ in range(32)]
    for place in places:
        for word in range(place // 4, place // 4 + access.bits // 32):
            banks[word % 32].add(word)
    drawn = page.locator("rect[data-bank]").evaluate_all("nodes => nodes.map((node) => Number(node.dataset.words))")
    assert drawn == [len(words) for words in banks]
    assert max(drawn) * (32 // one.together) == one.wavefronts
    assert "A red bank" in told(page)


def test_sectors_of_a_picture_are_those_of_the_trace(made, visit):
    page = visit(made("gemm_naive"))
    kernel = traces.load(catalog.find("gemm_naive")).chief
    for access in kernel.accesses:
        page.locator(f"button.row[data-line='{access.line}']").click()
        names = page.locator("button.pick").all_text_contents()
        page.locator("button.pick").nth([f" {access.array} (" in name for name in names].index(True)).click()
        places = [place for place in traces.unpacked(access.seen[0].runs) if place is not None]
        sectors = {place // 32 for place in places}
        drawn = page.locator("rect[data-sector]").evaluate_all(
            "nodes => nodes.map((node) => Number(node.dataset.sector))"
        )
        assert set(drawn) == sectors
        used = page.locator("rect[data-used=true]").count()
        assert used == len(set(places))


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


def test_another_kernel_can_be_chosen(made, visit):
    page = visit(made("conv2d_unroll_gemm"))
    found = traces.load(catalog.find("conv2d_unroll_gemm"))
    assert len(found.kernels) > 1
    for place, kernel in enumerate(found.kernels):
        page.locator("select").select_option(str(place))
        assert f"kernel {kernel.name}," in page.locator(".where").text_content()
        lines = {access.line for access in kernel.accesses} | set(map(int, kernel.fma_lines))
        assert page.locator("button.row").count() == len(lines)


def test_a_fault_is_shown_first(tmp_path, visit, root):
    from common.trace import trace

    step, file = catalog.find("gemm_shared_tile"), mutants.path("gemm_missing_barrier")
    (found,) = trace.results([trace.task(step, traces.problem(step), file, kept=traces.KEPT)])
    path = tmp_path / "page.html"
    path.write_text(explorer.page([explorer.shown(step, traces.of(found, traces.problem(step)), file)]))
    page = visit(path)
    fault = found["kernels"][0]["faults"][0]
    assert page.locator("button.row[aria-pressed=true]").get_attribute("data-line") == str(fault.line)
    assert page.locator(".panel .bad-text").first.text_content().startswith(f"line {fault.line}: ")
    assert page.locator(".said .bad-text").nth(1).text_content().startswith(f"line {fault.line}: ")


def test_an_asynchronous_step_shows_its_pipeline(made, visit):
    page = visit(made("hgemm_specialised"))
    spans = traces.load(catalog.find("hgemm_specialised")).chief.pipeline
    assert page.locator(".pipeline rect").count() == len(spans) > 4
    filled = [span.stage for span in spans if span.state == "filling"]
    assert min(filled.count(stage) for stage in filled) >= 2
    assert page.locator(".pipeline text").first.text_content() == "stage 0 filled"


@pytest.mark.parametrize("names", [["conv2d_shared_tile", "conv2d_unroll_gemm"], ["gemm_shared_tile"]], ids=len)
def test_a_page_opens_on_the_line_that_costs_most(made, visit, names):
    page = visit(made(*names))
    for place, name in enumerate(names):
        kernel = traces.load(catalog.find(name)).chief
        costs = {}
        for access in kernel.accesses:
            costs[access.line, access.space] = costs.get((access.line, access.space), 0) + access.moved
        opened = page.locator(".step").nth(place).locator("button.row[aria-pressed=true]")
        assert opened.get_attribute("data-line") == str(max(costs, key=costs.get)[0])


@pytest.mark.parametrize("names", [["hgemm_specialised"], ["gemm_shared_tile", "gemm_register_blocked"]], ids=len)
def test_the_microscope_on_a_phone(made, visit, names):
    page = visit(made(*names), width=390, height=800)
    assert page.evaluate(WIDTH) == 0
    assert page.locator("button.row").first.bounding_box()["height"] >= 18
    assert page.locator(".row .text").nth(1).evaluate("node => node.getBoundingClientRect().x") < 60
    if len(names) > 1:
        assert page.locator(".bars").bounding_box()["y"] < page.locator(".said").first.bounding_box()["y"]
