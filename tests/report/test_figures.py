"""What each idea was worth: the table's rows come from the record, losses last, and no step is left out."""

import re

import pytest
from made import card, counters, of_now
from sampling import one_of_each

from common.catalog import catalog, problems
from common.records import records
from common.records.records import MachineCode, Profile, Record, StepRow
from common.report import charts, figures, pages, tables
from common.run.messages import Beside
from common.timing import timing

# ms, the run, and the library's time over the step's where they were timed in turn
TIMES = {
    "gemm-4096": {
        "gemm_naive": (100.0, "a", None), "gemm_shared_tile": (20.0, "a", None), "gemm_coarsened": (40.0, "a", None),
        "gemm_wide_loads": (25.0, "b", None),
    },
    "hgemm-4096": {"hgemm_mma": (9.0, "a", 0.2), "hgemm_shared": (4.0, "b", 0.6)},
    "ece408-layer2": {"conv2d_unroll_gemm": (10.0, "a", None), "conv2d_fused_unroll_gemm": (4.0, "a", None)},
}  # fmt: skip


def row(name, preset, ms, run, ratio):
    time = timing.summarise([ms] * 10)
    beside = ratio and Beside(time, time, ratio, ratio, ratio, 0.0, peer="cuBLAS FP16")
    known = {"shape": problems.preset(preset).shape(), "timing": time, "run": run, "beside": beside or None}
    return StepRow(prepare_ms=None, workspace_bytes=0, **known, **of_now(name))


@pytest.fixture
def tiny():
    run = {"date": "2026-01-01", "driver": "1.2", "cuda": "13.0", "packages": {}}
    data = card(runs={"a": run, "b": run})
    data.rows = {
        preset: {name: row(name, preset, *how) for name, how in mine.items()} for preset, mine in TIMES.items()
    }
    waits = {"gemm_naive": {"not_selected": 3.0}, "gemm_shared_tile": {"mio_throttle": 2.0, "wait": 1.0}}
    data.profile["gemm-4096"] = {
        name: Profile(
            kernels=[counters(stalls=stalls, issue_pct=40.0, l1_pct=93.6)], shape={}, run="a", **of_now(name)
        )
        for name, stalls in waits.items()
    }
    return Record(catalog.ROOT / "nvidia-test-9.json", data)


def test_the_table_has_what_the_record_has_and_losses_are_last(tiny):
    table = tables.worth(tiny)
    shown = [[re.search(r"`(\w+)`", row[0])[1], *row[1:]] for row in table.rows]
    assert shown == [
        ["gemm_shared_tile", "`gemm_naive`", "gemm-4096", "5.00", "L1 94%", "mio throttle"],
        ["hgemm_shared", "`hgemm_mma`", "hgemm-4096", "3.00", "", ""],
        ["conv2d_fused_unroll_gemm", "`conv2d_unroll_gemm`", "ece408-layer2", "2.50", "", ""],
        ["gemm_wide_loads", "`gemm_coarsened`", "gemm-4096", "1.60", "", ""],
        ["gemm_coarsened", "`gemm_shared_tile`", "gemm-4096", "**0.50: a loss**", "mio throttle", ""],
    ]
    title = catalog.find("gemm_coarsened").title.rstrip(".")
    assert table.rows[-1][0] == f"[`gemm_coarsened`](03_coarsening/gemm_coarsened.py): {title}"
    assert "`gemm_tuned` on gemm-4096" in table.note
    figure = pages.rendered("<!--= worth gemm-4096 gemm_coarsened --><!--/-->", tiny, MachineCode())
    assert ">0.50<" in figure


@pytest.mark.parametrize(
    "slug", one_of_each([None, records.REFERENCE_GPU, "nvidia-h100-80gb-hbm3"], lambda _: "a card")
)
def test_every_step_with_one_before_it_is_in_the_table_or_said_not_to_be_measured(tiny, slug):
    table = tables.worth(records.other(slug) if slug else tiny)
    _, _, lacking = table.note.partition("Not measured")
    for step in catalog.steps():
        rows = [row for row in table.rows if str(row[0]).startswith(f"[`{step.name}`]")]
        known = len(rows) + lacking.count(f"`{step.name}` on")
        assert known == (len(figures.main_presets(step)) if step.predecessor else 0), step.name
    losses = ["a loss" in str(row[3]) for row in table.rows]
    assert losses == sorted(losses)


def test_the_chart_has_a_bar_for_each_row_and_a_colour_for_losses(tiny):
    bars = charts.worth(tiny).axes[0].patches
    assert [round(1 + bar.get_width(), 2) for bar in bars] == [5.0, 3.0, 2.5, 1.6, 0.5]
    assert len({bar.get_facecolor() for bar in bars[:-1]} - {bars[-1].get_facecolor()}) == 1
