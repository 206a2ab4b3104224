"""The pages: one word has one meaning, they stay short, and what they say runs."""

import os
import re
import subprocess
import sys

import pytest

from common.catalog import catalog
from common.records import records
from common.report import figures, pages

GLOSSARY = catalog.LESSONS / "GLOSSARY.md"
FIRST = catalog.LESSONS / catalog.lessons()[0] / "README.md"
SITTINGS = sorted(catalog.LESSONS.glob("[0-9]*/*.md"))


def text(path):
    return path.read_text(encoding="utf-8")


def test_a_term_stands_in_the_glossary_once_and_is_linked_where_it_is_explained():
    found = re.findall(r'<a id="([^"]+)">', text(GLOSSARY))
    assert len(found) > 40
    assert len(set(found)) == len(found)
    linked = {name for page in pages.pages() for name in re.findall(r"GLOSSARY\.md#([\w-]+)\)", text(page))}
    assert linked == set(found)


@pytest.mark.parametrize("path", SITTINGS, ids=lambda path: path.relative_to(catalog.LESSONS).as_posix())
def test_a_figure_that_the_record_holds_is_not_typed(path):
    """Floors, times of the page's steps and libraries on its presets, and tensor cores' rates that are divided by."""
    record, page = records.Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json"), text(path)
    presets = [preset for preset in record.data.rows if re.search(rf"{preset}(?![\w-])", page)]
    rows = [
        (preset, name)
        for preset in presets
        for name in record.rows(preset)
        if name.replace(" ", "-") in page or name in page
    ]
    held = {figures.floor(record, preset).text: f"floor {preset}" for preset in presets}
    held |= {figures.time(record, *row).text: f"ms {' '.join(row)}" for row in rows}
    rates = {one.text: f"ceiling {what}" for what in ("mma_f16", "mma_tf32", "wgmma_f16", "wgmma_tf32")
             if (one := figures.ceiling(record, what))}  # fmt: skip
    prose = re.sub(r"<!-- table:.*?<!-- end table -->|```.*?```|<!--=.*?<!--/-->", " ", page, flags=re.DOTALL)
    typed = re.findall(r"(?<![\d.,])\d+\.\d+(?!\d| ?[KMGT]i?B)", prose)
    typed += re.findall(r"/ (\d+)(?=e12| = | TFLOP)", prose)
    wrong = [f"{one} is <!--= {(held | rates)[one]} -->" for one in typed if one in (held if "." in one else rates)]
    assert not wrong


def words_and_tables(page):
    """Words of prose, answers included, and tables that are not folded away."""
    open_ = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    other = r"<!-- (table|exercise): .*?<!-- end \1 -->|```.*?```|<!--.*?-->|^\|.*?$|(?<=\])\([^)]*\)"
    prose = re.sub(other, "", page, flags=re.DOTALL | re.MULTILINE)
    tables = re.findall(r"^\|[ :|-]+\|$", open_, re.MULTILINE)
    return sum(bool(re.search(r"\w", word)) for word in prose.split()), len(tables)


@pytest.mark.parametrize("path", SITTINGS, ids=lambda path: path.relative_to(catalog.LESSONS).as_posix())
def test_a_lessons_page_can_be_read_at_one_sitting(path):
    words, tables = words_and_tables(text(path))
    assert words <= 3200
    assert tables <= 8


def test_the_readme_is_short():
    assert len(text(catalog.ROOT / "README.md").splitlines()) <= 125


# --- what lesson 01 says ---


def test_the_first_kernel_prints_what_the_page_shows():
    environment = {**os.environ}
    done = subprocess.run(
        [sys.executable, "-m", "lessons.01_naive.start.hello"],
        cwd=catalog.ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    shown = re.search(r"It prints\n\n```\n(.*?)```", text(FIRST), re.DOTALL)[1]
    assert done.stdout == shown
    assert done.stderr == ""


def test_before_the_first_kernel_ran_there_is_no_picture_table_or_figure():
    before, after = text(FIRST).split("\n## 2. ")
    assert not re.search(r"!\[|^\||<!--=", before, re.MULTILINE)
    # the whole lesson, which tells all answers, is run at its end
    assert "make 01" not in before + after.split("\n## 9. ")[0]


def test_the_first_kernels_lines_are_those_of_its_file():
    def lines(source):
        return [re.sub(r"\s*#.*", "", line) for line in source.strip().splitlines()]

    shown = re.search(r"```python\n(@cuda\.jit[^`]*def hello.*?)```", text(FIRST), re.DOTALL)[1]
    kernel = text(FIRST.parent / "start" / "hello.py").split("\n\n\n")[1]
    assert lines(shown) == lines(kernel)
