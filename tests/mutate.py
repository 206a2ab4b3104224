"""Do the fast tests notice a small mistake? Changes one place of a module at a time, and runs its tests.

    python tests/mutate.py [--count 60] [--seed 0] [--only check.py]

A change is another comparison, a number one larger, ``and`` in place of ``or``, a ``not`` that is gone, or an error
that is not raised. Those that no test notices are printed, each with its place and what became of it. The modules are
changed where they lie, and put back: nothing else should use the checkout meanwhile.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 120.0  # for the tests of one change
CHECK = "tests/check/test_"
TRACE = ["tests/trace/test_trace.py", "-k", "races or faults_in or overlap or barrier_in or uninitialised or a_race"]
TESTS = {
    "common/check/arrays.py": [f"{CHECK}check.py", f"{CHECK}fullsize.py"],
    "common/check/budget.py": [f"{CHECK}budget.py", f"{CHECK}measured.py"],
    "common/check/check.py": [f"{CHECK}check.py", f"{CHECK}measured.py", f"{CHECK}precisions.py"],
    "common/check/findings.py": [f"{CHECK}check.py", f"{CHECK}precisions.py"],
    "common/check/fullsize.py": [f"{CHECK}fullsize.py", f"{CHECK}large.py"],
    "common/check/inputs.py": [f"{CHECK}inputs.py", f"{CHECK}check.py"],
    "common/check/oracle.py": [f"{CHECK}oracle.py", f"{CHECK}check.py"],
    "common/check/plan.py": [f"{CHECK}plan.py", f"{CHECK}shapes.py"],
    "common/check/shapes.py": [f"{CHECK}shapes.py", f"{CHECK}plan.py"],
    "common/trace/memory.py": TRACE,
    "common/trace/races.py": TRACE,
    "common/timing/timing.py": ["tests/timing/test_timing.py"],
    "common/records/records.py": ["tests/records/test_records.py"],
}
COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def changed(node: ast.AST) -> str | None:
    """The code that stands in this node's place, if there is a change to it."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.Raise):
        return "pass"
    if isinstance(new, ast.Compare):
        new.ops[0] = COMPARISONS[type(new.ops[0])]()
    elif isinstance(new, ast.BoolOp):
        new.op = ast.And() if isinstance(new.op, ast.Or) else ast.Or()
    elif isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.Not):
        new = new.operand
    elif isinstance(new, ast.Constant) and type(new.value) is int:
        new.value += 1
    else:
        return None
    return f"({ast.unparse(new)})"


def places(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Nodes below this one that can be changed, each with the code in its place."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr):
            continue  # words
        if (code := changed(child)) is not None:
            yield child, code
        yield from places(child)


def with_code(source: str, node: ast.AST, code: str) -> str:
    """The source with other code in the node's place."""
    data = source.encode()
    starts = [0, *itertools.accumulate(map(len, data.splitlines(keepends=True)))]
    start = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    return (data[:start] + code.encode() + data[end:]).decode()


def noticed(path: Path, text: str, tests: list[str]) -> bool:
    """Does one of the tests fail, or take too long, with this text in the module's place?"""
    before = path.read_bytes()
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        path.write_text(text, encoding="utf-8")
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_bytes(before)
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="modules whose path ends so")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what is changed is put back
    sources = {name: (ROOT / name).read_text(encoding="utf-8") for name in TESTS if name.endswith(options.only)}
    known = [(name, *place) for name, source in sources.items() for place in places(ast.parse(source))]
    sample = random.Random(options.seed).sample(known, min(options.count, len(known)))
    for number, (name, node, code) in enumerate(sample, 1):
        if not noticed(ROOT / name, with_code(sources[name], node, code), TESTS[name]):
            was = ast.get_source_segment(sources[name], node)
            print(f"{number}: {name}:{node.lineno}: {was} -> {code}", flush=True)  # type: ignore[attr-defined]
    print(f"{len(sample)} of {len(known)} changes tried")


if __name__ == "__main__":
    main()
