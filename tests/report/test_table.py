"""A table is data: a page and a terminal of any width show the same cells."""

import pytest
from processes import shown as printed
from rich.text import Text

from common.report.table import OLDER, SIGNS, Table, markdown

TABLE = Table(
    ["step", "ms", "p20–p80", "% of floor", "× cuBLAS FP32"],
    [
        ["`gemm_naive`", "104", "104–105", "2.1", ""],
        [f"`gemm_wide_loads` {OLDER}", "8.13", "8.12–8.16", "26.6", ""],
        ["`gemm_tf32x3`", "1.13", "1.13–1.14", "78.6", "2.48 (2.46–2.49)"],
        ["*cuBLAS FP32* (row-major)", "2.69", "2.68–2.69", "80.5", ""],
    ],
    "`gemm-4096`: on a card.",
    "a [title]",
    optional=["p20–p80"],
)
PLAIN = {f"gemm_wide_loads {OLDER}": "gemm_wide_loads (older code)", "gemm_tf32x3": "gemm_tf32x3 §"}


def bare(cell):
    text = cell.replace("`", "").replace("*", "")
    return PLAIN.get(text, text)


def test_a_page_has_the_cells_the_note_and_what_marks_mean():
    header, rule, *rows = markdown(TABLE).split("\n\n")[0].splitlines()
    assert header == "| step | ms | p20–p80 | % of floor | × cuBLAS FP32 |"
    assert rule == "| :-- | --: | --: | --: | --: |"
    assert rows[2] == "| `gemm_tf32x3` § | 1.13 | 1.13–1.14 | 78.6 | 2.48 (2.46–2.49) |"
    note, marks = markdown(TABLE).split("\n\n")[1:]
    assert note == TABLE.note
    assert marks == f"§ {SIGNS['§']} {OLDER} Measured on an older version of the file."


@pytest.mark.parametrize("width", [120, 100, 80, 60])
def test_a_terminal_of_any_width_shows_what_the_page_does(width):
    text = printed(TABLE, width)
    assert max(map(len, text.splitlines())) <= width
    assert "a [title]" in text
    lost = {"p20–p80"} if "A wider terminal shows p20–p80 too." in " ".join(text.split()) else set()
    assert bool(lost) == (width == 60)
    for cells in TABLE.rows:
        for name, cell in zip(TABLE.header, cells, strict=True):
            assert name in lost or bare(cell) in text or name == "step"
    assert SIGNS["§"] in " ".join(text.split())


def test_long_texts_are_broken_figures_are_not_and_a_column_without_room_is_left_out():
    long = Table(["name", "why", "ms"], [["a", "word " * 30, "1,234.5"]], left=["why"])
    assert "1,234.5" in printed(long, 40)
    assert printed(long, 40).count("word") == 30
    code = Table(["name", "source"], [["a", Text("x = " + "y" * 40)]], left=["source"], optional=["source"])
    assert "x = " in printed(code, 60)
    assert "x = " not in printed(code, 40)
