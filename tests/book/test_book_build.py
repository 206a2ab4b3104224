"""The book as a whole: built without a warning, in one folder, with every page that it should have."""

import html
import re
import sys
from urllib.parse import unquote, urlsplit

import pytest

import common.book
from common.book import explorer
from common.catalog import catalog
from common.cli import main
from common.report import traces

pytestmark = pytest.mark.xdist_group("book")


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
        if other := explorer.before(step, kept):
            assert (book[0] / "explore" / f"{other}-{step.name}.html").is_file()
            assert f">beside {other}</a>" in page
    index = (book[0] / "explore" / "index.html").read_text()
    assert all(f'href="{step.name}.html"' in index for step in catalog.steps())


def test_lessons_lead_to_code_traces_and_terms(book):
    page = (book[0] / "lessons" / "02_shared_tiling" / "index.html").read_text()
    assert 'href="gemm_shared_tile.code.html"' in page
    assert 'href="../../explore/gemm_shared_tile.html"' in page
    terms = re.findall(r'class="term reference internal" href="../GLOSSARY.html#([\w-]+)"', page)
    assert len(set(terms)) == len(terms) > 3  # each where it is first said
    traces = re.findall(r'class="microscope reference[^"]*" href="([^"]*)"', page)
    assert len(set(traces)) == len(traces) > 1
    for head in re.findall(r"<thead>.*?</thead>", page, re.DOTALL):
        assert "<a " not in head


def test_pictures_load_late_and_keep_their_place(book):
    page = (book[0] / "lessons" / "02_shared_tiling" / "index.html").read_text()
    pictures = re.findall(r"<img [^>]*_images/[^>]*>", page)
    assert len(pictures) > 3
    for picture in pictures:
        for what in ('loading="lazy', r'width="\d+', r'height="\d+'):
            assert re.search(rf'\b{what}"', picture), picture


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
    assert sum(path.stat().st_size for path in files) < 24 * 2**20
    assert max(path.stat().st_size for path in (book[0] / "explore").iterdir()) < 2**20


# --- the command ---


def test_what_was_built_is_said(book):
    assert re.fullmatch(r"\d+ pages, \d+ MiB, \d+ s: open \S+/index.html", book[1].strip())


def test_without_sphinx_one_line_says_so(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "common.book.book", raising=False)
    monkeypatch.delattr(common.book, "book", raising=False)
    monkeypatch.setitem(sys.modules, "sphinx.application", None)
    monkeypatch.setitem(sys.modules, "sphinx", None)
    assert main(["book"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "the book needs sphinx, which is not installed: make book brings it" in " ".join(said.err.split())
    assert "Traceback" not in said.err
