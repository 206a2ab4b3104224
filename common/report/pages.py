"""Tables and figures inside Markdown pages, written between markers from records: none is typed by hand.

A block is ``<!-- table: KIND ARGUMENTS -->`` to ``<!-- end table -->``; KIND is one of TABLES. A figure in a sentence
is ``<!--= KIND ARGUMENTS -->`` to ``<!--/-->``; KIND is one of FIGURES.
Pages show the reference GPU's record, and another where a marker names it; a figure's date stands in the table's
last line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.book import catalog, exercises, problems, store
from common.book.catalog import Step
from common.book.problems import Problem
from common.code import sass
from common.measure import profiler, sanitizer
from common.report import agreement, layers, records
from common.report.records import Record, Row

# What stands between two markers must hold no other opening: a forgotten end is said, not swallowed.
_BLOCK = re.compile(
    r"(<!-- table: (\w+)((?: [\w.-]+)*) -->\n)((?:(?!<!-- table:).)*?)(<!-- end table -->)", re.DOTALL
)

_INLINE = re.compile(r"(<!--= (\w+)((?: [\w.-]+)*) -->)((?:(?!<!--=).)*?)(<!--/-->)", re.DOTALL)


def pages() -> list[Path]:
    """Every page that may hold a table."""
    return [catalog.ROOT / "README.md", *sorted(catalog.LESSONS.glob("*/README.md"))]


def rendered(text: str, record: Record | None, code: dict[str, Any]) -> str:
    """The page with each table and figure written anew; raises ValueError at a kind that is unknown."""

    def write(match: re.Match[str], kinds: dict[str, Writer], end: str) -> str:
        opening, kind, arguments, _, closing = match.groups()
        if kind not in kinds:
            raise ValueError(f"{opening.strip()}: kind {kind!r} is unknown: kinds are {', '.join(kinds)}")
        return f"{opening}{kinds[kind](record, code, arguments.split())}{end}{closing}"

    for opening, whole, what in (("<!-- table:", _BLOCK, "table"), ("<!--=", _INLINE, "figure")):
        if text.count(opening) != len(whole.findall(text)):
            raise ValueError(f"a {what} marker {opening} ... has no end, or is not written as it must be")
    text = _BLOCK.sub(lambda match: write(match, TABLES, "\n"), text)
    return _INLINE.sub(lambda match: write(match, FIGURES, ""), text)


def update(record: Record | None) -> list[Path]:
    """Rewrite the tables of every page; returns the pages that changed."""
    code = records.load_code()
    changed = []
    for path in pages():
        old = store.read_text(path)
        try:
            new = rendered(old, record, code)
        except ValueError as error:
            raise ValueError(f"{store.shown(path)}: {error}") from None
        if new != old:
            store.write(path, new)
            changed.append(path)
    return changed


def summary(record: Record) -> str:
    """A page of its own for one GPU: every ladder table and chart."""
    lines = [f"# {record.gpu_name}", "", _ceilings(record, {}, []), ""]
    for ladder in problems.LADDERS:
        for preset in problems.timed_presets(ladder):
            if record.rows(preset):
                lines += [f"## {preset}", "", f"![{preset}](charts/{record.slug}/{preset}.png)", ""]
                lines += [_ladder(record, {}, [preset]), ""]
        if record.ceilings and any(record.rows(p) for p in problems.timed_presets(ladder)):
            lines += [f"![roofline, {ladder}](charts/{record.slug}/roofline-{ladder}.png)", ""]
        if ladder in layers.CHARTED and any(record.rows(p) for p in problems.timed_presets(ladder)):
            lines += [f"![{ladder}, layer by layer](charts/{record.slug}/layers-{ladder}.png)", ""]
    if record.sanitizer():
        lines += ["## compute-sanitizer", "", _sanitizer(record, {}, []), ""]
    return "\n".join(lines).rstrip() + "\n"


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table, the first column left-aligned and the others right."""
    rule = [":--"] + ["--:"] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def milliseconds(value: float) -> str:
    """Three significant digits, never in exponent form."""
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:#.3g}" if value >= 1e-4 else f"{value:.{2 - math.floor(math.log10(value))}f}"


def ladder_cells(record: Record, preset: str, steps: list[Step]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a ladder's table: the given steps that have rows, then the peers."""
    found = record.rows(preset)
    timed = [(step, found[step.name]) for step in steps if step.name in found]
    with_prepare = any(row["prepare_ms"] is not None for _, row in timed)
    with_workspace = any(row["workspace_bytes"] for _, row in timed)
    header = ["step", "ms", "p20–p80", "× first", "× previous", "GFLOP/s", "GB/s", "% of floor"]
    header += ["prepare ms"] * with_prepare + ["workspace MB"] * with_workspace
    body = []
    first = previous = timed[0][1]["timing"]["median_ms"] if timed else 0.0
    for step, row in timed:
        timing = row["timing"]
        ms = timing["median_ms"]
        figures = record.derive(preset, row)
        cells = [f"`{step.name}`", *_times(timing), f"{first / ms:.2f}", f"{previous / ms:.2f}"]
        cells += (
            [f"{figures.gflops:,.0f}", f"{figures.gbs:,.0f}", f"{figures.percent_of_floor:.1f}"]
            if figures
            else [""] * 3
        )
        if with_prepare:
            cells.append("" if row["prepare_ms"] is None else milliseconds(row["prepare_ms"]))
        if with_workspace:
            cells.append(f"{row['workspace_bytes'] / 1e6:,.0f}" if row["workspace_bytes"] else "")
        body.append(cells)
        if not step.experiment:
            previous = ms
    for name, row in sorted(found.items()):
        if row["kind"] == "peer":
            figures = record.derive(preset, row)
            ms = row["timing"]["median_ms"]
            cells = [
                f"*{records.spoken(name, row)}* ({row['layout']})",
                *_times(row["timing"]),
                f"{first / ms:.2f}" if first else "",
                "",
            ]
            if figures:
                tf32 = name.endswith("TF32")  # the FP32 floor does not bind the tensor cores
                share = "" if tf32 else f"{figures.percent_of_floor:.1f}"
                cells += [f"{figures.gflops:,.0f}", f"{figures.gbs:,.0f}", share]
            body.append(cells + [""] * (len(header) - len(cells)))
    return header, body


def _times(timing: dict[str, Any]) -> list[str]:
    return [
        milliseconds(timing["median_ms"]),
        f"{milliseconds(timing['p20_ms'])}–{milliseconds(timing['p80_ms'])}",
    ]


def _ladder(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``ladder PRESET [LESSON]``: every step (of the lesson), the peers, the floor."""
    preset, *rest = arguments
    problem = problems.preset(preset)
    if record is None or not record.rows(preset):
        return _nothing(preset)
    steps = [s for s in catalog.steps() if s.ladder == problem.ladder]
    header, body = ladder_cells(record, preset, steps)  # all, so that speed-ups count from the ladder's first
    hidden = {f"`{s.name}`" for s in steps if rest and s.lesson != rest[0]}
    body = [cells for cells in body if cells[0] not in hidden]
    lessons = rest or catalog.lessons()
    twins = [(step, row) for step, row in record.channels_last(preset) if step.lesson in lessons]
    at = next((i for i, cells in enumerate(body) if cells[0].startswith("*")), len(body))
    body[at:at] = [_twin_cells(record, preset, header, step, row) for step, row in twins]
    return table(header, body) + "\n\n" + _footnote(record, preset)


def _twin_cells(record: Record, preset: str, header: list[str], step: Step, row: Row) -> list[str]:
    """A step's row on the channels-last twin of a preset, under the preset's header, compared with the first."""
    ms = row["timing"]["median_ms"]
    steps = [record.row(preset, s.name) for s in catalog.steps()]
    first = next((r["timing"]["median_ms"] for r in steps if r), 0.0)
    figures = record.derive(problems.CHANNELS_LAST[preset], row)
    cells = {"step": f"`{step.name}` (NHWC)", "× first": f"{first / ms:.2f}" if first else ""}
    cells["ms"], cells["p20–p80"] = _times(row["timing"])
    if figures:
        cells["GFLOP/s"], cells["GB/s"] = f"{figures.gflops:,.0f}", f"{figures.gbs:,.0f}"
        cells["% of floor"] = f"{figures.percent_of_floor:.1f}"
    if row["prepare_ms"] is not None:
        cells["prepare ms"] = milliseconds(row["prepare_ms"])
    return [cells.get(title, "") for title in header]


def _experiments(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``experiments PRESET STEP``: the step, then its variants."""
    preset, name = arguments
    if record is None or not record.rows(preset):
        return _nothing(preset)
    steps = [catalog.find(name)] + [e for e in catalog.experiments() if e.predecessor == name]
    header, body = ladder_cells(record, preset, steps)
    keep = [i for i, title in enumerate(header) if title not in ("× previous", "prepare ms")]
    header = [header[i].replace("× first", f"× {name}") for i in keep]
    body = [[cells[i] for i in keep] for cells in body if cells[0].startswith("`")]
    return table(header, body) + "\n\n" + _footnote(record, preset, peers=False)


def _summary(record: Record | None, _: dict[str, Any], __: list[str]) -> str:
    """``summary``: all steps by ladder, ms on each timed preset, with the vendor's library and the floor below."""
    if record is None:
        return _nothing("any preset")
    blocks = []
    for ladder in problems.LADDERS:
        presets = [p for p in problems.timed_presets(ladder) if record.rows(p)]
        if not presets:
            continue
        rows = [
            [f"[`{s.name}`](lessons/{s.lesson}/{s.path.name})", *(_cell(record, p, s.name) for p in presets)]
            for s in catalog.steps()
            if s.ladder == ladder
        ]
        twins = {step.name: step for p in presets for step, _ in record.channels_last(p)}
        rows += [
            [f"[`{n}`](lessons/{s.lesson}/{s.path.name}) (NHWC)"]
            + [_cell(record, problems.CHANNELS_LAST.get(p, ""), n) for p in presets]
            for n, s in twins.items()
        ]
        peers = sorted({n for p in presets for n, row in record.rows(p).items() if row["kind"] == "peer"})
        rows += [[f"*{name}*", *(_cell(record, p, name) for p in presets)] for name in peers]
        rows.append(["*floor*", *(_floor(record, p) for p in presets)])
        blocks.append(table([f"{ladder}, ms", *presets], rows))
    return (
        "\n\n".join(blocks) + f"\n\nMedian times on one {_machine(record)}. All use FP32, but TF32 where it says so."
    )


def _code(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``code [PRESET] STEP ...``: registers, and the instructions of the multiply loop for each multiply-add."""
    preset, names = _with_preset(arguments)
    rows = []
    architecture = ""
    for name in names:
        entry = code["steps"].get(name)
        if entry is None:
            rows.append([f"`{name}`", *["not compiled yet"] * 7])
            continue
        for kernel in entry.get("other_presets", {}).get(preset, entry["kernels"]):
            architecture = kernel["architecture"]
            loop = [str(kernel[key]) for key in ("loop_total", "loop_fma", "loop_loads", "loop_constants")]
            loop = [*loop, f"{kernel['loop_per_fma']:.1f}"] if kernel["loop_fma"] else ["–"] * 5
            rows.append([f"`{kernel['kernel']}`", str(kernel["registers"]), str(kernel["stack_bytes"]), *loop])
    header = [
        "kernel",
        "registers",
        "stack bytes",
        "instructions in the loop",
        "multiply-adds",
        "loads",
        "constant loads",
        "instructions per multiply-add",
    ]
    return table(header, rows) + f"\n\n{_compiled('The innermost multiply loop', architecture, code, preset)}"


def _lines(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``lines [PRESET] STEP``: the source lines of a step's hot loop, and what instructions each became."""
    preset, (name,) = _with_preset(arguments)
    kernel = records.main_kernel(code, name, preset)
    if kernel is None:
        return _nothing(name)
    lines = [line for line in kernel["hot"]["lines"] if line["text"]]
    kinds = [kind for kind in kernel["hot"]["mix"] if any(kind in line["mix"] for line in lines)]
    order = [kind for kind in sass.CLASSES if kind in kinds]
    rows = [
        [f"`{line['text']}`".replace("|", "\\|"), *(str(line["mix"].get(kind, "")) for kind in order)]
        for line in lines
    ]
    rows.append(["*in all*", *(str(kernel["hot"]["mix"][kind]) for kind in order)])
    note = _compiled(f"The innermost multiply loop of `{name}`", kernel["architecture"], code, preset)
    return table(["source line", *order], rows) + f"\n\n{note}"


def _useful(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``useful [PRESET] STEP ...``: occupancy and useful fraction of each step's main kernel."""
    preset, names = _with_preset(arguments)
    rows, architecture = [], ""
    for name in names:
        kernel = records.main_kernel(code, name, preset)
        if kernel is None:
            rows.append([f"`{name}`", *["not compiled yet"] * 7])
            continue
        architecture, hot, fits = kernel["architecture"], kernel["hot"], kernel["occupancy"]
        reads = hot["fma_per_shared_load"]
        rows.append(
            [
                f"`{name}`",
                str(kernel["registers"]),
                f"{100 * fits['fraction']:.3g}",
                ", ".join(fits["limited_by"]),
                f"{hot['multiply_adds']} of {hot['total']}",
                f"{100 * hot['useful']:.0f}",
                "" if reads is None else f"{reads:.3g}",
                "" if not hot["floats_per_fma"] else f"{hot['floats_per_fma']:.3g}",
            ]
        )
    header = ["step", "registers", "occupancy %", "limited by", "multiply-adds", "useful %"]
    header += ["multiply-adds per shared load", "floats per multiply-add"]
    return table(header, rows) + f"\n\n{_compiled('The innermost multiply loop', architecture, code, preset)}"


def _compiled(what: str, architecture: str, code: dict[str, Any], preset: str | None) -> str:
    tools = ", ".join(f"{name} {version}" for name, version in sorted(code.get("tools", {}).items()))
    on = f" for `{preset}`," if preset else ""
    return f"{what},{on} compiled for compute capability {architecture} with {tools}."


def _with_preset(arguments: list[str]) -> tuple[str | None, list[str]]:
    """A preset, if the first argument is one, and the rest."""
    return (arguments[0], arguments[1:]) if arguments[0] in problems.PRESETS else (None, arguments)


def _mix(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``mix STEP ...``: the multiply loop's instructions by what they do, for each multiply-add."""
    rows = []
    kinds = list(sass.GROUPS)[1:]
    for name in arguments:
        kernel = _multiplying(code, name)
        if kernel is None:
            rows.append([f"`{name}`", *["not compiled yet"] * len(sass.GROUPS)])
            continue
        shares = (_per_multiply_add(kernel, kind) for kind in kinds)
        rows.append([f"`{kernel['kernel']}`", str(kernel["loop_fma"]), *shares])
    header = ["kernel", "multiply-adds in the loop", *kinds]
    return table(header, rows) + "\n\nInstructions of the innermost multiply loop for each multiply-add."


def _per_multiply_add(kernel: dict[str, Any], kind: str) -> str:
    value = sass.by_group(kernel["loop"])[kind] / kernel["loop_fma"]
    return f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _multiplying(code: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The kernel of a step whose loop holds the most multiply-adds."""
    entry = code["steps"].get(name)
    return max(entry["kernels"], key=lambda kernel: int(kernel["loop_fma"])) if entry else None


def _layers(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``layers STEP [PRESET ...]``: one step on each layer, beside the library; by default on all timed presets."""
    step, *presets = arguments
    ladder = step.split("_")[0]
    found = layers.compare(record, ladder, step, presets)
    library = layers.PEERS[ladder]
    rows = []
    for layer in found:
        m, n, k = layers.matrix(layer.problem)
        timed = layer.ms is not None
        rows.append(
            [
                f"`{layer.preset}`",
                f"{m:,} × {n:,} × {k:,}",
                milliseconds(layer.ms) if layer.ms else "not timed yet",
                _one(layer.tflops),
                milliseconds(layer.peer_ms) if layer.peer_ms else "",
                _one(layer.peer_tflops),
                f"**{layer.percent_of_peer:.0f}**" if layer.percent_of_peer else "",
                _one(layer.percent_of_floor),
                layer.peer_method if timed or layer.peer_ms else "",
            ]
        )
    short = library.split()[0]
    header = ["layer", "GEMM_M × GEMM_N × GEMM_K", "ms", "TFLOP/s", f"{short} ms", f"{short} TFLOP/s"]
    header += [f"% of {short}", "% of floor", f"{short} computes by"]
    known = [layer.preset for layer in found if record and record.rows(layer.preset)]
    source = f" Median on one {_machine(record)}." if record and known else ""
    return table(header, rows) + f"\n\n`{step}` beside {library}.{source}"


def _one(value: float | None) -> str:
    return f"{value:.1f}" if value else ""


def _profile(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``profile PRESET STEP ...``: hardware counters of each step's main kernel."""
    preset, *names = arguments
    rows, run = [], None
    for name in names:
        entry = record.profile(preset, name) if record else None
        if record is None or entry is None:
            rows.append([f"`{name}`", *["not profiled yet"] * 9])
            continue
        run = record.data["runs"][entry["run"]]
        main = max(entry["kernels"], key=lambda kernel: kernel["time_ns"])
        fma = profiler.per(main, "instructions", "ffma_threads")
        loads = profiler.per(main, "load_sectors", "load_requests")
        stall = max(main["stalls"].items(), key=lambda item: item[1], default=("", 0.0))[0]
        shares = ("issue_pct", "fma_pipe_pct", "l1_pct", "l2_pct", "dram_pct", "occupancy_pct")
        rows.append(
            [
                f"`{name}`",
                f"{32 * fma:.1f}" if fma else "",
                *(f"{main[key]:.0f}" if main[key] is not None else "" for key in shares),
                f"{loads:.1f}" if loads else "",
                stall.replace("_", " "),
            ]
        )
    header = ["step", "instructions per multiply-add", "issue slots %", "FP32 pipe %", "L1 %", "L2 %", "DRAM %"]
    header += ["occupancy %", "sectors per load", "main stall"]
    source = f" on {record.gpu_name}, {run['date']}" if record and run else ""
    return table(header, rows) + f"\n\nHardware counters, `{preset}`, read with Nsight Compute{source}."


def _sanitizer(record: Record | None, _: dict[str, Any], __: list[str]) -> str:
    """``sanitizer``: errors that compute-sanitizer's tools found, by step."""
    found = record.sanitizer() if record else {}
    if record is None or not found:
        return _nothing("the sanitizers")
    tools = list(sanitizer.TOOLS)
    names = [s.name for s in (*catalog.steps(), *catalog.experiments()) if s.name in found]
    rows = [[f"`{n}`", *(str(found[n][t]["errors"]) if t in found[n] else "" for t in tools)] for n in names]
    return table(["step", *tools], rows) + f"\n\nErrors found at ragged shapes on one {_machine(record)}."


def _agreement(record: Record | None, _: dict[str, Any], __: list[str]) -> str:
    """``agreement``: what the hardware counted of each kernel, with the ratio to what the tracer counted."""
    found = record.agreement() if record else {}
    if record is None or not found:
        return _nothing("the tracer's agreement")
    header, body, notes = agreement.rows(found)
    first = next(entry for shapes in found.values() for entry in shapes.values())
    source = (
        "What the hardware counted, and in brackets its ratio to what the trace counted. Read with Nsight Compute"
    )
    return "\n\n".join([table(header, body), *notes, f"{source} on one {_machine(record, first)}."])


def _steps(_: Record | None, __: dict[str, Any], arguments: list[str]) -> str:
    """``steps LESSON``: the lesson's steps, what each does, and the step before."""
    (lesson,) = arguments
    rows = [
        [
            f"[`{s.name}`]({s.path.name})",
            s.title,
            f"`{s.predecessor}`" if s.predecessor else "starts the ladder",
        ]
        for s in catalog.steps()
        if s.lesson == lesson
    ]
    return "\n".join(
        "| " + " | ".join(cells) + " |" for cells in [["step", "what it does", "after"], [":--"] * 3, *rows]
    )


def _exercises(_: Record | None, __: dict[str, Any], arguments: list[str]) -> str:
    """``exercises LESSON``: the graded ones, each with its number, file, kind and what is asked for."""
    kinds = {"bug": "find the bug"}
    rows = [
        [f"**{one.number}** [`{one.name}`](exercises/{one.name}.py)", kinds.get(one.kind, one.kind), one.title]
        for one in exercises.everything()
        if one.lesson == arguments[0]
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [["exercise", "kind", "what"], [":--"] * 3, *rows])


def _ceilings(record: Record | None, _: dict[str, Any], slugs: list[str]) -> str:
    """``ceilings [SLUG ...]``: the card and its two measured ceilings; further cards by their record's name."""
    found = [one for one in (record, *map(_other, slugs)) if one and one.ceilings]
    if record is None or record.ceilings is None:
        return _nothing("the ceilings")
    rows = []
    for one in found:
        c, gpu = one.data["ceilings"], one.data["gpu"]
        rows.append([
            gpu["name"], str(gpu["multiprocessors"]), f"{gpu['memory_bytes'] / 1e9:.0f}",
            f"{gpu['l2_bytes'] / 1e6:.0f}", f"{c['copy_gbs']:,.0f}", f"{c['fma_gflops']:,.0f}",
        ])  # fmt: skip
    header = ["GPU", "multiprocessors", "memory GB", "L2 MB", "copy GB/s", "FP32 multiply-add GFLOP/s"]
    return table(header, rows) + f"\n\nMeasured on one {' and one '.join(map(_machine, found))}."


def _cards(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``cards PRESET SLUG [STEP ...]``: times beside those of another card; by default all steps that both have."""
    preset, slug, *names = arguments
    other = _other(slug)
    if record is None or other is None:
        return _nothing(f"{preset} on two cards")
    timed = []
    for name in names or [step.name for step in catalog.steps()]:
        here, there = record.row(preset, name), other.row(preset, name)
        if here and there:
            timed.append((f"`{name}`", _median(here), _median(there)))
    if not timed:
        return _nothing(f"{preset} on two cards")
    own_floor, its_floor = (one.derive(preset, next(iter(one.rows(preset).values()))) for one in (record, other))
    if own_floor and its_floor:
        timed.append(("*floor*", own_floor.floor_ms, its_floor.floor_ms))
    rows = [[name, milliseconds(ours), milliseconds(its), f"{its / ours:.2f}"] for name, ours, its in timed]
    header = [f"`{preset}`", f"{record.gpu_name}, ms", f"{other.gpu_name}, ms", "ratio"]
    return table(header, rows) + f"\n\nMedians on one {_machine(record)} and one {_machine(other)}."


def _problems(_: Record | None, __: dict[str, Any], ___: list[str]) -> str:
    """``problems``: the timed presets, their work and least traffic."""
    rows = []
    for name, p in problems.PRESETS.items():
        if not name.startswith("tiny-"):
            rows.append(
                [
                    f"`{name}`",
                    str(p),
                    f"{p.flops / 1e9:.3g}",
                    f"{p.least_bytes / 1e6:,.0f}",
                    f"{p.intensity:.1f}",
                ]
            )
    return table(["preset", "shape", "GFLOP", "least MB", "FLOP per byte"], rows)


def _ms(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``ms PRESET NAME``: median milliseconds."""
    preset, name = arguments
    return (_cell(record, preset, _spoken(name)) if record else "") or "?"


def _ratio(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``ratio PRESET A B``: time of A over time of B."""
    preset, *names = arguments
    rows = [record.row(preset, _spoken(name)) for name in names] if record else []
    if len(rows) != 2 or rows[0] is None or rows[1] is None:
        return "?"
    return f"{rows[0]['timing']['median_ms'] / rows[1]['timing']['median_ms']:#.3g}".rstrip(".")


def _perfma(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``perfma STEP``: instructions per multiply-add in the step's multiply loop."""
    entry = code["steps"].get(arguments[0])
    return f"{entry['kernels'][-1]['loop_per_fma']:.0f}" if entry else "?"


def _kindfma(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``kindfma STEP KIND``: instructions of a kind, of sass.GROUPS, per multiply-add in the step's multiply loop."""
    name, kind = arguments
    if kind not in sass.GROUPS:
        raise ValueError(
            f"<!--= kindfma ... {kind} -->: kind {kind!r} is unknown: kinds are {', '.join(sass.GROUPS)}"
        )
    kernel = _multiplying(code, name)
    return _per_multiply_add(kernel, kind) if kernel else "?"


def _warps(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``warps PRESET STEP``: 10⁹ warp instructions that the step's multiply loop takes for the whole problem."""
    preset, name = arguments
    kernel = records.main_kernel(code, name, preset)
    if kernel is None:
        return "?"
    hot, fma = kernel["hot"], problems.preset(preset).flops / 2
    return f"{fma * hot['total'] / hot['multiply_adds'] / 32 / 1e9:#.3g}"


def _ceiling(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``ceiling fma``: the measured multiply-add rate in 10¹² FLOP per second; ``ceiling copy``: 10¹² bytes."""
    key = {"fma": "fma_gflops", "copy": "copy_gbs"}[arguments[0]]
    return f"{record.ceilings[key] / 1e3:#.2g}".rstrip(".") if record and record.ceilings else "?"


def _card(__: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``card [PRESET] STEP KEY``: a figure of the step's main kernel.

    KEY is registers, threads, occupancy, warps, blocks, limits, of the hot loop total, multiply_adds, useful,
    as_single_loads, floats_per_fma or fma_per_shared_load, of the source line that multiplies line_total or
    line_useful; a class such as shared_load, or accesses such as shared_load.128.
    """
    preset, (name, key) = _with_preset(arguments)
    kernel = records.main_kernel(code, name, preset)
    if kernel is None:
        return "?"
    hot, fits = kernel["hot"], kernel["occupancy"]
    kind, _, bits = key.replace("_", " ").partition(".")
    if kind in sass.CLASSES:
        return str(hot["widths"].get(kind, {}).get(bits, 0) if bits else hot["mix"].get(kind, 0))
    mixes: list[dict[str, int]] = [line["mix"] for line in hot["lines"]]
    line = max(mixes, key=lambda mix: mix.get("multiply-add", 0), default={})
    all_of_line = sum(line.values())
    figures = {
        "line_total": str(all_of_line),
        "line_useful": f"{100 * line.get('multiply-add', 0) / all_of_line:.0f}" if line else "?",
        "registers": str(kernel["registers"]),
        "threads": str(math.prod(kernel["block"])),
        "occupancy": f"{100 * fits['fraction']:.3g}",
        "warps": str(fits["warps"]),
        "blocks": str(fits["blocks"]),
        "limits": " and ".join(fits["limited_by"]),
        "total": str(hot["total"]),
        "multiply_adds": str(hot["multiply_adds"]),
        "useful": f"{100 * hot['useful']:.0f}",
        "as_single_loads": f"{100 * (hot['as_single_loads'] or 0):.0f}",
        "floats_per_fma": f"{hot['floats_per_fma'] or 0:.3g}",
        "fma_per_shared_load": f"{hot['fma_per_shared_load'] or 0:.3g}",
    }
    if key not in figures:
        raise ValueError(
            f"<!--= card ... {key} -->: key {key!r} is unknown: keys are {', '.join(figures)}, or a class"
        )
    return figures[key]


def _counter(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``counter PRESET STEP KEY``: a hardware counter of the step's main kernel, or a quotient of two."""
    preset, name, key = arguments
    entry = record.profile(preset, name) if record else None
    if entry is None:
        return "?"
    main = max(entry["kernels"], key=lambda kernel: kernel["time_ns"])
    ratios = {
        "perfma": ("instructions", "ffma_threads", 32),
        "load_ratio": ("load_sectors", "load_requests", 1),
        "store_ratio": ("store_sectors", "store_requests", 1),
        "conflict_pct": ("shared_conflicts", "shared_wavefronts", 100),
    }
    if key in ratios:
        above, below, factor = ratios[key]
        return f"{factor * (profiler.per(main, above, below) or 0):.1f}"
    return f"{main[key]:.0f}" if main.get(key) is not None else "?"


def _share(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``share PRESET NAME``: percent of the floor."""
    preset, name = arguments
    row = record.row(preset, _spoken(name)) if record else None
    figures = record.derive(preset, row) if record and row else None
    return f"{figures.percent_of_floor:.1f}" if figures else "?"


def _on(_: Record | None, code: dict[str, Any], arguments: list[str]) -> str:
    """``on SLUG KIND ...``: the figure of that kind on another card, by its record's name."""
    slug, kind, *rest = arguments
    if kind not in FIGURES:
        raise ValueError(f"<!--= on ... {kind} -->: kind {kind!r} is unknown: kinds are {', '.join(FIGURES)}")
    return FIGURES[kind](_other(slug), code, rest)


def _across(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``across PRESET NAME SLUG``: time on the card of that record over the time here."""
    preset, name, slug = arguments
    rows = [one.row(preset, _spoken(name)) if one else None for one in (_other(slug), record)]
    if rows[0] is None or rows[1] is None:
        return "?"
    return f"{_median(rows[0]) / _median(rows[1]):.2f}"


def _floor_ms(record: Record | None, _: dict[str, Any], arguments: list[str]) -> str:
    """``floor PRESET``: milliseconds."""
    (preset,) = arguments
    return (_floor(record, preset) if record and record.rows(preset) else "") or "?"


def _spoken(name: str) -> str:
    """A peer's name, written with a hyphen where arguments are split at blanks: ``cuDNN-FP32``."""
    return name.replace("-", " ")


Writer = Callable[[Record | None, dict[str, Any], list[str]], str]

FIGURES: dict[str, Writer] = {
    "ms": _ms,
    "ratio": _ratio,
    "perfma": _perfma,
    "kindfma": _kindfma,
    "warps": _warps,
    "card": _card,
    "ceiling": _ceiling,
    "counter": _counter,
    "share": _share,
    "floor": _floor_ms,
    "on": _on,
    "across": _across,
}

TABLES: dict[str, Writer] = {
    "ladder": _ladder,
    "experiments": _experiments,
    "summary": _summary,
    "code": _code,
    "mix": _mix,
    "layers": _layers,
    "lines": _lines,
    "useful": _useful,
    "profile": _profile,
    "sanitizer": _sanitizer,
    "agreement": _agreement,
    "steps": _steps,
    "exercises": _exercises,
    "ceilings": _ceilings,
    "cards": _cards,
    "problems": _problems,
}


def _other(slug: str) -> Record | None:
    """Another card's record, or None."""
    path = records.RESULTS / f"{slug}.json"
    return Record.load(path) if path.is_file() else None


def _median(row: Row) -> float:
    return float(row["timing"]["median_ms"])


def _cell(record: Record, preset: str, name: str) -> str:
    row = record.row(preset, name)
    return milliseconds(row["timing"]["median_ms"]) if row else ""


def _floor(record: Record, preset: str) -> str:
    row = next(iter(record.rows(preset).values()))
    figures = record.derive(preset, row)
    return milliseconds(figures.floor_ms) if figures else ""


def _footnote(record: Record, preset: str, peers: bool = True) -> str:
    rows = record.rows(preset)
    row = next(iter(rows.values()))
    problem = record.problem(preset, row)
    figures = record.derive(preset, row)
    floor = f" The floor is {milliseconds(figures.floor_ms)} ms, set by {figures.floor_kind}." if figures else ""
    shares = [
        d.percent_of_floor for name, r in rows.items() if "TF32" not in name and (d := record.derive(preset, r))
    ]
    if peers and max(shares, default=0) > 100:
        floor += " Above 100%: an algorithm with fewer multiply-adds than the definition, such as FFT or Winograd's."
    libraries = sorted({r["library"] for r in rows.values() if r["kind"] == "peer"}) if peers else []
    library = f" Libraries: {'; '.join(libraries)}." if libraries else ""
    return f"`{preset}`: {_ran(problem, preset)}.{floor}{library} Median on one {_machine(record, row)}."


def _ran(problem: Problem, preset: str) -> str:
    asked = problems.preset(preset)
    return f"{problem}" + (f", N reduced from {getattr(asked, 'N', '')} to fit the card" if problem != asked else "")


def _machine(record: Record, row: Row | None = None) -> str:
    key = row["run"] if row else max(record.data["runs"])
    run = record.data["runs"][key]
    return f"{record.gpu_name} (driver {run['driver']}, CUDA {run['cuda']}) on {run['date']}"


def _nothing(what: str) -> str:
    return f"*Nothing has been measured for {what} yet.*"
