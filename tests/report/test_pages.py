"""The pages: nothing stale, links that lead somewhere, one meaning for a word, and what they say runs."""

import re
import textwrap

import numpy as np
import pytest
from made import card
from matplotlib import image
from msgspec.structs import replace
from processes import python
from sampling import one_of_each, some_days

from common.catalog import catalog, device, exercises
from common.records import records
from common.records.records import MachineCode, Record, StepRow
from common.report import figures, pages

GLOSSARY = catalog.LESSONS / "GLOSSARY.md"
FIRST = catalog.LESSONS / catalog.lessons()[0] / "README.md"
SITTINGS = sorted(catalog.LESSONS.glob("[0-9]*/*.md"))
LESSONS = [lesson for lesson in catalog.lessons() if (catalog.LESSONS / lesson / "README.md").is_file()]
NO_CODE = MachineCode()
NOTHING = Record(catalog.ROOT / "nvidia-test-9.json", card())


def each(paths):
    return pytest.mark.parametrize("path", sorted(paths), ids=lambda path: path.relative_to(catalog.ROOT).as_posix())


def text(path):
    return path.read_text(encoding="utf-8")


# --- what stands between markers ---


@each(pages.pages())
def test_the_tables_of_a_page_are_not_stale_and_every_marker_is_understood(path, shipped, shipped_code):
    page = text(path)
    assert pages.rendered(page, shipped, shipped_code) == page, "python -m common charts --record"
    marks = re.findall(r"<!-- (?:table: |exercise: )|<!--= ?", page)
    understood = r"<!-- table: \w+(?: [\w.-]+)* -->\n|<!-- exercise: \w+ -->\n|<!--= \w+(?: [\w.-]+)* -->"
    ends = re.findall(r"<!-- end (?:table|exercise) -->|<!--/-->", page)
    assert len(marks) == len(re.findall(understood, page)) == len(ends)


def test_the_page_of_the_shipped_record_is_not_stale(shipped):
    page = text(records.RESULTS / f"{shipped.slug}.md")
    assert page == pages.summary(shipped), "python -m common charts --record"
    for chart in re.findall(r"\]\((charts/[^)]+)\)", page):
        assert (records.RESULTS / chart).is_file(), chart


ONLY = {
    "nothing": lambda name: False,
    "libraries": lambda name: name[:2] == "cu",
    "lesson 04": lambda name: name in ("gemm_tuned", "conv2d_one_channel"),
}


def measured(shipped, part, empty):
    """The record of a card on which only this part was measured; with the presets that nothing is left of, or not."""
    rows = {
        preset: {name: row for name, row in rows.items() if ONLY[part](name)}
        for preset, rows in shipped.data.rows.items()
    }
    return Record(NOTHING.path, replace(shipped.data, rows={key: row for key, row in rows.items() if row or empty}))


PARTS = [(part, empty) for part in ONLY for empty in (True, False)]
SHOWN = one_of_each([(path, *part) for path in pages.pages() for part in PARTS], lambda case: case[0])


@pytest.mark.parametrize(("part", "empty"), PARTS)
def test_every_page_shows_a_card_on_which_only_a_part_was_measured(shipped, part, empty):
    record = measured(shipped, part, empty)
    for path in (path for path, *shown in SHOWN if shown == [part, empty]):
        assert pages.rendered(text(path), record, NO_CODE)
    assert ("Nothing has been measured for any preset yet" in pages.summary(record)) == (part == "nothing")


def test_only_what_is_between_the_markers_changes():
    block, inline = "<!-- table: exercises 01_naive -->\n", "<!--= ms gemm-2048 gemm_naive -->"
    new = pages.rendered(
        f"before\n{block}old\n<!-- end table -->\nmiddle {inline}old<!--/-->, end\n", NOTHING, NO_CODE
    )
    assert new.startswith(f"before\n{block}| exercise | kind | what |")
    assert new.endswith(f"\n<!-- end table -->\nmiddle {inline}?<!--/-->, end\n")
    assert "old" not in new
    assert pages.rendered(new, NOTHING, NO_CODE) == new
    assert pages.rendered("no markers here\n", NOTHING, NO_CODE) == "no markers here\n"


def test_an_exercise_stands_where_its_marker_is():
    one = exercises.everything()[0]
    page = f"before\n<!-- exercise: {one.name} -->\nold\n<!-- end exercise -->\nafter\n"
    new = pages.rendered(page, NOTHING, NO_CODE)
    assert f"> Exercise **{one.number}** [`{one.name}`](exercises/{one.name}.py), {one.kind}: {one.title}. " in new
    assert f"`python -m common grade {one.number}`\n<!-- end exercise -->\nafter\n" in new
    with pytest.raises(ValueError, match="exercise 'nothing' is unknown"):
        pages.rendered(page.replace(one.name, "nothing"), NOTHING, NO_CODE)


@pytest.mark.parametrize(("page", "says"), [
    ("<!-- table: weather -->\nold\n<!-- end table -->", "'weather' is unknown: kinds are "),
    ("<!--= weather -->old<!--/-->", "'weather' is unknown: kinds are "),
    ("<!-- table: problems -->\nold\n\nprose\n\n<!-- table: problems -->\nold\n<!-- end table -->\n", "has no end"),
    ("<!--= ms gemm-2048 a -->17.2 ms, prose <!--= ms gemm-2048 a -->17.2<!--/-->\n", "has no end"),
    ("<!-- exercise: one -->\nold\n<!-- end -->\n", "marker <!-- exercise: .* has no end"),
])  # fmt: skip
def test_a_marker_that_is_not_understood_is_said(page, says):
    with pytest.raises(ValueError, match=says):
        pages.rendered(page, NOTHING, NO_CODE)


# --- links and words ---


def prose(page):
    """The page without its blocks of code, in which brackets are no links."""
    return re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """The names by which places of a page are linked: its headings, as they are, and what it names itself."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
    return slugs | set(re.findall(r'<a id="([^"]+)">', page))


def broken(path, page):
    """Links of the page at ``path`` that lead nowhere."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        name, _, place = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (place and place not in anchors(text(there))):
            found.append(target)
    return found


@each({*pages.pages(), *catalog.ROOT.glob("*.md")})
def test_links_lead_somewhere(path):
    assert broken(path, text(path)) == []


def test_a_link_to_nowhere_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Two words, here\n```\n[a](code.md)\n```\n")
    links = "[a](page.md) [b](page.md#two-words-here) [c](https://x.y) [d](lost.md) [e](#gone) ![f](page.md#gone)"
    assert broken(page, links) == ["lost.md", "#gone", "page.md#gone"]


@pytest.mark.parametrize("lesson", LESSONS)
def test_a_lesson_s_first_page_leads_to_all_and_exercises_are_numbered_in_their_order(lesson):
    """The first page, those that it leads to, in order of their first links, then the hard ones."""
    folder = catalog.LESSONS / lesson
    first = text(folder / "README.md")
    names = dict.fromkeys(["README.md", *re.findall(r"\]\((\w+\.md)\)", first)])
    others = [path.name for path in folder.glob("*.md") if path.name != "README.md"]
    assert [name for name in others if f"]({name}" not in first] == []
    marked = [name for page in names for name in re.findall(r"<!-- exercise: (\w+) -->", text(folder / page))]
    mine = [one for one in exercises.everything() if one.lesson == lesson]
    assert [one.name for one in mine] == [*marked, *(one.name for one in mine if one.hard)]


def test_a_term_stands_in_the_glossary_once_and_is_linked_where_it_is_explained():
    found = re.findall(r'<a id="([^"]+)">', text(GLOSSARY))
    assert len(found) > 40
    assert len(set(found)) == len(found)
    linked = {name for page in pages.pages() for name in re.findall(r"GLOSSARY\.md#([\w-]+)\)", text(page))}
    assert linked == set(found)


@each(SITTINGS)
def test_a_figure_that_the_record_holds_is_not_typed(path, shipped):
    """Floors, times of the page's steps and libraries on its presets, and tensor cores' rates that are divided by."""
    page = text(path)
    presets = [preset for preset in shipped.data.rows if re.search(rf"{preset}(?![\w-])", page)]
    rows = [
        (preset, name)
        for preset in presets
        for name in shipped.rows(preset)
        if name.replace(" ", "-") in page or name in page
    ]
    held = {str(figures.floor(shipped, preset)): f"floor {preset}" for preset in presets}
    held |= {str(figures.time(shipped, *row)): f"ms {' '.join(row)}" for row in rows}
    rates = {str(one): f"ceiling {what}" for what in ("mma_f16", "mma_tf32", "wgmma_f16", "wgmma_tf32")
             if (one := figures.ceiling(shipped, what))}  # fmt: skip
    own = re.sub(r"<!-- table:.*?<!-- end table -->|```.*?```|<!--=.*?<!--/-->", " ", page, flags=re.DOTALL)
    typed = re.findall(r"(?<![\d.,])\d+\.\d+(?!\d| ?[KMGT]i?B)", own)
    typed += re.findall(r"/ (\d+)(?=e12| = | TFLOP)", own)
    wrong = [f"{one} is <!--= {(held | rates)[one]} -->" for one in typed if one in (held if "." in one else rates)]
    assert not wrong


@each(SITTINGS)
def test_a_lessons_page_can_be_read_at_one_sitting(path):
    """Words of prose, answers included, and tables that are not folded away."""
    open_ = re.sub(r"<details>.*?</details>", "", text(path), flags=re.DOTALL)
    other = r"<!-- (table|exercise): .*?<!-- end \1 -->|```.*?```|<!--.*?-->|^\|.*?$|(?<=\])\([^)]*\)"
    words = re.sub(other, "", text(path), flags=re.DOTALL | re.MULTILINE).split()
    assert sum(bool(re.search(r"\w", word)) for word in words) <= 3200
    assert len(re.findall(r"^\|[ :|-]+\|$", open_, re.MULTILINE)) <= 8


@pytest.mark.parametrize("path", sorted(records.RESULTS.glob("*-as-*.json")), ids=lambda path: path.stem)
def test_what_was_measured_on_a_played_card_is_on_the_steps_page(path):
    rows = [(name, row) for mine in Record.load(path).data.rows.values() for name, row in mine.items()]
    steps = {name for name, row in rows if isinstance(row, StepRow) and not records.older(row, name)}
    shown = {name for page in pages.pages() for name in re.findall(rf"across \S+ (\w+) {path.stem} -->", text(page))}
    assert shown == steps != set()


def test_the_readme_is_short():
    assert len(text(catalog.ROOT / "README.md").splitlines()) <= 90


# --- what lesson 01 says ---


def test_the_first_kernel_prints_what_the_page_shows_and_its_lines_are_the_file_s():
    done = python("-m", "lessons.01_naive.start.hello")
    assert done.stdout == re.search(r"It prints\n\n```\n(.*?)```", text(FIRST), re.DOTALL)[1]
    assert done.stderr == ""

    def lines(source):
        return [re.sub(r"\s*#.*", "", line) for line in source.strip().splitlines()]

    shown = re.search(r"```python\n(@cuda\.jit[^`]*def hello.*?)```", text(FIRST), re.DOTALL)[1]
    assert lines(shown) == lines(text(FIRST.parent / "start" / "hello.py").split("\n\n\n")[1])


@pytest.mark.usefixtures("traced")
def test_the_photograph_shows_what_the_line_of_the_page_computes(tmp_path, capsys):
    source = text(FIRST.parent / "start" / "photograph.py")
    shown, lines = re.findall(r"```python\n([^`]*picture\[row, column\][^`]*)```", text(FIRST))
    assert textwrap.indent(shown, "    ") in source
    copied, *others = [shown.splitlines()[-1].strip(), *lines.splitlines()]
    means = [
        lambda photo: photo, lambda photo: 1 - photo, lambda photo: np.minimum(1.5 * photo, 1),
        lambda photo: photo > 0.5, lambda photo: photo[::-1],
    ]  # fmt: skip
    for i, (line, mean) in enumerate(zip([copied, *others], means, strict=True)):
        edited = tmp_path / f"photograph{i}.py"
        edited.write_text(source.replace(copied, line))
        catalog.load_file(edited).main(tmp_path)
        both = image.imread(tmp_path / "photograph.png")[..., 0]
        photo, picture = np.split(both, 2, axis=1)
        assert f"{tmp_path / 'photograph.png'}\n" in capsys.readouterr().out
        np.testing.assert_allclose(picture, mean(photo), atol=0.01)  # a pixel of the PNG has 256 values


@pytest.mark.skipif(device.gpu_count() > 0, reason="on a GPU the compiler says what is wrong")
@some_days(2)
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("i < block.size", "i < blok.size", r"hello: line \d+: NameError: name 'blok' is not defined.*"),
        ("THREADS = 4", "THREADS = 2000", r"hello\.py:\d+: block \(2000, 1, 1\) has 2000 threads: .* at most 1024"),
        ("i = cuda.grid(1)", "i = cuda.grid(1); print(i)", ""),
    ],
)
def test_a_mistake_in_the_first_kernel_is_one_line_and_what_it_prints_is_printed(tmp_path, old, new, expected):
    edited = tmp_path / "hello.py"
    edited.write_text(text(FIRST.parent / "start" / "hello.py").replace(old, new))
    code = (
        "import importlib, runpy; importlib.import_module('lessons.01_naive.start');"
        f"runpy.run_path({str(edited)!r}, run_name='__main__')"
    )
    done = python("-c", code, code=1 if expected else 0)
    assert re.fullmatch(expected, done.stderr.rstrip("\n"))
    assert expected or done.stdout.startswith("0\n1\n2\n")


def test_before_the_first_kernel_ran_there_is_no_picture_table_or_figure():
    before, after = text(FIRST).split("\n## 2. ")
    assert not re.search(r"!\[|^\||<!--=", before, re.MULTILINE)
    # the whole lesson, which tells all answers, is run at its end
    assert "make 01" not in before + after
    assert "make 01" not in text(FIRST.with_name("convolution.md")).split("\n## 5. ")[0]
