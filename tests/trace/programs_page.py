"""The tables of lessons/microscope/programs.md: what the scripts beside this file found."""

import statistics
from collections import Counter

from common.catalog import catalog, store
from common.records import records
from common.report.table import Table, markdown
from common.timing import tools

PAGE = catalog.LESSONS / "microscope" / "programs.md"


def write():
    """Renew the tables; each stands between its name as a marker, and the end of that."""
    store.write(PAGE, rendered(store.read_text(PAGE)))


def rendered(text):
    for table in (simulator, numba_tests):
        name, new = table.__name__, markdown(table())
        head, rest = text.split(f"<!-- {name} -->\n")
        text = f"{head}<!-- {name} -->\n{new}\n<!-- end {name} -->{rest.split(f'<!-- end {name} -->')[1]}"
    return text


def simulator():
    """What Numba's simulator, the tracer and compute-sanitizer show of the programs of tests/trace/programs."""
    path = records.RESULTS / "programs" / "simulator.json"
    found = store.read_json(path).values()
    columns, notes = {"Numba's simulator": (found, "simulator"), "the tracer": (found, "tracer")}, []
    for file in sorted(path.parent.glob("sanitizer-*.json")):
        card = store.read_json(file)
        columns[f"compute-sanitizer on {card['gpu']}"] = card["programs"].values(), "sanitizer"
        where = f"one {card['gpu']} (driver {card['driver']}, CUDA {card['cuda']}) on {card['date']}"
        notes.append(f"compute-sanitizer's seconds are those of {', '.join(tools.TOOLS)} together, on {where}.")
    right = sum(one["kind"] == "right" for one in found)
    titles = {
        (True, True): f"right programs, {right}: run to their end",
        (True, False): "right programs: accused, or stopped by what is not known",
        (False, False): f"wrong programs, {len(found) - right}: stopped or named",
        (False, True): "wrong programs: run to their end without a word",
    }
    rows = [[title] for title in titles.values()] + [["seconds a program, the median"]]
    for title, (programs, tool) in columns.items():
        seen = [(one["kind"], _passes(one["kind"], one[tool])) for one in programs]
        counts = Counter((kind == "right", passes) for kind, passes in seen)
        median = statistics.median(one[tool]["seconds"] for one in programs)
        for row, cell in zip(rows, [*(str(counts[key]) for key in titles), f"{median:.1f}"], strict=True):
            row.append(cell)
        if missed := sorted({f"`{kind}`" for kind, passes in seen if passes and kind != "right"}):
            notes.append(f"{title} is silent about {', '.join(missed)}.")
    return Table(["", *columns], rows, "\n\n".join(notes))


def _passes(kind, ran):
    """Does a tool let a program pass? A wrong one that it does not end, it has not named."""
    silent = ("silent",) if kind == "right" else ("silent", "endless")
    return ran["ended"] in silent if "ended" in ran else not ran["faults"]


def numba_tests():
    """What becomes of numba-cuda's own tests in the tracer, and why some do not agree."""
    found = store.read_json(records.RESULTS / "programs" / "numba_tests.json")
    groups, titles = found["groups"], {
        "agrees": "pass, and no kernel is accused", "accused": "pass, and a kernel is accused",
        "unknown": "stopped by what the tracer does not know", "differs": "fail",
        "asks": "ask for machine code, the driver, another program, or more time", "skipped": "skip themselves",
    }  # fmt: skip
    rows = [[title, *(f"{counts[state]:,}" for counts in groups.values())] for state, title in titles.items()]
    notes = [f"{', '.join(f'{name} {version}' for name, version in found['versions'].items())}."]
    accused = {}
    for test, why in found["accused"].items():
        accused.setdefault(why, []).append(f"`{test.rpartition('.')[2]}`")
    kernels = "; ".join(f"{why} ({', '.join(tests)})" for why, tests in accused.items())
    notes.append(f"Each accused kernel is at fault: {kernels}.")
    reasons = {"unknown": "What is not known", "differs": "Why tests fail", "asks": "What is asked for"}
    for state, title in reasons.items():
        told = sorted(found["reasons"][state].items(), key=lambda one: (one[0] == "other reasons", -one[1]))
        notes.append(f"{title}: {'; '.join(f'{words} ({count})' for words, count in told)}.")
    return Table(["tests that", *(f"`{name}`" for name in groups)], rows, "\n\n".join(notes), left=["tests that"])


if __name__ == "__main__":
    write()
