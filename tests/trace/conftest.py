"""Traces of kernels that are given as text, and traces in this process."""

import pytest
from small_kernels import file_of, traced

from common.catalog.problems import Gemm
from common.run import child, isolate


@pytest.fixture
def kernel(write):
    """Trace a kernel of (a, b, c), given by its body, on one block; a is M x K, b K x N, c M x N."""

    def trace_it(body, block=32, problem=None, extra="", grid=1, **options):
        path = write("gemm_own.py", file_of(body, block, extra, grid))
        return traced(path, problem or Gemm(M=4, N=32, K=8), **options)

    return trace_it


@pytest.fixture
def here(monkeypatch):
    """Traces in this process in place of a child's."""

    def run(tasks, without_gpu, seconds):
        for task in tasks:
            yield task, child.attempt(task)

    monkeypatch.setattr(isolate, "run", run)
