"""Charts from records: drawn whole, the same twice; what is older than the code says so."""

import copy
import re

import pytest
from made import of_now
from msgspec.structs import replace
from pictures import words
from sampling import one_of_each

from common.catalog import catalog, problems
from common.records import records
from common.records.records import MachineCode, PeerRow, Record
from common.report import canvas, charts, figures, pages, table

OLDER = "measured on an older version of the file"


LADDERS = list(dict.fromkeys(step.ladder for step in catalog.steps()))
TRIED = one_of_each(LADDERS, lambda _: "a ladder")


@pytest.fixture(scope="module")
def drawn(shipped):
    """By name, the words of charts of the shipped record, those of some ladders and of no ladder."""
    return {name: words(figure) for ladder in (*TRIED, "") for name, figure in charts.drawn(shipped, ladder)}


def expected(shipped, ladders):
    """The charts of these ladders, and that of no ladder."""
    presets = [one for ladder in ladders for one in problems.timed_presets(ladder) if shipped.rows(one)]
    drawn = {problems.preset(one).ladder for one in presets} & set(figures.ROOFLINES)  # not all on each card
    swept = [
        f"sweep-{preset}-{name}"
        for preset, names in shipped.data.sweeps.items()
        for name in names
        if problems.preset(preset).ladder in ladders
    ]
    return [*presets, *swept, *(f"roofline-{ladder}" for ladder in drawn), "worth"]


def bar(name, row):
    """A step's name as bars have it: with its sign, where it multiplies on tensor cores, and that of an older row."""
    return f"| {' '.join([name, *table.signs().get(name, ''), *('¶' * records.older(row, name))])} |"


def test_there_is_a_chart_of_all_that_was_measured_and_it_is_shipped(shipped, drawn):
    assert sorted(drawn) == sorted(expected(shipped, TRIED))
    for name in expected(shipped, LADDERS):
        pixels = charts.CHARTS / shipped.slug / f"{name}.png"
        assert pixels.read_bytes().startswith(b"\x89PNG")
        assert pixels.stat().st_size > 10_000
    for text in drawn.values():
        assert shipped.gpu_name in text  # whose figures these are
        assert re.search(r"\d{4}-\d\d-\d\d", text)  # and of which day


def test_charts_name_all_that_they_show_bars_in_ladder_order(shipped, drawn):
    for ladder in TRIED:
        presets = [preset for preset in problems.timed_presets(ladder) if shipped.rows(preset)]
        found = {name for preset in presets for name in shipped.rows(preset)}
        steps = [one.name for one in catalog.steps() if one.ladder == ladder and one.name in found]
        if not presets:  # of a lesson that was measured on another card
            continue
        if ladder in figures.ROOFLINES:
            roofline = drawn[f"roofline-{ladder}"]
            assert [name for name in (*steps, *presets) if name not in roofline] == []
        for preset in presets:
            text, rows = drawn[preset], shipped.rows(preset)
            peers = [name for name, row in rows.items() if isinstance(row, PeerRow)]
            assert [name for name in (*peers, "floor", preset) if name not in text] == []
            order = [text.index(bar(name, rows[name])) for name in steps if name in rows]
            assert order
            assert order == sorted(order)


@pytest.mark.parametrize(
    "name", one_of_each(["gemm-4096", "sweep-gemm-4096-gemm_tuned", "roofline-gemm"], lambda _: "a chart")
)
def test_the_same_record_gives_the_same_bytes(shipped, tmp_path, name):
    make = {
        "gemm-4096": lambda: charts.speedups(shipped, "gemm-4096"),
        "roofline-gemm": lambda: charts.roofline(shipped, "gemm"),
    }.get(name, lambda: charts.sweep(shipped, "gemm-4096", "gemm_tuned"))
    first, second = (canvas.save(make(), tmp_path / folder / name) for folder in ("one", "two"))
    assert first.read_bytes() == second.read_bytes()


def test_a_sweep_that_is_older_than_the_code_says_so(shipped):
    made = Record(shipped.path, copy.deepcopy(shipped.data))
    now = of_now("gemm_wide_loads")["source"]
    found = made.data.sweeps["gemm-4096"]
    found["gemm_gone"] = found["gemm_wide_loads"]
    for name, source, says in (
        ("gemm_wide_loads", now, False), ("gemm_wide_loads", "0" * 64, True), ("gemm_gone", now, True)
    ):  # fmt: skip
        found[name] = replace(found[name], source=source)
        assert records.older(found[name], name) == says
        assert (OLDER in words(charts.sweep(made, "gemm-4096", name))) == says


def test_a_step_s_row_that_is_older_than_the_code_is_marked_in_charts_and_tables(shipped):
    rows = {preset: dict(shipped.data.rows[preset]) for preset in ("gemm-2048", "gemm-4096")}
    data = copy.deepcopy(replace(shipped.data, rows=rows))
    for found in data.rows.values():
        found |= {step.name: replace(found[step.name], **of_now(step.name))
                  for step in catalog.everything() if step.name in found}  # fmt: skip
    made, row = Record(shipped.path, data), data.rows["gemm-4096"]["gemm_wide_loads"]

    def shown(words):
        return pages.rendered(f"<!-- table: {words} -->\n<!-- end table -->", made, MachineCode())

    for source, older in ((of_now("gemm_wide_loads")["source"], False), ("0" * 64, True)):
        row.source = source
        found = ["gemm_wide_loads ¶ |" in words(charts.speedups(made, "gemm-4096"))]
        found.append("gemm_wide_loads ¶" in words(charts.roofline(made, "gemm")))
        table = shown("ladder gemm-4096 03_coarsening")
        found.append("| `gemm_wide_loads` ¶ |" in table)
        assert "`gemm_coarsened` ¶" not in table
        assert (f"¶ M{OLDER[1:]}." in table) == older
        # the other lessons' rows stay hidden
        assert "gemm_wide_loads" not in shown("ladder gemm-4096 02_shared_tiling")
        both = shown("times gemm-2048 gemm-4096 gemm_wide_loads")
        (line,) = [one for one in both.splitlines() if one.startswith("| `gemm_wide")]
        found.append(line.count("¶") == 1)  # at 2048 it is of now
        assert found == [older] * len(found)
