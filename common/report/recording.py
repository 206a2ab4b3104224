"""Outcomes of tasks into records."""

from __future__ import annotations

from typing import Any

from common.book import catalog, packages
from common.jobs.run import Outcome
from common.measure import timing
from common.report import records
from common.report.records import Record
from common.workers.isolate import Result


def record_code(outcomes: list[Outcome]) -> None:
    """Write compiled outcomes (for one architecture, with machine code) as the machine-code record."""
    steps = records.load_code()["steps"]
    for outcome in outcomes:
        steps[outcome.step.name] = {
            "preset": outcome.preset,
            "source": outcome.result["source"],
            "helpers": outcome.result["helpers"],
            "kernels": _kept(outcome.result["kernels"]),
            "other_presets": {k: _kept(v) for k, v in outcome.result["other_presets"].items()},
        }
    known = {step.name for step in (*catalog.steps(), *catalog.experiments())}
    steps = {name: value for name, value in steps.items() if name in known}
    tools = ("numba-cuda", "nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12", "nvidia-cuda-nvdisasm")
    records.save_code(steps, packages.versions(tools))


def _kept(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what follows from the rest: see :class:`common.code.loops.HotLoop`."""
    plain = [{key: value for key, value in kernel.items() if key != "float64"} for kernel in kernels]
    return [{**kernel, "hot": {key: kernel["hot"][key] for key in ("what", "widths", "lines")}} for kernel in plain]


def record_step(record: Record, run: str, outcome: Outcome) -> None:
    """Store a timed outcome."""
    assert outcome.preset is not None
    kept = (
        "timing",
        "prepare_ms",
        "first_launch_ms",
        "workspace_bytes",
        "elements_compared",
        "source",
        "helpers",
        "shape",
    )
    row = {key: outcome.result[key] for key in kept}
    if outcome.result.get("imports"):
        row["imports"] = outcome.result["imports"]
    if outcome.step.precision != catalog.PRECISIONS[0]:
        row["precision"] = outcome.step.precision
    if outcome.result.get("beside"):
        row["beside"] = outcome.result["beside"]
    record.put(outcome.preset, outcome.step.name, {"kind": "step", "measure": timing.MEASURE_VERSION, **row}, run)


def record_peers(record: Record, run: str, preset: str, result: Result) -> None:
    """Store a peer result's rows."""
    for row in result["rows"]:
        name = row["peer"]
        kept = {key: row[key] for key in ("layout", "library", "kernels", "timing")}
        entry = {"kind": "peer", "measure": timing.MEASURE_VERSION, "shape": result["shape"], **kept}
        record.put(preset, name, entry, run)
