"""What the vendor's libraries reach on the same problem: cuBLAS and cuDNN through PyTorch, if it is installed."""

import importlib.util
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict
from numpy.typing import NDArray

from common.catalog import catalog, device, problems, reference
from common.catalog.problems import FLOAT16, INT8, UINT8, UINT16, Bfgemm, Conv2d, Convolution, Gemm, Hgemm, Problem
from common.catalog.store import Amount, Count
from common.check import arrays, loading
from common.run.messages import Beside, PeerRow
from common.timing.timing import FEW_REPEATS, MAX_SECONDS, Stopwatch


class Errors(Struct, kw_only=True, omit_defaults=True):
    """Of a product at one K, over the exact results' root mean square: ``rms`` and ``largest`` of the finite results,
    None if there are none. ``lost``: the share of the others."""

    K: Count
    rms: Amount | None = None
    largest: Amount | None = None
    lost: Amount = 0.0


class Accuracy(Struct, kw_only=True, omit_defaults=True):
    """The errors of a product on one kind of operands: a step's, of its ``source``, a ``library``'s, which has its
    version, or neither's; in a record the ``run``'s."""

    points: list[Errors]
    library: str = ""
    source: str = ""
    run: str = ""


class _Torch:
    """PyTorch, imported when it is first used: it takes seconds, and may not be there."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch"), name)


torch: Any = _Torch()
Variant = tuple[str, Callable[[], Any], Callable[[Any], Any] | None]
TF32_FROM = "8.0"  # compute capability; below it libraries compute in FP32 whatever they are allowed
BRIEF_SECONDS = 0.1  # for which of two layouts is the faster
_faster: dict[tuple[Problem, str], str] = {}  # the layout, by problem and precision
_SEED = 2
PRODUCT = "cuBLAS"  # in a layout's place: a 1 x 1 convolution's pixels are rows of a matrix, whose product is taken
HOW_TO_GET = "cuBLAS and cuDNN are left out: pip install torch adds them"


def _theirs(problem: Problem) -> Problem:
    """What the library computes in its place: PyTorch has no convolution of int8 on a GPU, so that of float16."""
    return problems.on_ladder("hconv3d", problem) if problem.ladder == "iconv3d" else problem


def precisions(problem: Problem) -> tuple[str, ...]:
    """What a library is timed with: strict FP32, and TF32 where the GPU has it; or what the arrays' type says."""
    capability = device.compute_capability()
    fp32 = ("FP32", "TF32") if capability is None or catalog.runs_on(TF32_FROM, capability) else ("FP32",)
    by_type = {FLOAT16: ("FP16",), UINT16: ("BF16",), INT8: ("INT8",), UINT8: ("FP8",)}
    return by_type.get(_theirs(problem).input_dtype, fp32)


def available() -> bool:
    return importlib.util.find_spec("torch") is not None


def measure(problem: Problem, stopwatch: Stopwatch) -> tuple[dict[str, PeerRow], str]:
    """Time the library on the problem, in each of its precisions, by name and precision; autotuned, the faster memory
    layout of two; and say what runs out of the GPU's memory. Results but TF32's are held to the error bound of the
    lessons' kernels, at random positions: RuntimeError if one exceeds it (its sums were not FP32)."""
    shape, problem = problem.shape(), _theirs(problem)
    library, require_precise = _library(problem), _oracle(problem)
    rows: dict[str, PeerRow] = {}
    for precision in precisions(problem):
        with _unless_full():
            layout, run = fastest(problem, stopwatch, precision, require_precise if precision != "TF32" else None)
            timing = stopwatch.measure(run)
            rows[precision] = PeerRow(shape=shape, timing=timing, layout=layout, library=version(problem))
    # last, as a profiler that has run may slow what comes after it
    for precision, row in rows.items():
        with _unless_full():
            row.kernels = _kernels(fastest(problem, stopwatch, precision)[1])
    lacking = [precision for precision in precisions(problem) if precision not in rows]
    named = {f"{library} {precision}": row for precision, row in rows.items()}
    return named, "; ".join(f"{library} {one} ran out of GPU memory" for one in lacking)


@contextmanager
def _unless_full() -> Iterator[None]:
    """Pass over what the GPU's memory does not suffice for; PyTorch keeps nothing afterwards."""
    try:
        yield
    except Exception as error:
        if not device.out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # which hold tensors
    finally:
        torch.cuda.empty_cache()


def measure_beside(
    launch: Callable[[], object], problem: Problem, precision: str, stopwatch: Stopwatch,
    max_seconds: float = MAX_SECONDS,
) -> Beside | None:  # fmt: skip
    """Time a step's ``launch``, which must have run before, in turn with the library, whose time is the first:
    ``ratio`` above 1 says that the step is faster. None if the library runs out of memory."""
    wanted = precision.upper() if precision.upper() in precisions(problem) else precisions(problem)[0]
    with _unless_full():
        if (problem, wanted) not in loading.beside:  # once for all steps on the problem
            loading.beside.clear()
            loading.beside[problem, wanted] = fastest(problem, stopwatch, wanted)[1]
        _choose(wanted)
        pairs = stopwatch.measure_pairs(loading.beside[problem, wanted], launch, max_seconds=max_seconds)
        return Beside(**asdict(pairs), peer=f"{_library(problem)} {wanted}")
    return None


def fastest(
    problem: Problem, stopwatch: Stopwatch, precision: str = "", check: Callable[[Any], None] | None = None
) -> tuple[str, Callable[..., Any]]:
    """The memory layout in which the library is faster, and the call, by default in the first precision. Which it is,
    is found once in a process. ``check`` is given the call's result, in the problem's output layout."""
    problem = _theirs(problem)
    precision = precision or precisions(problem)[0]
    x, weight = _normals(problem)
    _choose(precision)
    known, found = _faster.get((problem, precision)), []
    for layout, run, to_output in _variants(problem, x, weight):
        if known not in (None, layout):
            continue
        result = run()
        torch.cuda.synchronize()
        if check:
            check(to_output(result) if to_output else result)
        del result
        brief = 0.0 if known else stopwatch.measure(run, max_seconds=BRIEF_SECONDS, min_repeats=FEW_REPEATS).median_ms
        found.append((brief, layout, run))
    _, layout, run = min(found, key=lambda one: one[0])
    _faster[problem, precision] = layout
    return layout, run


def products(a: NDArray[Any], b: NDArray[Any]) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Name with precision, version and result of cuBLAS's product of two float32 matrices, in each precision."""
    for kind in (Gemm, Hgemm, Bfgemm):
        problem = kind(M=a.shape[0], N=b.shape[1], K=a.shape[1])
        x, weight = (torch.from_numpy(operand).cuda().to(_type(problem.input_dtype)) for operand in (a, b))
        for precision in precisions(problem):
            _choose(precision)
            result = torch.matmul(x, weight).cpu()
            result = result.float() if kind is Bfgemm else result
            yield f"{_library(problem)} {precision}", version(problem), result.numpy()


def version(problem: Problem) -> str:
    if _library(problem) == "cuDNN":
        number = int(torch.backends.cudnn.version())
        return f"cuDNN {number // 10000}.{number % 10000 // 100}.{number % 100}, PyTorch {torch.__version__}"
    return f"CUDA {torch.version.cuda}, PyTorch {torch.__version__}"


def _library(problem: Problem) -> str:
    return "cuBLAS" if isinstance(problem, Gemm) else "cuDNN"


def _normals(problem: Problem) -> tuple[Any, Any]:
    """Input and weight, normals drawn on the GPU, in the problem's dtypes; of int8, 32 times such numbers."""
    generator = torch.Generator("cuda").manual_seed(_SEED)

    def drawn(shape: tuple[int, ...]) -> Any:
        values = torch.randn(shape, generator=generator, device="cuda")
        if problem.input_dtype == INT8:
            values = values.mul_(32).round_().clamp_(-128, 127)
        if problem.input_dtype == UINT8:
            return values.to(torch.float8_e4m3fn).view(torch.uint8)
        return values.to(_type(problem.input_dtype))

    return drawn(problem.input_shape), drawn(problem.weight_shape)


def _type(dtype: np.dtype[Any]) -> Any:
    """PyTorch's, of a problem's: it has a bfloat16."""
    return torch.bfloat16 if dtype == UINT16 else getattr(torch, dtype.name)


def _choose(precision: str) -> None:
    """Let the library compute with this precision and no less."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    cudnn.benchmark = True
    cudnn.allow_tf32 = matmul.allow_tf32 = precision == "TF32"
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False


def _kernels(run: Callable[[], Any]) -> list[str]:
    """Names of the GPU kernels that the call launches: they say how the library computes. Empty if unreadable."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the profiler's, about cycles that this one does not have
            # not torch.profiler, which imports the whole of torch.compile
            with torch.autograd.profiler.profile(use_cpu=False, use_device="cuda", use_kineto=True) as trace:
                run()
                torch.cuda.synchronize()
    except RuntimeError:
        return []
    on_gpu = torch.autograd.DeviceType.CUDA
    return sorted({event.name for event in trace.function_events if event.device_type == on_gpu})


def _variants(problem: Problem, first: Any, second: Any) -> Iterator[Variant]:
    """Layout name, the call to time, and what brings its result to the problem's output layout, if it is not."""
    if isinstance(problem, Gemm) and problem.input_dtype == UINT8:
        a, b = (part.view(torch.float8_e4m3fn) for part in (first, second.t().contiguous()))
        one = torch.ones((), device=first.device)
        scaled = partial(torch._scaled_mm, a, b.t(), one, one, out_dtype=torch.float32)
        yield "B K-major, fast accumulation", partial(scaled, use_fast_accum=True), None
        yield "B K-major", partial(scaled, use_fast_accum=False), None
    elif isinstance(problem, Gemm):
        multiply = torch._int_mm if problem.input_dtype == INT8 else torch.matmul
        if problem.input_dtype != INT8:
            yield "row-major", partial(multiply, first, second), None
        if problem.input_dtype in (INT8, UINT16):
            yield "B K-major", partial(multiply, first, second.t().contiguous().t()), None
    elif isinstance(problem, Conv2d):
        for layout, memory_format in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
            tensors = (tensor.to(memory_format=memory_format) for tensor in (first, second))
            yield layout, partial(torch.nn.functional.conv2d, *tensors), None
    elif isinstance(problem, Convolution):
        yield from _convolutions(problem, first, second)


def _convolutions(problem: Convolution, first: Any, second: Any) -> Iterator[Variant]:
    """As :func:`_variants`: the convolution, or one of its two gradients."""
    functional, g = torch.nn.functional, problem.geometry
    planar = problem.D == problem.T == 1 and g.pad_d == 0  # cuDNN's 3D path is slower on 2D problems
    options = {"stride": g[0 + planar : 3], "padding": g[3 + planar : 6], "dilation": g[6 + planar : 9]}

    def channels_first(tensor: Any) -> Any:
        return tensor.movedim(-1, 1).squeeze(2) if planar else tensor.movedim(-1, 1)

    def channels_last(result: Any) -> Any:
        return (result.unsqueeze(2) if planar else result).movedim(1, -1)

    def backward(dy: Any, x: Any, filt: Any, wanted: int) -> Any:
        """One gradient alone; of the tensor that it belongs to, only shape and layout count."""
        none, mask = [0] * len(options["stride"]), [number == wanted for number in range(3)]
        given = dy, x, filt, None, *options.values(), False, none, 1, mask
        return torch.ops.aten.convolution_backward(*given)[wanted]

    if problem.form == "conv3d" and problem.reduction == problem.C and g == type(g)():
        product = partial(torch.matmul, first.view(-1, problem.C), second.view(problem.K, problem.C).t())
        yield PRODUCT, product, partial(torch.reshape, shape=problem.output_shape)
    one, two = channels_first(first), channels_first(second)
    for layout, tensors in (("NDHWC", (one, two)), ("NCDHW", (one.contiguous(), two.contiguous()))):
        if problem.form == "conv3d":
            run = partial(functional.conv2d if planar else functional.conv3d, *tensors, **options)
        else:
            own = channels_first(torch.empty(problem.output_shape, device=first.device, dtype=first.dtype))
            own = own if layout == "NDHWC" else own.contiguous()
            if problem.form == "dgrad":
                run = partial(backward, tensors[0], own, tensors[1], 0)
            else:
                run = partial(backward, tensors[1], tensors[0], own, 1)
        yield layout, run, channels_last


def _oracle(problem: Problem) -> Callable[[Any], None]:
    """Raises RuntimeError if a result, in the problem's output layout, is further off than FP32 sums may be."""
    from numba import cuda

    positions = arrays.sample_positions(problem, 2000, _SEED)
    tensors = _normals(problem)
    coded = problem.input_dtype == UINT16  # of which Numba knows the bits alone
    x, weight = (
        cuda.as_cuda_array(one.view(torch.int16)).view(UINT16) if coded else cuda.as_cuda_array(one)
        for one in tensors
    )
    expected = arrays.at(problem, x, weight, positions)
    for tensor in tensors:
        _ = tensor.bitwise_and_(0x7F) if problem.input_dtype == UINT8 else tensor.abs_()
    bound = reference.error_bound(problem, arrays.at(problem, x, weight, positions), expected)

    def require_precise(result: Any) -> None:
        index = tuple(torch.from_numpy(np.ascontiguousarray(axis)).cuda() for axis in positions)
        error = np.abs(result[index].double().cpu().numpy() - expected)
        worst = float(np.max(error / np.maximum(bound, np.finfo(float).tiny)))
        # Winograd transforms cost a few more roundings than the bound counts
        if worst > 8:
            raise RuntimeError(f"the library's result is {worst:.1f} times the bound off: its sums are not FP32")

    return require_precise
