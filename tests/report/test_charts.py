"""Charts from records, and the tables in the pages: drawn whole, the same twice, never stale."""

import copy
import re
import xml.etree.ElementTree as ElementTree

import pytest
from made import card, of_now
from msgspec.structs import replace
from pixels import without_pixels

from common.catalog import catalog, exercises, problems, schema, sources
from common.catalog.sources import Code
from common.records import current, entries, records
from common.records.entries import MachineCode, PeerRow
from common.records.records import Record
from common.report import charts, figures, kinds, pages, speeds, table


@pytest.fixture(scope="module")
def shipped():
    return Record.load(records.RESULTS / f"{records.REFERENCE_GPU}.json")


SWEPT = ("gemm_rectangular_tiles", "gemm_tuned")
# the charts of ``small``
SMALL = ("gemm-2048", "gemm-4096", *(f"sweep-gemm-4096-{name}" for name in SWEPT), "roofline-gemm")


@pytest.fixture
def small(shipped):
    """The shipped record with two presets of one ladder, and one sweep of each form: a line and a map."""
    data = copy.deepcopy(shipped.data)
    sweeps = data.sweeps["gemm-4096"]
    data.sweeps = {"gemm-4096": {name: sweeps[name] for name in SWEPT}}
    data.rows = {name: data.rows[name] for name in ("gemm-2048", "gemm-4096")}
    return Record(shipped.path, data)


def texts(svg):
    return " | ".join(
        "".join(node.itertext()) for node in ElementTree.parse(svg).iter() if node.tag.endswith("}text")
    )


def bar(name, row=None):
    """A step's name as bars have it: with its sign, where it multiplies on tensor cores, and that of an older row."""
    return f"| {' '.join([name, *table.signs().get(name, ''), *('¶' * current.older(row, name))])} |"


def renewed(record):
    """A copy of the record in which all was measured on the code of now."""
    data = copy.deepcopy(record.data)
    known = {step.name: of_now(step.name) for step in (*catalog.steps(), *catalog.experiments())}
    for found in (*data.rows.values(), *data.profile.values(), *data.sweeps.values()):
        found |= {name: replace(one, **known[name]) for name, one in found.items() if name in known}
    for name, found in data.sanitizer.items():
        found |= {tool: replace(one, **known[name]) for tool, one in found.items()}
    for found in data.accuracy.values():
        found |= {name: replace(one, code=Code(**known[name])) for name, one in found.items() if one.code}
    return Record(record.path, data)


def measured(record, preset):
    """Names of the preset's rows: steps in ladder order, then the rest."""
    rows = record.rows(preset)
    return [step.name for step in catalog.steps() if step.name in rows], [
        n for n, r in rows.items() if isinstance(r, PeerRow)
    ]


@pytest.fixture(scope="module")
def drawn(shipped, tmp_path_factory):
    """All charts of the shipped record; as pixels, which take as long, those alone that ``small`` has."""
    folder = tmp_path_factory.mktemp("drawn")
    save = charts.save

    def saved(figure, stem):
        if stem.name in SMALL:
            return save(figure, stem)
        with pytest.MonkeyPatch.context() as patch:
            without_pixels(patch)
            return save(figure, stem)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(charts, "save", saved)
        return charts.draw_all(shipped, folder)


def test_every_chart_of_the_shipped_record(shipped, drawn):
    written, folder = drawn, drawn[0].parent
    ladders = list(dict.fromkeys(step.ladder for step in catalog.steps()))
    presets = [p for ladder in ladders for p in problems.timed_presets(ladder)]
    sweeps = [path.stem for path in written if path.stem.startswith("sweep-")]
    recorded = shipped.data.sweeps
    assert sorted(sweeps) == sorted(f"sweep-{preset}-{name}" for preset in recorded for name in recorded[preset])
    by_layer = [path.stem for path in written if path.stem.startswith("layers-")]
    assert by_layer == [f"layers-{ladder}" for ladder in speeds.CHARTED if ladder in ladders]
    written = [path for path in written if path.stem not in (*sweeps, *by_layer)]
    assert [path.stem for path in written if "roofline" not in path.stem] == presets
    assert [path.stem for path in written if "roofline" in path.stem] == [f"roofline-{name}" for name in ladders]
    for path in written:
        assert path.parent.name == shipped.slug
        pixels = path if path.stem in SMALL else charts.CHARTS / shipped.slug / path.name  # as shipped
        assert pixels.read_bytes().startswith(b"\x89PNG")
        assert pixels.stat().st_size > 10_000
        text = texts(path.with_suffix(".svg"))
        assert shipped.gpu_name in text  # whose figures these are
        assert re.search(r"\d{4}-\d\d-\d\d", text)  # and of which day
        if path.stem.startswith("roofline-"):
            ladder = path.stem.removeprefix("roofline-")
            expected = [step.name for step in catalog.steps() if step.ladder == ladder]
            expected += problems.timed_presets(ladder)
        else:
            steps, peers = measured(shipped, path.stem)
            assert steps
            assert peers
            expected = [*steps, *peers, "floor", path.stem]
            order = [text.index(bar(name, shipped.row(path.stem, name))) for name in steps]
            assert order == sorted(order)  # bars in ladder order
        for name in expected:
            assert name in text, (path.stem, name)
    assert {path.suffix for path in folder.iterdir()} == {".png", ".svg"}


def test_the_same_record_gives_the_same_bytes(small, drawn, tmp_path):
    """Those of a small record are, drawn once more, as they were among all."""
    again = charts.draw_all(small, tmp_path)
    assert sorted(path.stem for path in again) == sorted(SMALL)
    files = sorted((tmp_path / small.slug).iterdir())
    assert len(files) == 6 + 2 * len(small.data.sweeps["gemm-4096"])
    for path in files:
        assert path.read_bytes() == (drawn[0].parent / path.name).read_bytes(), path.name


@pytest.mark.usefixtures("no_pixels")
def test_a_chart_shows_times_and_speed_ups_of_its_record(shipped, tmp_path):
    data = copy.deepcopy(shipped.data)
    rows = data.rows["ece408-layer1"]
    for name, (ms, low, high) in {"conv2d_naive": (80.0, 79.0, 81.0), "conv2d_unrolled": (5.0, 4.9, 5.1)}.items():
        rows[name].timing = replace(rows[name].timing, median_ms=ms, p20_ms=low, p80_ms=high)
    charts.save(charts.speedups(Record(shipped.path, data), "ece408-layer1"), tmp_path / "chart")
    text = texts(tmp_path / "chart.svg")
    assert "1.00×  80.0 ms" in text
    assert "16.0×  5.00 ms" in text


@pytest.mark.usefixtures("no_pixels")
def test_a_sweep_that_is_older_than_the_code_says_so(shipped, tmp_path):
    older = "measured on an older version of the file"
    made = Record(shipped.path, copy.deepcopy(shipped.data))
    now = sources.provenance(catalog.find("gemm_wide_loads").path)
    found = made.data.sweeps["gemm-4096"]
    found["gemm_gone"] = found["gemm_wide_loads"]
    for name, source, helpers, says in (
        ("gemm_wide_loads", now.source, now.helpers, False),
        ("gemm_wide_loads", now.source, None, False),  # of before helpers were noted
        ("gemm_wide_loads", "0" * 64, now.helpers, True),
        ("gemm_wide_loads", now.source, {**now.helpers, "wide": "0" * 64}, True),
        ("gemm_gone", now.source, now.helpers, True),
    ):
        found[name] = replace(found[name], source=source, helpers=helpers)
        assert current.sweep(made, "gemm-4096", name) != says
        charts.save(charts.sweep(made, "gemm-4096", name), tmp_path / "chart")
        assert (older in texts(tmp_path / "chart.svg")) == says
    assert not current.sweep(made, "gemm-2048", "gemm_wide_loads")  # there is none


@pytest.mark.usefixtures("no_pixels")
def test_a_step_s_row_that_is_older_than_the_code_is_marked_in_charts_and_tables(shipped, tmp_path):
    both = "times gemm-2048 gemm-4096 gemm_wide_loads"
    said = "¶ Measured on an older version of the file."
    made = renewed(shipped)
    row = made.data.rows["gemm-4096"]["gemm_wide_loads"]

    def chart(figure):
        return texts(charts.save(figure, tmp_path / "chart").with_suffix(".svg"))

    def shown(words, record):
        return pages.rendered(f"<!-- table: {words} -->\n<!-- end table -->", record, NO_CODE)

    now = of_now("gemm_wide_loads")
    changed = {**now, "helpers": {**now["helpers"], "wide": "0" * 64}}
    for code_of_then, older in ((now, False), ({**now, "helpers": None}, False), (changed, True)):
        row.source, row.helpers = code_of_then["source"], code_of_then["helpers"]
        found = ["gemm_wide_loads ¶ |" in chart(charts.speedups(made, "gemm-4096"))]
        found.append("gemm_wide_loads ¶" in chart(charts.roofline(made, "gemm")))
        for words in ("ladder gemm-4096 03_coarsening", "experiments gemm-4096 gemm_wide_loads"):
            found.append("| `gemm_wide_loads` ¶ |" in shown(words, made))
            assert ("`gemm_coarsened`" in shown(words, made)) == words.startswith("ladder")
            assert "`gemm_coarsened` ¶" not in shown(words, made)
            assert (said in shown(words, made)) == older
        # the other lessons' rows stay hidden
        assert "gemm_wide_loads" not in shown("ladder gemm-4096 02_shared_tiling", made)
        (line,) = [one for one in shown(both, made).splitlines() if one.startswith("| `gemm_wide")]
        found.append(line.count("¶") == 1)  # at 2048 it is of now
        assert found == [older] * len(found)


# --- pages ---

RECORD = {
    "ceilings": {"copy_gbs": 1000.0, "fma_gflops": 10_000.0, "run": "2026-01-02T00:00:00Z"},
    "runs": {"2026-01-02T00:00:00Z": {"date": "2026-01-02", "driver": "1.2", "cuda": "13.0", "packages": {}}},
}


def made(ms, kind="step", **extra):
    timing = {"median_ms": ms, "p20_ms": ms * 0.99, "p80_ms": ms * 1.01, "median_error": 0.001, "repeats": 10}
    return {
        "kind": kind, "shape": {"M": 2048, "N": 2048, "K": 2048}, "timing": timing, "prepare_ms": None,
        "workspace_bytes": 0, "run": "2026-01-02T00:00:00Z", **extra,
    }  # fmt: skip


@pytest.fixture
def own(tmp_path):
    """A record whose figures are round: gemm-2048 is 17.18 GFLOP, so 1.718 ms at 10 TFLOP/s."""
    rows = {
        "gemm_naive": made(17.18, **of_now("gemm_naive")),
        "gemm_naive_unsigned": made(8.59, **of_now("gemm_naive_unsigned")),
        "cuBLAS FP32": made(3.436, "peer", layout="row-major", library="CUDA 13"),
        "cuBLAS TF32": made(0.5, "peer", layout="row-major", library="CUDA 13"),
    }
    return Record(tmp_path / "nvidia-test-9.json", card(**RECORD, rows={"gemm-2048": rows}))


NO_CODE = MachineCode()


def cells(text):
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.relative_to(catalog.ROOT).as_posix())
def test_the_tables_of_a_page_are_not_stale(path, shipped):
    text = path.read_text(encoding="utf-8")
    assert pages.rendered(text, shipped, records.load_code()) == text, "python -m common charts"


@pytest.mark.parametrize("path", pages.pages(), ids=lambda path: path.relative_to(catalog.ROOT).as_posix())
def test_the_markers_of_a_page_are_in_pairs(path):
    text = path.read_text(encoding="utf-8")
    marks = re.findall(r"<!-- (table: |end table|exercise: |end exercise)|<!--(= |/)", text)
    kinds = [block or inline for block, inline in marks]
    assert kinds[::2] == [kind for kind in kinds if kind in ("table: ", "exercise: ", "= ")]
    assert kinds[1::2] == [kind for kind in kinds if kind in ("end table", "end exercise", "/")]
    for opening, closing in zip(kinds[::2], kinds[1::2], strict=True):
        assert (opening, closing) in (("table: ", "end table"), ("exercise: ", "end exercise"), ("= ", "/"))
    # a marker that is not understood would stay as it is for ever
    understood = re.findall(
        r"<!-- table: \w+(?: [\w.-]+)* -->\n|<!-- exercise: \w+ -->\n|<!--= \w+(?: [\w.-]+)* -->", text
    )
    assert len(understood) == len(kinds[::2])


def test_the_page_of_the_shipped_record_is_not_stale(shipped):
    page = records.RESULTS / f"{shipped.slug}.md"
    assert page.read_text(encoding="utf-8") == pages.summary(shipped), "python -m common charts"
    for chart in re.findall(r"\]\((charts/[^)]+)\)", page.read_text(encoding="utf-8")):
        assert (records.RESULTS / chart).is_file(), chart


@pytest.mark.parametrize("text", ["<!-- table: weather -->\nold\n<!-- end table -->", "<!--= weather -->old<!--/-->"])
def test_an_unknown_kind_raises_and_lists_the_known(text, own):
    with pytest.raises(ValueError, match="'weather' is unknown: kinds are "):
        pages.rendered(text, own, NO_CODE)


def test_an_exercise_stands_where_its_marker_is(own):
    one = exercises.everything()[0]
    text = f"before\n<!-- exercise: {one.name} -->\nold\n<!-- end exercise -->\nafter\n"
    new = pages.rendered(text, own, NO_CODE)
    assert f"> Exercise **{one.number}** [`{one.name}`](exercises/{one.name}.py), {one.kind}: {one.title}. " in new
    assert f"`python -m common grade {one.number}`\n<!-- end exercise -->\nafter\n" in new
    assert pages.rendered(new, own, NO_CODE) == new
    with pytest.raises(ValueError, match="exercise 'nothing' is unknown"):
        pages.rendered(text.replace(one.name, "nothing"), own, NO_CODE)
    with pytest.raises(ValueError, match=r"marker <!-- exercise: .* has no end"):
        pages.rendered(text.replace("end exercise", "end"), own, NO_CODE)


def test_only_what_is_between_the_markers_changes(own):
    block, inline = "<!-- table: ladder gemm-2048 -->\n", "<!--= ms gemm-2048 gemm_naive -->"
    text = f"before\n{block}old\n<!-- end table -->\nmiddle {inline}old<!--/-->, end\n"
    new = pages.rendered(text, own, NO_CODE)
    assert new.startswith(f"before\n{block}| step | ms |")
    assert new.endswith(f"\n<!-- end table -->\nmiddle {inline}17.2<!--/-->, end\n")
    assert "old" not in new
    assert pages.rendered(new, own, NO_CODE) == new
    assert pages.rendered("no markers here\n", own, NO_CODE) == "no markers here\n"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- table: problems -->\nold\n\nprose\n\n<!-- table: problems -->\nold\n<!-- end table -->\n",
        "<!--= ms gemm-2048 gemm_naive -->17.2 ms, prose <!--= ms gemm-2048 gemm_naive -->17.2<!--/-->\n",
    ],
    ids=["table", "figure"],
)
def test_a_missing_end_marker_does_not_cost_the_text_after_it(text, own):
    try:
        new = pages.rendered(text, own, NO_CODE)
    except ValueError:
        return  # said, nothing lost
    assert "prose" in new


def test_a_ladder_table(own):
    table = cells(pages.rendered("<!-- table: ladder gemm-2048 -->\n<!-- end table -->", own, NO_CODE))
    header, _, first, fp32, tf32 = table
    assert header == ["step", "ms", "p20–p80", "× first", "× previous", "GFLOP/s", "GB/s", "% of floor"]
    assert first == ["`gemm_naive`", "17.2", "17.0–17.4", "1.00", "1.00", "1,000", "3", "10.0"]
    assert fp32 == ["*cuBLAS FP32* (row-major)", "3.44", "3.40–3.47", "5.00", "", "5,000", "15", "50.0"]
    # the FP32 floor does not bind the tensor cores
    assert tf32[-1] == ""
    assert tf32[3] == "34.36"


ONLY = {
    "nothing": lambda name: False,
    "libraries": lambda name: name[:2] == "cu",
    "lesson 01": lambda name: name in ("gemm_naive", "conv2d_naive", "conv3d_direct"),
    "lesson 04": lambda name: name in ("gemm_tuned", "conv2d_one_channel"),
    "lesson 06": lambda name: name in ("hgemm_pipelined", "conv2d_tensor_core"),
}


@pytest.mark.parametrize("part", ONLY)
def test_every_page_shows_a_card_on_which_only_a_part_was_measured(shipped, tmp_path, part):
    kept = {
        preset: {name: row for name, row in rows.items() if ONLY[part](name)}
        for preset, rows in shipped.data.rows.items()
    }
    for rows in (kept, {preset: rows for preset, rows in kept.items() if rows}):
        record = Record(tmp_path / "nvidia-test-9.json", replace(shipped.data, rows=rows))
        for path in pages.pages():
            assert pages.rendered(path.read_text(encoding="utf-8"), record, NO_CODE)
        summary = pages.summary(record)
        assert ("Nothing has been measured for any preset yet" in summary) == (part == "nothing")


def test_figures_are_numbers_and_how_they_are_shown(own):
    for kind, words, found in (
        ("ms", ["gemm-2048", "cuBLAS-FP32"], figures.Figure(3.436, "3.44")),
        ("ratio", ["gemm-2048", "gemm_naive", "cuBLAS-TF32"], figures.Figure(17.18 / 0.5, "34.4")),
        ("ms", ["gemm-2048", "gemm_lost"], None),
    ):
        assert figures.named(kind, own, NO_CODE, words) == found
    assert figures.Figure(2000.4, "2,000").shown == 2000.0
    with pytest.raises(ValueError, match=r"ms gemm-2048: must be ms\(record"):
        figures.named("ms", own, NO_CODE, ["gemm-2048"])


def test_an_experiments_table_compares_with_the_step(own):
    text = pages.rendered("<!-- table: experiments gemm-2048 gemm_naive -->\n<!-- end table -->", own, NO_CODE)
    table = cells(text)
    assert table[0][3] == "× gemm_naive"
    assert [line[0] for line in table[2:]] == ["`gemm_naive`", "`gemm_naive_unsigned`"]
    assert table[3][1:4] == ["8.59", "8.50–8.68", "2.00"]
    assert "NVIDIA Test 9 (driver 1.2, CUDA 13.0) on 2026-01-02" in text


def test_times_stand_side_by_side_each_line_against_the_one_above(own):
    own.data.rows["gemm-4096"] = schema.read(
        {"gemm_naive": made(137.4, **of_now("gemm_naive")), "cuBLAS FP32": made(27.48, "peer")},
        dict[str, entries.Row],
    )
    words = "times gemm-2048 gemm-4096 gemm_naive gemm_naive_unsigned"
    table = cells(pages.rendered(f"<!-- table: {words} -->\n<!-- end table -->", own, NO_CODE))
    assert [line[0] for line in table] == [
        "step", ":--", "`gemm_naive`", "`gemm_naive_unsigned`", "*cuBLAS FP32*", "*floor*"
    ]  # fmt: skip
    assert table[0][1:3] == ["`gemm-2048`, ms", "times as fast"]
    assert table[2][1:3] == ["17.2", ""]
    assert table[3][1:3] == ["8.59", "2.00"]
    assert table[4][1:3] == ["3.44", "2.50"]
    assert (table[2][4], table[3][4:]) == ("137", ["", "", ""])
    assert table[4][4:6] == ["27.5", "5.00"]  # where the second step was not timed


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        ("ms gemm-2048 gemm_naive", "17.2"),
        ("ms gemm-2048 cuBLAS-FP32", "3.44"),
        ("ratio gemm-2048 gemm_naive gemm_naive_unsigned", "2.00"),
        ("ratio gemm-2048 gemm_naive cuBLAS-FP32", "5.00"),
        ("share gemm-2048 gemm_naive", "10.0"),
        ("ms gemm-4096 gemm_naive", "?"),
        ("ratio gemm-2048 gemm_naive gemm_lost", "?"),
        ("perfma gemm_naive", "?"),
        ("counter gemm-2048 gemm_naive issue_pct", "?"),
        ("ceiling copy", "1.0"),
        ("ceiling fma", "10"),
        ("ceiling mma_f16", "?"),
    ],
)
def test_figures_in_a_sentence(own, figure, text):
    opening = f"<!--= {figure} -->"
    assert pages.rendered(f"{opening}old<!--/-->", own, NO_CODE) == f"{opening}{text}<!--/-->"


figures.load_kinds()


@pytest.mark.parametrize("kind", kinds.TABLES)
def test_every_table_can_be_written_without_any_record(kind):
    arguments = {
        "ladder": "gemm-2048", "experiments": "gemm-2048 gemm_naive", "code": "gemm_naive",
        "profile": "gemm-2048 gemm_naive", "steps": "01_naive", "mix": "gemm_naive", "layers": "gemm_naive",
        "lines": "gemm_naive", "useful": "gemm_naive", "exercises": "01_naive",
        "times": "gemm-2048 gemm_naive", "tiles": "conv3d_implicit_gemm",
        "swept": "gemm-4096 gemm_coarsened gemm_tuned", "picture": "training-curves the curves",
        "epilogues": "conv3d_implicit_gemm_precomputed c3d-conv3a",
    }.get(kind, "")  # fmt: skip
    opening = f"<!-- table: {kind} {arguments}".rstrip() + " -->"
    new = pages.rendered(f"{opening}\nold\n<!-- end table -->", None, NO_CODE)
    assert "old" not in new
    if kind not in ("steps", "problems", "exercises", "tiles"):
        assert re.search(r"Nothing has been measured|not (compiled|profiled|timed) yet", new)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00379, "0.00379"), (0.0123456, "0.0123"), (1.0, "1.00"), (17.18, "17.2"), (99.94, "99.9"), (1234.4, "1234")],
)
def test_milliseconds_have_three_digits(value, text):
    assert figures.milliseconds(value) == text
