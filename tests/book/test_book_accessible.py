"""What shuts readers out: axe looks at every kind of page, light and dark; no text is too small to read."""

import importlib.resources
import importlib.util

import pytest

pytestmark = pytest.mark.xdist_group("book")

LONG = (
    "lessons/02_shared_tiling/index.html"  # what it is made of is on the others, too, and looked at in the dark there
)
PAGES = [
    "index.html",
    LONG,
    "lessons/02_shared_tiling/gemm_shared_tile.code.html",
    "story.html",
    "search.html?q=swizzle",
    "explore/gemm_rectangular_tiles-gemm_register_blocked.html",
]
SMALLEST = 12  # px: Lighthouse calls what is smaller illegible
# preload: a page from disk may not read its style
CHECK = """async (options) => {
  const found = await axe.run(document, {resultTypes: ["violations"], preload: false, ...options});
  return found.violations.flatMap((rule) => rule.nodes.map((node) => `${rule.id}: ${node.target}`));
}"""
# A picture's letters grow and shrink with it.
SMALL = """(smallest) => {
  const found = new Set(), walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), node = walker.currentNode.parentElement;
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName) || !node.getClientRects().length) continue;
    const size = parseFloat(getComputedStyle(node).fontSize) * (node.ownerSVGElement ? node.getScreenCTM().a : 1);
    if (size < smallest - 0.05) found.add(`${node.tagName}: ${text.slice(0, 30)}: ${size.toFixed(1)}`);
  }
  return [...found];
}"""


@pytest.fixture(scope="session")
def axe():
    """The checker's script."""
    if importlib.util.find_spec("axe_playwright_python") is None:
        pytest.skip("no axe-playwright-python, which brings axe: make book")
    return (importlib.resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")


def opened(book, visit, name):
    page = visit(book[0] / name)
    # One change of the story stands for all: axe takes a minute for their coloured words.
    page.evaluate("document.querySelectorAll('.diff').forEach((fold, i) => { fold.open = i === 1; })")
    if name.startswith("search"):
        page.wait_for_selector("#search-results li")
    return page


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(book, visit, axe, name):
    page = opened(book, visit, name)
    page.evaluate(axe)
    assert page.evaluate(CHECK, {}) == []
    if name != LONG:
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(CHECK, {"runOnly": ["color-contrast"]}) == []


@pytest.mark.parametrize("name", PAGES)
def test_no_text_is_too_small(book, visit, name):
    page = opened(book, visit, name)
    assert page.evaluate(SMALL, SMALLEST) == []
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_timeout(100)  # charts are drawn again
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
