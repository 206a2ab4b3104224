r"""launch raises an exception of its own.

Expect: crashed
Says: ^RuntimeError at gemm_raises\.py:\d+: out of ideas$
"""


def launch(a, b, c):
    raise RuntimeError("out of ideas")
