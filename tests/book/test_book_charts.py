"""Charts that answer, tables that sort: what a browser makes of them, on a made page."""

import json

import pytest

from common.book import STATIC, sources
from common.catalog import problems
from common.records import records

LAST = "gemm_mwmwmwmwmwmw"
LONG = "gemm_of_a_very_long_name_indeed"
ROWS = [
    ("gemm_first", 100.0, 2.0, True), (LONG, 10.0, 20.0, True), (LAST, 4.0, 50.0, True),
    ("cuBLAS TF32", 1.0, None, False),
]  # fmt: skip
FLOORS = [["floor", 2.0], ["TF32 floor", 2.0], ["3×TF32 floor", 0.99]]
CELLS = ["1.53 (1.50–1.55)", "1,234", "not timed yet", "12.5 †", "", "0.104 ¶", "−3"]
SORTED = ["−3", "0.104 ¶", "1.53 (1.50–1.55)", "12.5 †", "1,234"]


@pytest.fixture
def made(tmp_path):
    """A page with a chart and a table, as the book's pages have them."""
    rows = [
        {"name": name, "ms": ms, "from": ms, "to": ms, "step": step, "date": "2026-01-01", "gflops": 7}
        | ({"share": share} if share else {})
        for name, ms, share, step in ROWS
    ]
    presets = {"gemm-4096": {"ladder": "gemm", "rows": rows, "floors": FLOORS}}
    presets["gemm-2048"] = presets["gemm-4096"] | {"rows": rows[:1]}
    in_turn = [row | {"beside": ["cuBLAS TF32", 0.5]} for row in rows[:2]] + rows[3:]
    presets["gemm-turns"] = presets["gemm-4096"] | {"rows": in_turn}
    card = {"slug": "card", "name": "A card", "presets": presets}
    others = [row | {"ms": 4 * row["ms"] ** 0.5, "older": True} for row in rows[:2]]
    other = {"slug": "other", "name": "Another", "presets": {"gemm-4096": presets["gemm-4096"] | {"rows": others}}}
    cells = "".join(f"<tr><td>s{i}</td><td>{cell}</td><td>x</td></tr>" for i, cell in enumerate(CELLS))
    files = ("book.css", "elements.js", "book.js")
    style, elements, script = ((STATIC / name).read_text(encoding="utf-8") for name in files)
    (tmp_path / "book.html").write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>made</title><style>{style}</style>"
        f"<script>window.WORKBOOK_RECORDS = {json.dumps([card, other])};</script><script>{elements}{script}</script>"
        '<article><p><img alt="times"></p><div class="ladder-chart" data-card="card" data-preset="gemm-4096"></div>'
        f"<table><thead><tr><th>step</th><th>ms</th><th>more</th></tr></thead><tbody>{cells}</tbody></table>"
        "</article></html>",
        encoding="utf-8",
    )
    return tmp_path / "book.html"


def _values(page):
    return page.locator(".answers .number").all_text_contents()


def test_the_record_of_each_card_is_in_the_script():
    text = sources.records_script(records.all_records())
    cards = json.loads(text.partition(" = ")[2].rstrip().rstrip(";"))
    assert [card["slug"] for card in cards] == [record.slug for record in records.all_records()]
    for card in cards:
        for preset, data in card["presets"].items():
            assert data["ladder"] == problems.preset(preset).ladder
            row = data["rows"][0]
            assert row["ms"] == records.other(card["slug"]).rows(preset)[row["name"]].timing.median_ms
            tensor = [one for one in data["rows"] if one["name"].endswith("TF32")]
            assert not any("share" in one for one in tensor)


def test_measures_switch(made, visit):
    page = visit(made)
    assert not page.locator("article > p img").is_visible()
    assert _values(page) == ["1.00", "10.0", "25.0", "100"]
    page.get_by_label("show").select_option("ms")
    assert _values(page) == ["100", "10.0", "4.00", "1.00"]
    page.get_by_label("show").select_option("share")
    assert _values(page) == ["2.00", "20.0", "50.0"]
    assert page.locator(".floor-name").all_text_contents() == ["floor"]
    page.get_by_label("card").select_option("other")
    assert _values(page) == ["2.00", "20.0"]


def test_speeds_are_those_in_turn_with_the_library_where_all_steps_have_them(made, visit):
    page = visit(made)
    page.get_by_label("problem").select_option("gemm-turns")
    assert _values(page) == ["0.500", "0.500", "1.00"]
    assert "times as fast as cuBLAS TF32, in turn" in page.locator(".answers .axis").all_text_contents()


def test_cards_switch(made, visit):
    """Each card with its own times and problems; a problem with the cards that have it."""
    page = visit(made)
    options = lambda label: page.get_by_label(label).locator("option").all_text_contents()  # noqa: E731
    assert (options("card"), options("problem")) == (["A card", "Another"], ["gemm-4096", "gemm-2048", "gemm-turns"])
    page.get_by_label("show").select_option("ms")
    page.get_by_label("card").select_option("other")
    assert _values(page) == ["40.0", "12.6"]
    assert options("problem") == ["gemm-4096"]
    assert page.locator(".answers .value").text_content().endswith("¶: an older version of the file was measured.")
    page.get_by_label("card").select_option("card")
    assert _values(page) == ["100", "10.0", "4.00", "1.00"]
    assert "¶" not in page.locator(".answers").text_content()
    page.get_by_label("problem").select_option("gemm-2048")
    assert _values(page) == ["100"]
    assert options("card") == ["A card"]


def test_bars_are_read_by_keyboard(made, visit):
    page = visit(made)
    page.get_by_label("show").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    said = page.locator(".answers .value").text_content()
    assert said.startswith(f"{LONG}: 10.0 ms")
    assert "20 % of its floor, 10.0 times as fast as gemm_first" in said


@pytest.mark.parametrize("width", [390, 1280])
def test_no_text_leaves_the_chart_or_gets_small(made, visit, width):
    page = visit(made, width=width)
    outside = """() => {
        const all = document.querySelector(".answers svg").getBoundingClientRect();
        const bad = (r) => r.left < all.left - 1 || r.right > all.right + 1 || r.height < 11;
        const texts = [...document.querySelectorAll(".answers svg text")];
        return texts.filter((text) => bad(text.getBoundingClientRect())).map((text) => text.textContent); }"""
    assert page.evaluate(outside) == []
    page.get_by_text("Choose steps").click()
    page.get_by_role("checkbox", name=LONG).uncheck()
    assert page.evaluate(outside) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_table_sorts_by_number_and_keeps_empty_cells_last(made, visit):
    page = visit(made)
    button = page.get_by_role("button", name="ms", exact=True)
    cells = page.locator("tbody td:nth-child(2)")
    button.click()
    assert cells.all_text_contents() == [*SORTED, "not timed yet", ""]
    button.press("Enter")
    assert cells.all_text_contents() == [*SORTED[::-1], "not timed yet", ""]
    assert page.locator("th[aria-sort=descending]").count() == 1
