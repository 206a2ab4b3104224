"""The book and the microscope in a real browser: scripts, keyboard, a phone."""

import html
import importlib.resources
import importlib.util
import re
import sys
from urllib.parse import unquote, urlsplit

import pytest
import texts
from made import unpacked
from sampling import some

import common.report
from common.catalog import catalog
from common.cli import main
from common.report import book as site
from common.report import traces

pytestmark = pytest.mark.xdist_group("book")

PAGES = [
    "index.html", "lessons/02_shared_tiling/index.html",
    "lessons/04_register_blocking/gemm_register_blocked.code.html", "lessons/GLOSSARY.html",
    "results/nvidia-h200.html", "explore/index.html",
]  # fmt: skip
EXPLORED = ["conv2d_constant_weights", "hgemm_specialised"]
WIDTH = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def main_accesses(name):
    """Those of a step's main kernel."""
    kept = traces.load(catalog.find(name))
    return kept["kernels"][kept["main"]]["accesses"]


def told(page, place=0):
    return page.locator(".told").nth(place).text_content()


@pytest.fixture
def made(tmp_path):
    """The page of one step or two, as ``trace --html`` writes it."""

    def made(*names):
        steps = [(name, traces.load(catalog.find(name))) for name in names]
        path = tmp_path / "page.html"
        path.write_text(site.page(steps), encoding="utf-8")
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


CELLS = ["1.53 (1.50–1.55)", "1,234", "not timed yet", "12.5 †", "", "0.104 ¶", "−3"]
SORTED = ["−3", "0.104 ¶", "1.53 (1.50–1.55)", "12.5 †", "1,234"]


def test_a_table_sorts_by_number_and_keeps_empty_cells_last(tmp_path, visit):
    cells = "".join(f"<tr><td>s{i}</td><td>{cell}</td><td>x</td></tr>" for i, cell in enumerate(CELLS))
    scripts = "".join((site.STATIC / name).read_text(encoding="utf-8") for name in ("elements.js", "book.js"))
    (tmp_path / "table.html").write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>made</title><script>{scripts}</script><article>"
        f"<table><thead><tr><th>step</th><th>ms</th><th>more</th></tr></thead><tbody>{cells}</tbody></table></article>",
        encoding="utf-8",
    )
    page = visit(tmp_path / "table.html")
    button = page.get_by_role("button", name="ms", exact=True)
    cells = page.locator("tbody td:nth-child(2)")
    button.click()
    assert cells.all_text_contents() == [*SORTED, "not timed yet", ""]
    button.press("Enter")
    assert cells.all_text_contents() == [*SORTED[::-1], "not timed yet", ""]
    assert page.locator("th[aria-sort=descending]").count() == 1


# --- the microscope ---


@pytest.mark.parametrize("name", EXPLORED)
def test_every_line_shows_its_cost(made, visit, name):
    page = visit(made(name))
    accesses = main_accesses(name)
    lines = sorted({access["line"] for access in accesses})
    for line in lines:
        page.locator(f"button.row[data-line='{line}']").click()
        here = [access for access in accesses if access["line"] == line]
        assert page.locator("button.pick").count() == len(here)
        for place, access in enumerate(here):
            page.locator("button.pick").nth(place).click()
            assert f"{access['moved']:,} " in page.locator(".sums").text_content()
            assert told(page)
            assert page.locator(".picture svg").count() == bool(access["seen"])


def test_lanes_and_banks_are_those_of_the_trace(made, visit):
    """Each bank of the picture holds as many words as the request wants of it."""
    page = visit(made("hgemm_shared"))
    access = next(a for a in main_accesses("hgemm_shared") if (a["space"], a["op"]) == ("shared", "read"))
    page.locator(f"button.row[data-line='{access['line']}']").click()
    _, runs, together, wavefronts = access["seen"][0]
    places = unpacked(runs)[:together]
    banks = [set() for _ in range(32)]
    for place in places:
        for word in range(place // 4, place // 4 + access["bits"] // 32):
            banks[word % 32].add(word)
    drawn = page.locator("rect[data-bank]").evaluate_all("nodes => nodes.map((node) => Number(node.dataset.words))")
    assert drawn == [len(words) for words in banks]
    assert max(drawn) * (32 // together) == wavefronts
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


# --- what shuts readers out: axe, light and dark; no text is too small to read ---


LONG = (
    "lessons/02_shared_tiling/index.html"  # what it is made of is on the others, too, and looked at in the dark there
)
KINDS_OF_PAGE = [
    "index.html", LONG, "lessons/02_shared_tiling/gemm_shared_tile.code.html", "search.html?q=swizzle",
    "explore/gemm_rectangular_tiles-gemm_register_blocked.html",
]  # fmt: skip
SMALLEST = 12  # px: Lighthouse calls what is smaller illegible
CHECK = texts.of("report")["axe"]
SMALL = texts.of("report")["small"]


@pytest.fixture(scope="session")
def axe():
    """The checker's script."""
    if importlib.util.find_spec("axe_playwright_python") is None:
        pytest.skip("no axe-playwright-python, which brings axe: make book")
    return (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def opened(book, visit, name):
    page = visit(book[0] / name)
    if name.startswith("search"):
        page.wait_for_selector("#search-results li")
    return page


@pytest.mark.parametrize("name", some(KINDS_OF_PAGE, len(KINDS_OF_PAGE), 2))
def test_axe_finds_nothing(book, visit, axe, name):
    page = opened(book, visit, name)
    page.evaluate(axe)
    assert page.evaluate(CHECK, {}) == []
    if name != LONG:
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(CHECK, {"runOnly": ["color-contrast"]}) == []


@pytest.mark.parametrize("name", KINDS_OF_PAGE)
def test_no_text_is_too_small(book, visit, name):
    page = opened(book, visit, name)
    assert page.evaluate(SMALL, SMALLEST) == []
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate(SMALL, SMALLEST) == []


def test_a_theme_chosen_in_the_book_holds_under_the_microscope(book, visit):
    page = visit(book[0] / "index.html")
    page.evaluate("localStorage.setItem('theme', 'dark')")
    paper = "getComputedStyle(document.body).backgroundColor"
    page.goto((book[0] / "explore" / "gemm_naive.html").as_uri())
    dark = page.evaluate(paper)
    page.evaluate("localStorage.removeItem('theme')")
    page.reload()
    assert page.evaluate(paper) == "rgb(255, 255, 255)" != dark


# --- what the book is built from: links turned, code left alone, a target that is missing named ---


@pytest.fixture
def building():
    """The module that builds it."""
    pytest.importorskip("sphinx")
    return importlib.import_module("common.report.book")


@pytest.fixture
def folder(tmp_path):
    """A small checkout without steps."""
    (tmp_path / "lessons" / "01_one").mkdir(parents=True)
    (tmp_path / "lessons" / "01_one" / "one.py").write_text('"""one: the first.\n"""\n')
    (tmp_path / "lessons" / "01_one" / "README.md").write_text("# One\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.ipynb").write_text("{}")
    return tmp_path


@pytest.fixture
def staged(folder, building, monkeypatch):
    """Stage a README; returns its text, and the folder of the sources."""
    monkeypatch.setattr(building, "steps", dict)

    def staged(text):
        (folder / "README.md").write_text(text)
        to = folder / "to"
        building.stage(to, folder)
        return (to / "index.md").read_text().partition("\n```{toctree}")[0], to

    return staged


def test_links_lead_to_pages(staged):
    text, to = staged(
        "[lesson](lessons/01_one/README.md#part) [code](lessons/01_one/one.py) [folder](lessons/01_one/) "
        "[none](empty) [note](note.ipynb) [out](https://example.org/a.md) [here](#place)\n"
    )
    assert text == (
        "[lesson](lessons/01_one/index.md#part) [code](lessons/01_one/one.code.md) [folder](lessons/01_one/index.md) "
        "none note [out](https://example.org/a.md) [here](#place)\n"
    )
    page = (to / "lessons/01_one/one.code.md").read_text()
    assert page.startswith("---\norphan: true\n---\n# one\n")
    assert '```python\n"""one: the first.\n"""\n```' in page


@pytest.mark.parametrize("fence", ["```", "~~~"])
def test_links_in_code_are_left_alone(staged, fence):
    text = f"before\n\n{fence}text\n[a](gone.md)\n{fence}\n\n[one](lessons/01_one/one.py)\n"
    assert staged(text)[0] == text.replace("one.py", "one.code.md")


def test_a_link_to_nothing_names_page_and_line(staged):
    with pytest.raises(ValueError, match=r"^README\.md:6: link to 'lessons/gone\.md': there is no such file$"):
        staged("# A\n\n```\ncode\n```\n[gone](lessons/gone.md)\n")


def test_every_step_has_a_page_in_its_lesson_s_navigation_and_pages_are_those_of_the_checkout(building, tmp_path):
    """But for its links, a page is as it was: it reads on GitHub as here."""
    building.stage(tmp_path)
    for step in catalog.steps():
        path = step.path.relative_to(catalog.ROOT)
        page = (tmp_path / path.with_suffix(".code.md")).read_text()
        assert page.startswith(f"# {step.name}\n")
        assert step.path.read_text().rstrip() in page
        index = (tmp_path / path.parent / "index.md").read_text()
        trees = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
        assert any(f"\n{step.name}.code\n" in tree for tree in trees)
    strip = re.compile(r"\]\([^)]*\)|\[|\]")
    for page in catalog.ROOT.glob("lessons/*/*.md"):
        place = page.relative_to(catalog.ROOT)
        built = tmp_path / (place.with_name("index.md") if place.name == "README.md" else place)
        text = built.read_text().partition("\n```{toctree}")[0]
        assert strip.sub("", text) == strip.sub("", page.read_text()), page


# --- the book as a whole: without a warning, in one folder, with every page that it should have ---


def test_nothing_of_it_comes_from_the_network(book):
    for path in book[0].rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|link|iframe)[^>]*\b(?:src|href)="(?:https?:)?//', text), path
    for path in book[0].rglob("*.css"):
        assert not re.search(r"@import|url\(\W?(?:https?:)?//", path.read_text(encoding="utf-8")), path


def test_every_step_has_its_pages(book):
    kept = traces.fitting()
    for step in catalog.steps():
        page = (book[0] / step.path.relative_to(catalog.ROOT).with_suffix(".code.html")).read_text()
        assert f'explore/{step.name}.html">What each line costs' in page
        assert (book[0] / "explore" / f"{step.name}.html").is_file()
        if other := site.before(step, kept):
            assert (book[0] / "explore" / f"{other}-{step.name}.html").is_file()
            assert f">beside {other}</a>" in page
    index = (book[0] / "explore" / "index.html").read_text()
    assert all(f'href="{step.name}.html"' in index for step in catalog.steps())


def test_lessons_lead_to_code(book):
    page = (book[0] / "lessons" / "02_shared_tiling" / "index.html").read_text()
    assert 'href="gemm_shared_tile.code.html"' in page
    for head in re.findall(r"<thead>.*?</thead>", page, re.DOTALL):
        assert "<a " not in head


def test_every_link_leads_somewhere(book):
    texts = {path: path.read_text(encoding="utf-8") for path in book[0].rglob("*.html")}
    places = {path: set(re.findall(r'\sid="([^"]*)"', text)) for path, text in texts.items()}
    for page, text in texts.items():
        for link in set(re.findall(r'<[^>]*\s(?:href|src|poster)="([^"]*)"', text)):
            parts = urlsplit(html.unescape(link))
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), (page, link)
            assert target.is_relative_to(book[0]), (page, link)
            assert not parts.fragment or unquote(parts.fragment) in places[target], (page, link)


def test_it_is_no_larger_than_it_must_be(book):
    files = [path for path in book[0].rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 26 * 2**20
    assert max(path.stat().st_size for path in (book[0] / "explore").iterdir()) < 2**20


# --- the command ---


def test_what_was_built_is_said(book):
    assert re.fullmatch(r"\d+ pages: open \S+/index.html", book[1].strip())


def test_without_sphinx_one_line_says_so(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "common.report.book", raising=False)
    monkeypatch.delattr(common.report, "book", raising=False)
    monkeypatch.setitem(sys.modules, "sphinx.application", None)
    monkeypatch.setitem(sys.modules, "sphinx", None)
    assert main(["book"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "the book needs sphinx, which is not installed: make book brings it" in " ".join(said.err.split())
    assert "Traceback" not in said.err
