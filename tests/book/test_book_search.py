"""The search shows what it found, from disk, too."""

import json

import pytest

from common.book import scripts

pytestmark = pytest.mark.xdist_group("book")

PAGE = """<html><nav>no</nav><article role="main"><section id="a"><h1>Title<a class="headerlink" href="#a">#</a></h1>
<p>One &lt;b&gt; of <code>gemm_naive</code><sup><a class="microscope reference" href="x">trace</a></sup>.</p>
<p>Two</p>
<section class="x" id="b"><span id="c"></span><h2>Part<a class="headerlink" href="#b">#</a></h2><ul><li>three</li>
<li>four</li></ul><script>no</script></section></section></article></html>"""


def read(folder):
    script = (folder / "_static" / scripts.TEXTS).read_text(encoding="utf-8")
    return json.loads(script.removeprefix("window.WORKBOOK_TEXTS = ").removesuffix(";\n"))


def test_texts_are_those_of_the_pages(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "page.html").write_text(PAGE, encoding="utf-8")
    (tmp_path / "none.html").write_text("<p>no article</p>", encoding="utf-8")
    scripts.write_texts(tmp_path)
    ((name, (text, places)),) = read(tmp_path).items()
    assert name == "in/page.html"
    assert text == "One <b> of gemm_naive. Two Part three four"
    assert text[places["b"] :].split() == ["Part", "three", "four"]
    assert places["a"] == 0


def test_each_result_shows_what_it_found(book, visit):
    page = visit(f"{book[0] / 'search.html'}?q=swizzled+rows")
    page.wait_for_selector("#search-results .context mark")
    page.wait_for_function("document.querySelector('.search-summary').textContent.includes('finished')")
    results = page.locator("#search-results li")
    assert results.count() == page.locator("#search-results li > .context").count() > 3
    for text in page.locator("#search-results .context").all_text_contents():
        assert 20 < len(text) < 320
    marked = {text.lower() for text in page.locator("#search-results mark").all_text_contents()}
    assert {"row", "rows"} & marked
    assert any(text.startswith("swizzl") for text in marked)
    assert all(text.startswith(("row", "swizzl")) for text in marked)
