"""What the book is built from: links turned, code left alone, a target that is missing named."""

import re

import pytest

from common.catalog import catalog

pytest.importorskip("sphinx")
from common.book import book


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
def staged(folder, monkeypatch):
    """Stage a README; returns its text, and the folder of the sources."""
    monkeypatch.setattr(book, "steps", dict)

    def staged(text):
        (folder / "README.md").write_text(text)
        to = folder / "to"
        book.stage(to, folder)
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


def test_every_step_has_a_page_in_its_lessons_navigation(tmp_path):
    book.stage(tmp_path)
    for step in catalog.steps():
        path = step.path.relative_to(catalog.ROOT)
        page = (tmp_path / path.with_suffix(".code.md")).read_text()
        assert page.startswith(f"# {step.name}\n")
        assert step.path.read_text().rstrip() in page
        index = (tmp_path / path.parent / "index.md").read_text()
        trees = re.findall(r"```\{toctree\}\n(.*?)```", index, re.DOTALL)
        assert any(f"\n{step.name}.code\n" in tree for tree in trees)


def test_pages_are_those_of_the_checkout(tmp_path):
    """But for its links, a page is as it was: it reads on GitHub as here."""
    book.stage(tmp_path)
    strip = re.compile(r"\]\([^)]*\)|\[|\]")
    for page in catalog.ROOT.glob("lessons/*/*.md"):
        place = page.relative_to(catalog.ROOT)
        built = tmp_path / (place.with_name("index.md") if place.name == "README.md" else place)
        text = built.read_text().partition("\n```{toctree}")[0]
        assert strip.sub("", text) == strip.sub("", page.read_text()), page
