"""The ladder as a story: its text is made of the steps' own, and of the record."""

import html
import itertools
import re

import pytest

from common.book import story
from common.catalog import catalog, sources
from common.records import records
from common.report import figures


@pytest.fixture(scope="module")
def page():
    return story.page()


def _chapter(page, name):
    found = re.search(rf'<section class="chapter" id="{name}".*?</section>', page, re.DOTALL)
    assert found, name
    return found[0]


def _code(chapter):
    """Sign and text of each line of the chapter's code."""
    lines = re.findall(
        r'<(?:span|del|ins) class="line"><span class="sign">(.)</span> (.*)\n</(?:span|del|ins)>', chapter
    )
    return [(sign, html.unescape(re.sub(r"<[^>]+>", "", text))) for sign, text in lines]


def test_each_step_has_a_chapter_in_order(page):
    names = [step.name for step in story.chapters()]
    assert names[0] == "gemm_naive"
    assert names[-1] == "gemm_tuned"
    assert re.findall(r'data-step="(\w+)"', page) == names
    assert page.count("<section") == page.count("</section>") == len(names)
    assert page.count("<div") == page.count("</div>")


def test_a_chapter_has_the_record_s_figures(page):
    record = records.other(records.REFERENCE_GPU)
    for before, step in itertools.pairwise(story.chapters()):
        chapter = _chapter(page, step.name)
        gain = figures.speed_up(record, story.PRESET, before.name, step.name)
        assert f"**{figures.time(record, story.PRESET, step.name).text} ms**" in chapter
        assert f"{gain.text} times as fast as `{before.name}`" in chapter
        assert f"**What limited** `{before.name}`" in chapter


def test_the_first_chapter_has_the_whole_kernel(page):
    first = story.chapters()[0]
    said = [text for _, text in _code(_chapter(page, first.name))]
    assert said == sources.without_docstring(first.path)


def test_the_code_is_that_of_the_command_diff(page):
    for step in story.chapters()[1:]:
        lines = list(sources.difference(catalog.find(step.builds_on), step))
        wanted = [(line[0], line[2:]) for line in lines if not line.startswith("@@")]
        assert _code(_chapter(page, step.name)) == wanted
