"""Counts in the machine code of many files in one process, with real Numba CUDA: argument and output are JSON.

``{"folder": ..., "files": [[path, ladder, shape, counted], ...]}`` gives, by path, the notes of the recording, how a
launch's arguments compare with the PTX's parameters, and those figures of :func:`common.grade.limits.count` that
``counted`` names.
"""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from common.catalog import catalog, problems
from common.grade import audit, limits, ptx_plan, ptx_run
from common.machine_code import codegen

ENCODED = SimpleNamespace(__cuda_array_interface__={"data": (0, False)})  # a tensor map that a GPU would have


def record(folder, path, ladder, shape, counted):
    problem = problems.from_shape(ladder, shape)
    seen = audit.Audit(path)
    recorder = ptx_plan.Recorder(catalog.load(Path(path), ladder), ladder, seen)
    weight = np.random.default_rng(1).standard_normal(problem.weight_shape).astype(np.float32)
    target = catalog.target(catalog.requires(Path(path), Path(path).read_text(encoding="utf-8")), limits.ARCHITECTURE)
    plan = recorder.record(problem, weight, target)
    for digest, text in recorder.texts.items():
        Path(folder, f"{digest}.ptx").write_text(text, encoding="utf-8")
    sent = ptx_plan.checked(json.loads(json.dumps(ptx_plan.save(plan, Path(folder), "plan"))))
    places = [4096 * number for number in range(len(sent["buffers"]))]
    parameters = [
        [
            len(re.findall(r"\.param\s+\.(?:align \d+ )?\.?\w+", recorder.texts[entry["kernel"]])),
            len(ptx_run.arguments_of(entry, places, [ENCODED] * len(entry["arguments"]))),
        ]
        for entry in (*sent["prepare"], *sent["launch"])
    ]
    try:
        figures = limits.count(sent, Path(folder), problem, counted, (), target) if counted else {}
    except codegen.ToolMissingError:
        figures = None
    linked = [ptx_run.link(recorder.texts[entry["kernel"]], (9, 0)) for entry in sent["prepare"]]
    return {
        "linked": [[name, bytes(code.code[:4]).decode("latin-1")] for code, name in linked],
        "figures": figures,
        "notes": list(seen.notes),
        "parameters": parameters,
        "roles": [buffer["role"] for buffer in sent["buffers"]],
        "kernels": [[entry["name"] for entry in sent[part]] for part in ("prepare", "launch")],
    }


if __name__ == "__main__":
    task = json.loads(Path(sys.argv[1]).read_text())
    found = {file[0]: record(task["folder"], *file) for file in task["files"]}
    print(json.dumps(found))
