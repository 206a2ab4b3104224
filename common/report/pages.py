"""Tables and figures inside Markdown pages, written between markers from records: none is typed by hand.

A block is ``<!-- table: KIND ARGUMENTS -->`` to ``<!-- end table -->``; KIND is one of TABLES. An exercise stands at
the end of its section, ``<!-- exercise: NAME -->`` to ``<!-- end exercise -->``. A figure in a sentence is
``<!--= KIND ARGUMENTS -->`` to ``<!--/-->``; KIND is one of FIGURES.
Pages show the reference GPU's record, and another where a marker names it; a figure's date stands in the table's
last line.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from common.catalog import catalog, exercises, problems, store
from common.catalog.catalog import Step
from common.catalog.problems import Problem
from common.machine_code import loops, sass
from common.machine_code.loops import HotLoop
from common.records import current, records
from common.records.entries import Accuracy, Ceilings, Entry, MachineCode, PeerRow, Row
from common.records.records import Record
from common.report import agreement, figures, layers, training
from common.report.figures import Figure, TimedRow
from common.report.training import Training
from common.timing import accuracy, profiler, sanitizer
from common.timing.accuracy import Errors

# What stands between two markers must hold no other opening: a forgotten end is said, not swallowed.
_BLOCK = re.compile(
    r"(<!-- table: (\w+)((?: [\w.-]+)*) -->\n)((?:(?!<!-- table:).)*?)(<!-- end table -->)", re.DOTALL
)

_EXERCISE = re.compile(r"(<!-- exercise: (\w+) -->\n)((?:(?!<!-- exercise:).)*?)(<!-- end exercise -->)", re.DOTALL)

_INLINE = re.compile(r"(<!--= (\w+)((?: [\w.-]+)*) -->)((?:(?!<!--=).)*?)(<!--/-->)", re.DOTALL)

_NAMED_ROW = re.compile(r"^\| \[?`(\w+)`(?:\]\([^)]*\))?", re.MULTILINE)


def pages() -> list[Path]:
    """Every page that may hold a table: the first one, those beside the lessons, and all in their folders."""
    beside, within = (sorted(catalog.LESSONS.glob(pattern)) for pattern in ("*.md", "*/*.md"))
    return [catalog.ROOT / "README.md", *beside, *within]


def rendered(text: str, record: Record | None, code: MachineCode) -> str:
    """The page with each table and figure written anew; raises ValueError at a kind that is unknown."""

    def write(match: re.Match[str], kinds: dict[str, Writer], end: str) -> str:
        opening, kind, arguments, _, closing = match.groups()
        if kind not in kinds:
            raise ValueError(f"{opening.strip()}: kind {kind!r} is unknown: kinds are {', '.join(kinds)}")
        written = kinds[kind](record, code, arguments.split())
        return f"{opening}{marked(written) if kinds is TABLES else written}{end}{closing}"

    markers = (
        ("<!-- table:", _BLOCK, "table"),
        ("<!-- exercise:", _EXERCISE, "exercise"),
        ("<!--=", _INLINE, "figure"),
    )
    for opening, whole, what in markers:
        if text.count(opening) != len(whole.findall(text)):
            raise ValueError(f"a {what} marker {opening} ... has no end, or is not written as it must be")
    text = _BLOCK.sub(lambda match: write(match, TABLES, "\n"), text)
    text = _EXERCISE.sub(lambda match: f"{match[1]}{_exercise(match[2])}\n{match[4]}", text)
    return _INLINE.sub(lambda match: write(match, FIGURES, ""), text)


def marked(text: str) -> str:
    """A table in which steps on tensor cores have their sign, with what its marks mean below."""
    known, used = figures.signs(), {figures.OLDER} if figures.OLDER in text else set()

    def sign(match: re.Match[str]) -> str:
        if match[1] not in known:
            return match[0]
        used.add(known[match[1]])
        return f"{match[0]} {known[match[1]]}"

    text = _NAMED_ROW.sub(sign, text)
    legend = " ".join(f"{one} {said}" for one, said in figures.MARKS.items() if one in used)
    return f"{text}\n\n{legend}" if legend else text


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
    """A page of its own for one GPU: all steps at a glance, then every ladder table and chart."""
    code = MachineCode()
    root = ["../.."] if record.folder == records.OWN else [".."]
    lines = [f"# {record.gpu_name}", "", _ceilings(record, code, []), "", marked(_summary(record, code, root)), ""]
    for ladder in problems.LADDERS:
        for preset in problems.timed_presets(ladder):
            if record.rows(preset):
                lines += [f"## {preset}", "", f"![{preset}](charts/{record.slug}/{preset}.png)", ""]
                lines += [marked(_ladder(record, code, [preset])), ""]
        if record.ceilings and any(record.rows(p) for p in problems.timed_presets(ladder)):
            lines += [f"![roofline, {ladder}](charts/{record.slug}/roofline-{ladder}.png)", ""]
        if ladder in layers.CHARTED and any(record.rows(p) for p in problems.timed_presets(ladder)):
            lines += [f"![{ladder}, layer by layer](charts/{record.slug}/layers-{ladder}.png)", ""]
    if record.data.sanitizer:
        lines += ["## compute-sanitizer", "", marked(_sanitizer(record, code, [])), ""]
    return "\n".join(lines).rstrip() + "\n"


def table(header: list[str], rows: list[list[str]], others: str = "--:") -> str:
    """A Markdown table, the first column left-aligned and the others right, or as their rule says."""
    rule = [":--"] + [others] * (len(header) - 1)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [header, rule, *rows])


def ladder_cells(record: Record, preset: str, steps: list[Step]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of a ladder's table: the given steps that have rows, marked if older, then the peers."""
    timed = figures.timed(record, preset, steps)
    header = ["step", "ms", figures.SPREAD, "× first", "× previous", "GFLOP/s", "GB/s", "% of floor"]
    header += figures.in_turn_titles(one.columns for one in timed)
    header += [title for title in ("prepare ms", "workspace MB") if any(title in one.columns for one in timed)]
    body = [_cells(_aged(f"`{one.name}`", one.older), one, header) for one in timed]
    for one, row in figures.libraries(record, preset, figures.first_speed(record, preset, steps)):
        body.append(_cells(f"*{records.spoken(one.name, row)}* ({row.layout})", one, header))
    return header, body


def _aged(text: str, older: bool) -> str:
    """With the mark of what was measured on older code, if it was."""
    return f"{text} {figures.OLDER}" if older else text


def _time_cell(record: Record, preset: str, name: str) -> str:
    """Milliseconds, marked if they are older than the step; empty if it was not timed."""
    return _aged(_cell(figures.time(record, preset, name)), figures.older(record, preset, name))


def _cells(name: str, row: TimedRow, header: list[str]) -> list[str]:
    return [name, *(row.cell(title) for title in header[1:])]


def _ladder(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``ladder PRESET [LESSON]``: every step (of the lesson), the peers, the floor."""
    preset, *rest = arguments
    problem = problems.preset(preset)
    if record is None or not record.rows(preset):
        return _nothing(preset)
    steps = [s for s in catalog.steps() if s.ladder == problem.ladder]
    header, body = ladder_cells(record, preset, steps)  # all, so that speed-ups count from the ladder's first
    hidden = {f"`{s.name}`" for s in steps if rest and s.lesson != rest[0]}
    body = [cells for cells in body if cells[0].removesuffix(f" {figures.OLDER}") not in hidden]
    lessons = rest or catalog.lessons()
    first = figures.first_speed(record, preset, steps)
    twins = [
        figures.channels_last(record, preset, step, row, first)
        for step, row in record.channels_last(preset)
        if step.lesson in lessons
    ]
    at = next((i for i, cells in enumerate(body) if cells[0].startswith("*")), len(body))
    body[at:at] = [_cells(_aged(f"`{one.name}` (NHWC)", one.older), one, header) for one in twins]
    lacking = "" if first else "*× first* is empty: the first step was not timed. "
    return table(header, body) + f"\n\n{lacking}{_footnote(record, preset)}"


def _times(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``times PRESET ... STEP ...``: ms of the steps on each preset, and how many times as fast as the line above.

    Below stand the FP32 libraries, with their speed-up over the fastest of these steps, and the floor.
    """
    presets = [word for word in arguments if word in problems.PRESETS]
    names = [word for word in arguments if word not in problems.PRESETS]
    if record is None or not all(record.rows(preset) for preset in presets):
        return _nothing(" and ".join(presets))
    peers = [name for name in _peers(record, presets) if not records.rounds_operands(name)]
    above = dict(zip(names[1:], names, strict=False))
    rows = []
    for name in (*names, *peers):
        cells = [f"*{name}*" if name in peers else f"`{name}`"]
        for preset in presets:
            word = name.replace(" ", "-")
            before = figures.fastest(record, preset, names) if name in peers else above.get(name)
            faster = figures.speed_up(record, preset, before, word) if before else None
            share = figures.share(record, preset, word)
            cells += [_time_cell(record, preset, word), _cell(faster), _cell(share)]
        rows.append(cells)
    floors = (figures.floor(record, preset) for preset in presets)
    rows.append(["*floor*", *(cell for floor in floors for cell in (_cell(floor), "", "100"))])
    header = ["step"]
    for preset in presets:
        header += [f"`{preset}`, ms", "times as fast", "% of floor"]
    note = "*Times as fast*: as the line above, and a library as the fastest step here."
    shown = _rows(record, presets, {*names, *peers})
    source = f" Median on one {_machine(record, shown)}." if shown else ""
    return f"{table(header, rows)}\n\n{note}{source}"


def _experiments(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``experiments PRESET STEP``: the step, then its variants."""
    preset, name = arguments
    if record is None or not record.rows(preset):
        return _nothing(preset)
    steps = [catalog.find(name)] + [e for e in catalog.experiments() if e.predecessor == name]
    header, body = ladder_cells(record, preset, steps)
    keep = [i for i, title in enumerate(header) if title not in ("× previous", "prepare ms")]
    header = [header[i].replace("× first", f"× {name}") for i in keep]
    body = [[cells[i] for i in keep] for cells in body if cells[0].startswith("`")]
    rounds = any(catalog.on_tensor_cores(step, problems.preset(preset)) for step in steps)
    return table(header, body) + "\n\n" + _footnote(record, preset, peers=False, rounds=rounds)


def _summary(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``summary [ROOT]``: all steps by ladder, ms on each timed preset, with the vendor's library and the floor.

    ROOT is the way from the page to the repository's root, for the links.
    """
    if record is None:
        return _nothing("any preset")
    root = "".join(f"{folder}/" for folder in arguments)
    blocks = []
    for ladder in problems.LADDERS:
        presets = [p for p in problems.timed_presets(ladder) if record.rows(p)]
        if not presets:
            continue
        twins = {step.name: step for p in presets for step, _ in record.channels_last(p)}
        last = [problems.CHANNELS_LAST.get(p, "") for p in presets]
        found = [(step, "", presets) for step in catalog.steps() if step.ladder == ladder]
        found += [(step, " (NHWC)", last) for step in twins.values()]
        rows = [
            [
                f"[`{s.name}`]({root}lessons/{s.lesson}/{s.path.name}){how}",
                *(_time_cell(record, p, s.name) for p in at),
            ]
            for s, how, at in found
        ]
        rows += [[f"*{n}*", *(_cell(figures.time(record, p, n)) for p in presets)] for n in _peers(record, presets)]
        rows.append(["*floor*", *(_cell(figures.floor(record, p)) for p in presets)])
        blocks.append(table([f"{ladder}, ms", *presets], rows))
    shown = _rows(record, (preset for ladder in problems.LADDERS for preset in problems.timed_presets(ladder)))
    if not shown:
        return _nothing("any preset")
    machine = _machine(record, shown)
    note = f"Median times on one {machine}. All use FP32, but where another precision is named or marked."
    return "\n\n".join([*blocks, note])


def _peers(record: Record, presets: list[str]) -> list[str]:
    """The libraries with a row on one of the presets."""
    return sorted({n for preset in presets for n, row in record.rows(preset).items() if isinstance(row, PeerRow)})


def _code(_: Record | None, code: MachineCode, arguments: list[str]) -> str:
    """``code [PRESET] STEP ...``: registers, and the instructions of the multiply loop for each multiply-add."""
    preset, names = _with_preset(arguments)
    rows = []
    architecture = ""
    for name in names:
        kernels = records.code_kernels(code, name, preset)
        if not kernels:
            rows.append([f"`{name}`", *["not compiled yet"] * 7])
        for kernel in kernels:
            architecture, loop = kernel.architecture, HotLoop.recorded(kernel)
            cells = [str(count) for count in (loop.total, loop.multiply_adds, loop.loads, loop.constant_loads)]
            cells = [*cells, loops.shown(loop.per_multiply_add() or 0)] if loop.multiplies else ["–"] * 5
            rows.append([f"`{kernel.kernel}`", str(kernel.registers), str(kernel.stack_bytes), *cells])
    header = ["kernel", "registers", "stack bytes", "instructions in the loop", "multiply-adds", "loads"]
    header += ["constant loads", "instructions per multiply-add"]
    return table(header, rows) + f"\n\n{_compiled('The innermost multiply loop', architecture, code, preset)}"


def _lines(_: Record | None, code: MachineCode, arguments: list[str]) -> str:
    """``lines [PRESET] STEP``: the source lines of a step's hot loop, and what instructions each became."""
    preset, (name,) = _with_preset(arguments)
    kernel = records.main_kernel(code, name, preset)
    if kernel is None:
        return _nothing(name)
    lines = [line for line in kernel.hot.lines if line.text]
    mix = HotLoop.recorded(kernel).mix
    order = [kind for kind in mix if any(kind in line.mix for line in lines)]
    rows = [
        [f"`{line.text}`".replace("|", "\\|"), *(str(line.mix.get(kind, "")) for kind in order)] for line in lines
    ]
    rows.append(["*in all*", *(str(mix[kind]) for kind in order)])
    note = _compiled(f"The innermost multiply loop of `{name}`", kernel.architecture, code, preset)
    return table(["source line", *order], rows) + f"\n\n{note}"


def _useful(_: Record | None, code: MachineCode, arguments: list[str]) -> str:
    """``useful [PRESET] STEP ...``: occupancy and useful fraction of each step's main kernel."""
    preset, names = _with_preset(arguments)
    rows, architecture = [], ""
    for name in names:
        kernel = records.main_kernel(code, name, preset)
        if kernel is None or kernel.occupancy is None:
            rows.append([f"`{name}`", *["not compiled yet"] * 7])
            continue
        architecture, hot, fits = kernel.architecture, HotLoop.recorded(kernel), kernel.occupancy
        reads, floats = hot.multiply_adds_per_shared_load, hot.floats_per_multiply_add
        rows.append([
            f"`{name}`", str(kernel.registers), f"{100 * fits.fraction:.3g}", ", ".join(fits.limited_by),
            f"{hot.mix.get('multiply-add', 0)} of {hot.total}", f"{100 * hot.useful:.0f}",
            "" if reads is None else f"{reads:.3g}", f"{floats:.3g}" if floats else "",
        ])  # fmt: skip
    header = ["step", "registers", "occupancy %", "limited by", "multiply-adds", "useful %"]
    header += ["multiply-adds per shared load", "floats per multiply-add"]
    return table(header, rows) + f"\n\n{_compiled('The innermost multiply loop', architecture, code, preset)}"


def _compiled(what: str, architecture: str, code: MachineCode, preset: str | None) -> str:
    tools = ", ".join(f"{name} {version}" for name, version in sorted(code.tools.items()))
    on = f" for `{preset}`," if preset else ""
    return f"{what},{on} compiled for compute capability {architecture} with {tools}."


def _with_preset(arguments: list[str]) -> tuple[str | None, list[str]]:
    """A preset, if the first argument is one, and the rest."""
    return (arguments[0], arguments[1:]) if arguments[0] in problems.PRESETS else (None, arguments)


def _mix(_: Record | None, code: MachineCode, arguments: list[str]) -> str:
    """``mix STEP ...``: the multiply loop's instructions by what they do, for each multiply-add."""
    rows = []
    kinds = list(sass.GROUPS)[1:]
    for name in arguments:
        kernel = records.main_kernel(code, name)
        if kernel is None:
            rows.append([f"`{name}`", *["not compiled yet"] * len(sass.GROUPS)])
            continue
        shares = (_text(figures.kind_per_multiply_add(code, name, kind)) for kind in kinds)
        rows.append([f"`{kernel.kernel}`", str(HotLoop.recorded(kernel).multiply_adds), *shares])
    header = ["kernel", "multiply-adds in the loop", *kinds]
    return table(header, rows) + "\n\nInstructions of the innermost multiply loop for each multiply-add."


def _layers(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``layers STEP [PRESET ...]``: one step on each layer, beside the library; by default on all timed presets."""
    step, *presets = arguments
    ladder = step.split("_")[0]
    found = layers.compare(record, ladder, step, presets)
    library = layers.peer(ladder, step)
    rows = []
    for layer in found:
        m, n, k = layers.matrix(layer.problem)
        timed = layer.ms is not None
        rows.append([
            f"`{layer.preset}`", f"{m:,} × {n:,} × {k:,}",
            _aged(figures.milliseconds(layer.ms), layer.older) if layer.ms else "not timed yet", _one(layer.tflops),
            figures.milliseconds(layer.peer_ms) if layer.peer_ms else "", _one(layer.peer_tflops),
            f"**{layer.percent_of_peer:.0f}**" if layer.percent_of_peer else "", _one(layer.percent_of_floor),
            layer.peer_method if timed or layer.peer_ms else "",
        ])  # fmt: skip
    short = library.split()[0]
    header = ["layer", "GEMM_M × GEMM_N × GEMM_K", "ms", "TFLOP/s", f"{short} ms", f"{short} TFLOP/s"]
    header += [f"% of {short}", "% of floor", f"{short} computes by"]
    known = [layer.preset for layer in found if record and record.rows(layer.preset)]
    shown = _rows(record, known, {step, library}) if record else []
    source = f" Median on one {_machine(record, shown)}." if record and shown else ""
    return table(header, rows) + f"\n\n`{step}` beside {library}.{source}"


def _one(value: float | None) -> str:
    return f"{value:.1f}" if value else ""


# Columns of the counters' table: the word that chooses one, and its title.
_COUNTERS = {
    "perfma": "instructions per multiply-add",
    "issue_pct": "issue slots %",
    "fma_pipe_pct": "FP32 pipe %",
    "tensor_pipe_pct": "tensor pipe %",
    "l1_pct": "L1 %",
    "l2_pct": "L2 %",
    "dram_pct": "DRAM %",
    "occupancy_pct": "occupancy %",
    "load_ratio": "sectors per load",
    "stall": "main stall",
}


def _profile(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``profile PRESET ... STEP ... [COUNTER ...]``: hardware counters of each step's main kernel, by default all."""
    presets = [word for word in arguments if word in problems.PRESETS]
    chosen = [word for word in arguments if word in _COUNTERS]
    chosen = chosen or [word for word in _COUNTERS if word != "tensor_pipe_pct"]
    names = [word for word in arguments if word not in presets and word not in chosen]
    rows, run = [], None
    for preset in presets:
        on = f", {preset}" if len(presets) > 1 else ""
        for name in names:
            entry = record.profile(preset, name) if record else None
            if record is None or entry is None:
                rows.append([f"`{name}`{on}", *["not profiled yet"] * len(chosen)])
                continue
            run = record.run_of(entry)
            cells = {key: _cell(figures.counter(record, preset, name, key)) for key in chosen if key != "stall"}
            stalls = profiler.main_kernel(entry.kernels).stalls
            cells["stall"] = max(stalls.items(), key=lambda item: item[1], default=("", 0.0))[0].replace("_", " ")
            rows.append([_aged(f"`{name}`{on}", current.older(entry, name)), *(cells[key] for key in chosen)])
    source = f" on {record.gpu_name}, {run.date}" if record and run else ""
    where = " and ".join(f"`{preset}`" for preset in presets)
    header = ["step", *(_COUNTERS[key] for key in chosen)]
    return table(header, rows) + f"\n\nHardware counters, {where}, read with Nsight Compute{source}."


def _sanitizer(record: Record | None, _: MachineCode, __: list[str]) -> str:
    """``sanitizer``: errors that compute-sanitizer's tools found, by step."""
    found = record.data.sanitizer if record else {}
    if record is None or not found:
        return _nothing("the sanitizers")
    tools = list(sanitizer.TOOLS)
    names = [s.name for s in catalog.everything() if s.name in found]
    older = {n: any(current.older(one, n) for one in found[n].values()) for n in names}
    rows = [
        [_aged(f"`{n}`", older[n]), *(str(found[n][t].errors) if t in found[n] else "" for t in tools)] for n in names
    ]
    shown = [one for name in names for one in found[name].values()]
    return table(["step", *tools], rows) + f"\n\nErrors found at ragged shapes on one {_machine(record, shown)}."


def _agreement(record: Record | None, _: MachineCode, __: list[str]) -> str:
    """``agreement``: what the hardware counted of each kernel, with the ratio to what the tracer counted."""
    found = record.data.agreement if record else {}
    if record is None or not found:
        return _nothing("the tracer's agreement")
    header, body, notes = agreement.rows(found)
    shown = [entry for shapes in found.values() for entry in shapes.values()]
    said = (
        "What the hardware counted, and in brackets its ratio to what the trace counted. Read with Nsight Compute on"
    )
    return "\n\n".join([table(header, body), *notes, f"{said} one {_machine(record, shown)}."])


def accuracy_cells(record: Record) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of errors over K: each cell ``rms, largest`` in 10⁻⁶."""
    found = record.data.accuracy.get(accuracy.USUAL, {})
    depths = sorted({point.K for entry in found.values() for point in entry.points})
    rows = []
    for name, entry in found.items():
        at = {point.K: point for point in entry.points}
        rows.append([_product(name, entry), *(_errors(at.get(depth)) for depth in depths)])
    return ["product", *(f"K = {depth}" for depth in depths)], rows


def unfit_cells(record: Record) -> tuple[list[str], list[list[str]]]:
    """The same for the other kinds of operands, a column each."""
    kinds = {name: mine for name, mine in record.data.accuracy.items() if name != accuracy.USUAL}
    products = {name: entry for mine in kinds.values() for name, entry in mine.items()}
    rows = [
        [_product(name, entry), *(_errors(mine[name].points[0] if name in mine else None) for mine in kinds.values())]
        for name, entry in products.items()
    ]
    return ["product", *kinds], rows


def _product(name: str, entry: Accuracy) -> str:
    return _aged(f"`{name}`" if entry.code else f"*{name}*", current.older(entry.code, name))


def _errors(point: Errors | None) -> str:
    if point is None:
        return ""
    lost = f"{100 * point.lost:.3g}% lost" if point.lost else ""
    if point.rms is None or point.largest is None:
        return lost
    said = f"{figures.millionths(point.rms)}, {figures.millionths(point.largest)}"
    return f"{said}, {lost}" if lost else said


_ERRORS = "Root mean square and largest error, in 10⁻⁶ of the exact results' root mean square"


def _accuracy(record: Record | None, _: MachineCode, __: list[str]) -> str:
    """``accuracy``: the errors of products of normals over K."""
    if record is None or not record.data.accuracy:
        return _nothing("errors over K")
    shown = record.data.accuracy[accuracy.USUAL].values()
    note = f"{_ERRORS}; M = N = {accuracy.EXTENT}. On one {_machine(record, shown)}."
    return f"{table(*accuracy_cells(record))}\n\n{note}"


def _unfit(record: Record | None, _: MachineCode, __: list[str]) -> str:
    """``unfit``: the same for operands beyond some precisions."""
    if record is None or not record.data.accuracy:
        return _nothing("operands beyond some precisions")
    header, rows = unfit_cells(record)
    entry = record.data.accuracy[header[1]]
    said = "; ".join(f"*{name}*: {accuracy.KINDS[name].said}" for name in header[1:] if name in accuracy.KINDS)
    note = f"{said}. K = {accuracy.UNFIT_DEPTH}. {_ERRORS}; *lost*: beyond what float16 holds."
    return f"{table(header, rows)}\n\n{note} On one {_machine(record, entry.values())}."


EPILOGUES = (
    "epilogue", "bytes saved", "takes", "convolution alone ms", "fused ms", "over alone", "two kernels ms",
    "PyTorch ms",
)  # fmt: skip


def epilogue_cells(record: Record, preset: str, name: str) -> list[list[str]]:
    """The rows of EPILOGUES for a step on a preset; none if it has no times."""
    entry = record.data.epilogues.get(preset, {}).get(name)
    if entry is None:
        return []
    rate = record.ceilings.copy_gbs if record.ceilings else None
    old = not current.epilogues(entry, name)
    return [
        [
            _aged(f"`{one.epilogue}`", old), f"{one.saved_bytes / 1e6:.0f} MB",
            f"{one.saved_bytes / rate / 1e6:.3f} ms" if rate else "",
            figures.milliseconds(one.alone.second.median_ms), figures.milliseconds(one.alone.first.median_ms),
            f"{100 * (one.alone.ratio - 1):+.1f}%", figures.milliseconds(one.separate.first.median_ms),
            figures.milliseconds(one.eager.first.median_ms) if one.eager else "",
        ]
        for one in entry.found
    ]  # fmt: skip


def _epilogues(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``epilogues STEP PRESET``: the bytes that fusing saves, then the times of a step with each epilogue."""
    name, preset = arguments
    rows = epilogue_cells(record, preset, name) if record else []
    if record is None or not rows:
        return _nothing(f"epilogues of `{name}` on `{preset}`")
    entry = record.data.epilogues[preset][name]
    layouts = sorted({one.layout for one in entry.found if one.layout})
    theirs = f" {entry.library}, {' and '.join(layouts)}." if entry.library else ""
    how = "*Takes*: what so many bytes cost at the rate of a copy. Fused and the others are timed in turn."
    ran = _ran(problems.from_shape(problems.preset(preset).ladder, entry.shape), preset)
    said = f"`{name}` on `{preset}`: {ran}. {how}{theirs} On one {_machine(record, [entry])}."
    return f"{table(list(EPILOGUES), rows)}\n\n{said}"


def _steps(_: Record | None, __: MachineCode, arguments: list[str]) -> str:
    """``steps LESSON``: the lesson's steps, what each does, the step before, and what it grew from if another."""
    (lesson,) = arguments
    rows = []
    for s in catalog.steps():
        if s.lesson == lesson:
            after = f"`{s.predecessor}`" if s.predecessor else "starts the ladder"
            grew = f", grew from `{s.builds_on}`" if s.builds_on != s.predecessor else ""
            rows.append([f"[`{s.name}`]({s.path.name})", s.title, after + grew])
    return table(["step", "what it does", "after"], rows, ":--")


def _exercises(_: Record | None, __: MachineCode, arguments: list[str]) -> str:
    """``exercises LESSON``: the harder ones, which no section has, each with its number, file, kind and what is
    asked for."""
    rows = [
        [_linked(one), _KINDS.get(one.kind, one.kind), one.title]
        for one in exercises.everything()
        if one.lesson == arguments[0] and one.hard
    ]
    return table(["exercise", "kind", "what"], rows, ":--")


_KINDS = {"bug": "find the bug"}


def _exercise(name: str) -> str:
    """What stands at the end of a section; raises ValueError at an exercise that is unknown."""
    one = exercises.find(name)
    kind = _KINDS.get(one.kind, one.kind)
    return f"> Exercise {_linked(one)}, {kind}: {one.title}. `python -m common grade {one.number}`"


def _linked(one: exercises.Exercise) -> str:
    return f"**{one.number}** [`{one.name}`](exercises/{one.name}.py)"


def _ceilings(record: Record | None, _: MachineCode, slugs: list[str]) -> str:
    """``ceilings [SLUG ...]``: the card and its two measured ceilings; further cards by their record's name."""
    found = _with_ceilings(record, slugs)
    if record is None or record.ceilings is None:
        return _nothing("the ceilings")
    rows = []
    for one, c in found:
        gpu, rates = one.data.gpu, [f"{c.copy_gbs:,.0f}", f"{c.fma_gflops:,.0f}"]
        sizes = [f"{gpu.memory_bytes / 1e9:.0f}", f"{gpu.l2_bytes / 1e6:.0f}"]
        rows.append([gpu.name, str(gpu.multiprocessors), *sizes, *rates])
    header = ["GPU", "multiprocessors", "memory GB", "L2 MB", "copy GB/s", "FP32 multiply-add GFLOP/s"]
    return table(header, rows) + f"\n\nMeasured on one {' and one '.join(_machine(one, [c]) for one, c in found)}."


def _with_ceilings(record: Record | None, slugs: list[str]) -> list[tuple[Record, Ceilings]]:
    return [(one, one.ceilings) for one in (record, *map(records.other, slugs)) if one and one.ceilings]


def _rates(record: Record | None, _: MachineCode, slugs: list[str]) -> str:
    """``rates [SLUG ...]``: measured multiply-add rates by instruction; further cards by their record's name."""
    found = _with_ceilings(record, slugs)
    if not found:
        return _nothing("the ceilings")
    kinds = {"fma": "FP32", **_INSTRUCTIONS}
    rows = [[one.data.gpu.name, *(_cell(figures.ceiling(one, name)) for name in kinds)] for one, _ in found]
    header = ["GPU, TFLOP/s", *kinds.values()]
    return table(header, rows) + f"\n\nMeasured on one {' and one '.join(_machine(one, [c]) for one, c in found)}."


_INSTRUCTIONS = {
    "mma_tf32": "`mma.sync`, TF32", "mma_f16": "`mma.sync`, FP16", "wgmma_tf32": "`wgmma`, TF32",
    "wgmma_f16": "`wgmma`, FP16",
}  # fmt: skip


def _cards(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``cards PRESET SLUG [STEP ...]``: times beside those of another card; by default all steps that both have."""
    preset, slug, *names = arguments
    other = records.other(slug)
    if record is None or other is None:
        return _nothing(f"{preset} on two cards")
    rows = []
    for name in names or [step.name for step in catalog.steps()]:
        here, there = figures.time(record, preset, name), figures.time(other, preset, name)
        if here and there:
            both = [_time_cell(one, preset, name) for one in (record, other)]
            rows.append([f"`{name}`", *both, f"{there.value / here.value:.2f}"])
    if not rows:
        return _nothing(f"{preset} on two cards")
    own_floor, its_floor = figures.floor(record, preset), figures.floor(other, preset)
    if own_floor and its_floor:
        rows.append(["*floor*", own_floor.text, its_floor.text, f"{its_floor.value / own_floor.value:.2f}"])
    header = [f"`{preset}`", f"{record.gpu_name}, ms", f"{other.gpu_name}, ms", "ratio"]
    cards = (_machine(one, _rows(one, [preset], names or None)) for one in (record, other))
    return table(header, rows) + f"\n\nMedians on one {' and one '.join(cards)}."


def _tiles(_: Record | None, __: MachineCode, arguments: list[str]) -> str:
    """``tiles STEP``: the tiles that a step chooses among, as its ``TILES`` has them."""
    (name,) = arguments
    tree = ast.parse(catalog.find(name).path.read_text(encoding="utf-8"))
    values = [
        statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["TILES"]
    ]
    if not values:
        raise ValueError(f"<!-- table: tiles {name} -->: the step has no TILES")
    rows = [
        [
            f"{t['BLOCK_M']} × {t['BLOCK_N']}", f"{t['THREAD_M']} × {t['THREAD_N']}", str(t["BLOCKS_PER_SM"]),
            f"{rate:g}",
        ]
        for rate, t in ast.literal_eval(values[0])
    ]  # fmt: skip
    header = ["outputs of a block", "of a thread", "blocks on a multiprocessor", "full, as a share of the best"]
    return table(header, rows)


def _swept(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``swept PRESET STEP STEP``: both steps' times with each tile that both sweeps have, and the quotient."""
    preset, *names = arguments
    if record is None:
        return _nothing(f"{' and '.join(names)} with one tile")
    sweeps = [record.sweep(preset, name) for name in names]
    points = [sweep.points if sweep else [] for sweep in sweeps]
    times = [{tuple(sorted(p.tile.items())): p.median_ms for p in own if p.median_ms is not None} for own in points]
    above, below = times
    shared = [tile for tile in above if tile in below]
    if not shared:
        return _nothing(f"{' and '.join(names)} with one tile")
    varying = [name for name, _ in shared[0] if len({dict(tile)[name] for tile in shared}) > 1]
    rows = [
        [
            " ".join(f"{name}={dict(tile)[name]}" for name in varying),
            *(figures.milliseconds(one[tile]) for one in times),
            f"{above[tile] / below[tile]:.2f}",
        ]
        for tile in shared
    ]
    old = [f"`{name}`" for name in names if not current.sweep(record, preset, name)]
    age = f" {' and '.join(old)} measured on an older version of the file." if old else ""
    header = ["tile", *(f"`{name}`, ms" for name in names), "quotient"]
    return table(header, rows) + f"\n\n`{preset}`, from both steps' sweeps on {record.gpu_name}.{age}"


def _problems(_: Record | None, __: MachineCode, ___: list[str]) -> str:
    """``problems``: the timed presets, their work and least traffic."""
    ladders = {step.ladder for step in catalog.steps()}
    rows = [
        [f"`{name}`", str(p), f"{p.flops / 1e9:.3g}", f"{p.least_bytes / 1e6:,.0f}", f"{p.intensity:.1f}"]
        for name, p in problems.PRESETS.items()
        if p.ladder in ladders and not name.startswith("tiny-")
    ]
    return table(["preset", "shape", "GFLOP", "least MB", "FLOP per byte"], rows)


def _figure(kind: str) -> Writer:
    """The writer of a figure in a sentence: ``?`` where it has not been measured or compiled."""
    return lambda record, code, arguments: _text(figures.NAMED[kind](record, code, arguments))


def _text(figure: Figure | None) -> str:
    return "?" if figure is None else figure.text


def _card(_: Record | None, code: MachineCode, arguments: list[str]) -> str:
    """``card [PRESET] STEP KEY``: a figure of a step's main kernel (:func:`figures.card`), or what ``limits`` it."""
    preset, (name, key) = _with_preset(arguments)
    if key == "limits":
        found = figures.limits(code, preset, name)
        return "?" if found is None else " and ".join(found)
    return _text(figures.card(code, preset, name, key))


def _on(_: Record | None, code: MachineCode, arguments: list[str]) -> str:
    """``on SLUG KIND ...``: the figure of that kind on another card, by its record's name."""
    slug, kind, *rest = arguments
    if kind not in FIGURES:
        raise ValueError(f"<!--= on ... {kind} -->: kind {kind!r} is unknown: kinds are {', '.join(FIGURES)}")
    return FIGURES[kind](records.other(slug), code, rest)


def _learned(record: Record | None) -> Training | None:
    """The record of training on the same GPU."""
    return training.load(record.slug, record.folder) if record else None


def _of_training(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``training WORDS``: a figure of the record of training, by its words there; a comparison may come later."""
    found = _learned(record)
    part = found and (found.compared if arguments[:1] in (["apart"], ["images"], ["faster"]) else found.trained)
    with contextlib.suppress(training.UnmeasuredError):
        if part:
            return training.figure(found, arguments).text
    return "(not measured yet)"


def _picture(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``picture NAME WORDS``: a chart of this GPU that lies there once it is drawn, and what it shows in words."""
    name, *words = arguments
    path = records.RESULTS / "charts" / (record.slug if record else "") / f"{name}.png"
    if not path.is_file():
        return _nothing(f"the chart `{name}`")
    return f"![{' '.join(words)}](../../results/charts/{path.parent.name}/{path.name})"


def _training(record: Record | None, _: MachineCode, arguments: list[str]) -> str:
    """``training [BATCH ...]``: microseconds of a training step, its launches, and times as fast as PyTorch."""
    found = _learned(record)
    if found is None or found.compared is None:
        return _nothing("training")
    compared = found.compared
    names = list(dict.fromkeys(one.name for one in compared.speeds))
    sizes = [int(word) for word in arguments] or sorted({one.batch for one in compared.speeds})
    old = not current.trained(compared.code)
    rows = []
    for name in names:
        own = [one for one in compared.speeds if one.name == name]
        library = name in (training.EAGER, training.GRAPH)
        cells = [f"*{name}*" if library else _aged(name, old), str(own[0].launches or "")]
        for size in sizes:
            speed, eager = compared.speed(name, size), compared.speed(training.EAGER, size)
            if speed is None or eager is None:
                cells.append("")
                continue
            ratio = eager.timing.median_ms / speed.timing.median_ms
            times = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
            cells.append(f"{1e3 * speed.timing.median_ms:,.0f} ({times}×)")
        rows.append(cells)
    header = ["a step, µs (times as fast as PyTorch)", "launches", *(f"{size:,} digits" for size in sizes)]
    note = f"Median of steps that follow each other, in turn on one {found.gpu.name}, {compared.run.date};"
    return f"{table(header, rows)}\n\n{note} {compared.library}, FP32, cuDNN autotuned, its faster layout."


Writer = Callable[[Record | None, MachineCode, list[str]], str]

FIGURES: dict[str, Writer] = {
    "ms": _figure("ms"),
    "ratio": _figure("ratio"),
    "perfma": _figure("perfma"),
    "kindfma": _figure("kindfma"),
    "warps": _figure("warps"),
    "card": _card,
    "ceiling": _figure("ceiling"),
    "counter": _figure("counter"),
    "share": _figure("share"),
    "floor": _figure("floor"),
    "on": _on,
    "across": _figure("across"),
    "beside": _figure("beside"),
    "error": _figure("error"),
    "uneven": _figure("uneven"),
    "worst": _figure("worst"),
    "against": _figure("against"),
    "saved": _figure("saved"),
    "swept": _figure("swept"),
    "training": _of_training,
}

TABLES: dict[str, Writer] = {
    writer.__name__.removeprefix("_"): writer
    for writer in (
        _ladder, _times, _experiments, _summary, _code, _mix, _layers, _lines, _useful, _profile, _sanitizer,
        _agreement, _steps, _exercises, _ceilings, _rates, _cards, _problems, _tiles, _swept, _accuracy, _unfit,
        _epilogues, _training, _picture,
    )
}  # fmt: skip


def _cell(figure: Figure | None) -> str:
    return "" if figure is None else figure.text


def _footnote(record: Record, preset: str, peers: bool = True, rounds: bool = True) -> str:
    rows = record.rows(preset)
    problem = record.usual(preset)
    floor = _floors(record, preset, rounds)
    shares = [
        d.percent_of_floor
        for name, r in rows.items()
        if not records.rounds_operands(name) and (d := record.derive(preset, r))
    ]
    if peers and max(shares, default=0) > 100:
        half = problem.input_dtype == problems.FLOAT16
        floor += f" Above 100%: {_FASTER if half else _FEWER}."
    libraries = sorted({r.library for r in rows.values() if isinstance(r, PeerRow)}) if peers else []
    library = f" Libraries: {'; '.join(libraries)}." if libraries else ""
    return f"`{preset}`: {_ran(problem, preset)}.{floor}{library} Median on one {_machine(record, rows.values())}."


_FEWER = "an algorithm with fewer multiply-adds than the definition, such as FFT or Winograd's"
_FASTER = "by an instruction that is faster than `mma.sync`"


def _floors(record: Record, preset: str, rounds: bool = True) -> str:
    """`` The floor is 1.00 ms, set by multiply-adds.``, and those of rounded operands unless nothing ``rounds``."""
    floors = record.floors(preset)[: None if rounds else 1]
    said = [f" The {name} is {figures.milliseconds(one.floor_ms)} ms" for name, one in floors]
    said[:1] = [f"{first}, set by {floors[0][1].floor_kind}" for first in said[:1]]
    return "".join(f"{one}." for one in said)


def _ran(problem: Problem, preset: str) -> str:
    asked = problems.preset(preset)
    return f"{problem}" + (f", N reduced from {getattr(asked, 'N', '')} to fit the card" if problem != asked else "")


def _machine(record: Record, entries: Iterable[Entry]) -> str:
    """The card, its software in the latest run among those of the entries, one at least, and the days of these."""
    runs = sorted((record.run_of(one) for one in entries), key=lambda run: run.date)
    first, last = runs[0], runs[-1]
    days = f"on {last.date}" if first.date == last.date else f"from {first.date} to {last.date}"
    return f"{record.gpu_name} (driver {last.driver}, CUDA {last.cuda}) {days}"


def _rows(record: Record, presets: Iterable[str], names: Iterable[str] | None = None) -> list[Row]:
    """The record's rows of these presets, of steps and libraries by their names, or of all."""
    found = [(name, row) for preset in presets for name, row in record.rows(preset).items()]
    return [row for name, row in found if names is None or name in names]


def _nothing(what: str) -> str:
    return f"*Nothing has been measured for {what} yet.*"
