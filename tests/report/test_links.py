"""Pages lead where they say, and every picture of a lesson stands on one of its pages."""

import re

import pytest

from common.catalog import catalog, exercises
from common.report import pages

EVERYTHING = {*pages.pages(), *catalog.ROOT.glob("*.md")}
EACH = pytest.mark.parametrize("path", sorted(EVERYTHING), ids=lambda path: path.relative_to(catalog.ROOT).as_posix())
LESSONS = [lesson for lesson in catalog.lessons() if (catalog.LESSONS / lesson / "README.md").is_file()]


def prose(text):
    """The page without its blocks of code, in which brackets are no links."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text):
    """The names by which places of a page are linked: its headings, as they are, and what it names itself."""
    titles = re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def broken(path, text):
    """Links of the page at ``path`` that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        if re.match(r"https?://", target):
            continue
        name, _, place = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (place and place not in anchors(there.read_text(encoding="utf-8"))):
            found.append(target)
    return found


@EACH
def test_links_lead_somewhere(path):
    assert broken(path, path.read_text(encoding="utf-8")) == []


def test_a_link_to_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Two words, here\n```\n[a](code.md)\n```\n")
    text = "[a](page.md) [b](page.md#two-words-here) [c](https://x.y) [d](lost.md) [e](#gone) ![f](page.md#gone)"
    assert broken(page, text) == ["lost.md", "#gone", "page.md#gone"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_page_of_a_lesson_is_reached_from_its_first(lesson):
    folder = catalog.LESSONS / lesson
    first = (folder / "README.md").read_text(encoding="utf-8")
    others = [path.name for path in folder.glob("*.md") if path.name != "README.md"]
    assert [name for name in others if f"]({name}" not in first] == []


@pytest.mark.parametrize("lesson", LESSONS)
def test_exercises_are_numbered_in_the_order_of_the_pages(lesson):
    """The first page, those that it leads to, in order of their first links, then the hard ones."""
    folder = catalog.LESSONS / lesson
    first = (folder / "README.md").read_text(encoding="utf-8")
    names = dict.fromkeys(["README.md", *re.findall(r"\]\((\w+\.md)\)", first)])
    marked = [
        name
        for page in names
        for name in re.findall(r"<!-- exercise: (\w+) -->", (folder / page).read_text(encoding="utf-8"))
    ]
    mine = [one for one in exercises.everything() if one.lesson == lesson]
    assert [one.name for one in mine] == [*marked, *(one.name for one in mine if one.hard)]
