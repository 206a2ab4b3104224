"""Exercise 05.4, find the bug: right for square filters.

prepare works out the offsets in the table of conv3d_implicit_gemm_precomputed: how far the element gemm_k of a window
lies from where the window begins. Where R and S are equal, as in most layers, they are right, and so it went
unnoticed. The grader tries others: for which gemm_k does a thread read another pixel? Change one line.
Grade: python -m common grade 05.4
"""

import importlib

from numba import cuda

step = importlib.import_module("lessons.05_implicit_gemm.conv3d_implicit_gemm_precomputed")
workspace, launch = step.workspace, step.launch


def prepare(filt, problem):
    R, S, C, geometry = problem.R, problem.S, problem.C, problem.geometry
    filt, table = step.prepare(filt, problem)
    entries = table.copy_to_host().reshape(-1, 1 + step.mask_words(problem.T, R, S))  # an offset, and bits
    for gemm_k in range(problem.reduction):
        tap, c = gemm_k // C, gemm_k % C
        t, r, s = tap // (R * S), tap // R % R, tap % S
        d, h, w = t * geometry.dilation_d, r * geometry.dilation_h, s * geometry.dilation_w
        entries[gemm_k, 0] = ((d * problem.H + h) * problem.W + w) * C + c
    return filt, cuda.to_device(entries.reshape(-1))
