"""A link of the built book that leads nowhere is found, and nothing else is."""

import pytest

pytest.importorskip("sphinx", reason="the book needs Sphinx: make book")

from common.book import book


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text('<p id="x">\n<a href="../b.html#there">b</a></p>')
    (tmp_path / "b.html").write_text('<h1 id="there"></h1><a href="a/">a</a><a href="a/index.html#x">x</a>')
    (tmp_path / "p.png").write_bytes(b"")
    return tmp_path


def test_whole_links_are_said_nothing_of(folder):
    text = '<img src="p.png"><a href="#here">h</a><i id="here"></i><a href="https://example.org/none">out</a>'
    (folder / "c.html").write_text(text + '<a href="mailto:a@b">m</a><a href="b.html?q=1&amp;r=2">q</a>')
    assert book.broken_links(folder) == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("gone.html", "no such file"),
        ("a/gone/", "no such file"),
        ("b.html#gone", "no such place on that page"),
        ("#gone", "no such place on that page"),
        ("../b.html", "outside the book"),
        ("b%20c.html", "no such file"),
    ],
)
def test_broken_links_are_named(folder, target, why):
    (folder / "c.html").write_text(f'<p>\n\n<a href="{target}">')
    assert book.broken_links(folder) == [f"c.html: {target}: {why}"]


def test_text_and_scripts_are_no_links(folder):
    text = '<code> href=&quot;gone&quot;</code><script type="application/json">{"a":" href=\\"gone\\""}</script>'
    (folder / "c.html").write_text(text)
    assert book.broken_links(folder) == []
