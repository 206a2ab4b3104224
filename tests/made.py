"""Entries of records, with what a test does not care about filled in."""

from pathlib import Path

from common.catalog import cache, catalog, limits, store
from common.machine_code import codegen, summaries
from common.machine_code.summaries import Hot, Kernel
from common.records import records
from common.records.records import MachineCode, StepCode
from common.timing.tools import METRICS, Counters

GPU = {
    "name": "NVIDIA Test 9", "compute_capability": "9.0", "multiprocessors": 4, "memory_bytes": 1, "l2_bytes": 1,
    "driver": "1.2", "cuda": "13.0",
}  # fmt: skip


def card(**fields):
    """A card's record as it would be read."""
    return store.convert({"schema": records.SCHEMA, "gpu": GPU, "runs": {}, "rows": {}, **fields}, records.Card)


def of_now(name):
    """The code of a step as it is, as the field of what was measured of it."""
    return {"source": cache.code(catalog.find(name).path)}


def kernel(name, what="multiply loop", loop=None, **fields):
    """A kernel with this hot loop."""
    known = {"architecture": "9.0", "registers": 32, "hot": Hot(what=what, instructions=loop or {})}
    known["occupancy"] = limits.Occupancy(blocks=1, warps=1, max_warps=64, fraction=1 / 64, limited_by=["blocks"])
    return Kernel(**{**known, "kernel": name, **fields})


def code(**steps):
    """The machine-code record of these steps' kernels."""
    return MachineCode(steps={name: StepCode(source="s", kernels=kernels) for name, kernels in steps.items()})


def counters(kernel="k", **fields):
    """A launch's hardware counters; those not named could not be read."""
    counts = {**dict.fromkeys(METRICS), **fields}
    return Counters(
        kernel=kernel, time_ns=counts.pop("time_ns") or 1.0, stalls=counts.pop("stalls", {}), counts=counts
    )


def disassembly(cc):
    """That of gemm_coarsened, as nvdisasm printed it once."""
    file = Path(__file__).parent / "sass" / f"gemm_coarsened.sm_{cc.replace('.', '')}.txt"
    return summaries.parse(file.read_text(encoding="utf-8"))


LAUNCH = codegen.Launch("gemm_coarsened", None, (128, 128, 1), (32, 4, 1), None)


def assembled(cc, **changes):
    """That kernel, and its listing."""
    listing = disassembly(cc)
    code = {"registers": 66, "shared_bytes": 8192, "hot": Hot.of(listing), **changes}
    return Kernel(kernel="gemm_coarsened", architecture=cc, **code), listing


def kernel_card(cc="9.0", **changes):
    """What inspect shows of that kernel, launched as gemm_coarsened is."""
    code, listing = assembled(cc, **changes)
    return code.inspected(LAUNCH, listing)


def unpacked(runs):
    """The places that :func:`common.report.traces.packed` took."""
    return [None if first is None else first + i * step for count, first, step in runs for i in range(count)]
