"""Hypothesis strategies for small problems of each ladder."""

from hypothesis import strategies as st

from common.catalog.problems import Bfgemm, Conv2d, Conv3d, Fp8gemm, Gemm, Hgemm, Igemm, on_ladder

gemm = st.builds(Gemm, M=st.integers(1, 7), N=st.integers(1, 7), K=st.integers(1, 9))
# more than one tile of an instruction, and rows of whole 128-bit pieces among others
hgemm = st.builds(Hgemm, M=st.integers(1, 20), N=st.integers(1, 20), K=st.integers(1, 40))
igemm = st.builds(Igemm, M=st.integers(1, 20), N=st.integers(1, 20), K=st.integers(1, 80))
fp8gemm = st.builds(Fp8gemm, M=st.integers(1, 20), N=st.integers(1, 20), K=st.integers(1, 80))
bfgemm = st.builds(Bfgemm, M=st.integers(1, 20), N=st.integers(1, 20), K=st.integers(1, 40))


@st.composite
def _conv2d(draw):
    r, s = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    return Conv2d(
        N=draw(st.integers(1, 2)), C=draw(st.integers(1, 3)), K=draw(st.integers(1, 3)),
        R=r, S=s, H=r + draw(st.integers(0, 3)), W=s + draw(st.integers(0, 3)),
    )  # fmt: skip


@st.composite
def _conv3d(draw):
    options = {}
    for axis, taps, size in (("d", "T", "D"), ("h", "R", "H"), ("w", "S", "W")):
        taken = draw(st.integers(1, 3))
        dilation, pad = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        reach = (taken - 1) * dilation + 1
        options |= {taps: taken, size: max(1, reach - 2 * pad) + draw(st.integers(0, 2))}
        options |= {f"stride_{axis}": draw(st.integers(1, 3)), f"pad_{axis}": pad, f"dilation_{axis}": dilation}
    return Conv3d(N=draw(st.integers(1, 2)), C=draw(st.integers(1, 2)), K=draw(st.integers(1, 2)), **options)


conv2d, conv3d = _conv2d(), _conv3d()
hconv3d = conv3d.map(lambda problem: on_ladder("hconv3d", problem))
dgrad, wgrad = (
    conv3d.map(lambda problem, ladder=ladder: on_ladder(ladder, problem)) for ladder in ("dgrad", "wgrad")
)
BY_LADDER = {
    "gemm": gemm, "conv2d": conv2d, "conv3d": conv3d, "hgemm": hgemm, "hconv3d": hconv3d, "dgrad": dgrad,
    "wgrad": wgrad, "igemm": igemm, "fp8gemm": fp8gemm, "bfgemm": bfgemm,
    "iconv3d": conv3d.map(lambda problem: on_ladder("iconv3d", problem)),
}  # fmt: skip
