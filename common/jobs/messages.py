"""What child processes are asked for, and what they answer: a struct for each task of :mod:`common.jobs.tasks`, and
its result.

Where a task has ``room_bytes``, they are the card's budget as the command worked it out
(:func:`common.check.budget.room_bytes`); 0: the child works it out.

``jobs.trace`` is the microscope's: :class:`common.trace.messages.Trace`. Shapes are extents by name, as
:meth:`common.catalog.problems.Problem.shape` gives them; paths are absolute.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

from msgspec import UNSET, Struct, UnsetType, field

from common.catalog import device, sources
from common.check import check, plan
from common.machine_code.summaries import Summary
from common.run.messages import FileTask, Message, Result, ShapeTask, Task
from common.timing import peers, timing
from common.timing.timing import Paired, Timing

Tile = dict[str, int | bool]
"""Values by the names of a step's tile constants."""
Shape = dict[str, int]


class StepResult(Result, frozen=True, kw_only=True):
    """What came of a task on a step's file: from the child process to the terminal, and to JSON.

    Of all that check:

    ``shape``     the extents that ran
    ``right``, ``findings``, ``elements_compared``  as :class:`common.check.check.Verdict`
    ``requires``  what compute capability, where this machine's GPU lacks it

    Of a check:

    ``engine``, ``seed``  of the case; ``engines`` of all cases of a shape
    ``only_compiled``     it was compiled, and not run
    ``needed_bytes``, ``free_bytes``  of the GPU's memory, where it was left out for want of that
    ``depth``             how thoroughly, where the time that a launch takes decided
    ``printed``, ``prints``  the first lines that the file prints, and how many there are
    ``unsought``          why races and the like were not looked for beside a GPU's verdict

    Of what is timed:

    ``timing``           the file's own time
    ``prepare_ms``, ``first_launch_ms``  of ``prepare`` (None: there is none) and of the first launch, seen cold
    ``workspace_bytes``  of scratch memory
    ``beside``           its time in turn with the library
    ``lacking``          why it was not
    ``pairs``            by the names of others, what :class:`common.timing.timing.Paired` holds: theirs is the first
    ``gpu``              its name

    ``source``, ``helpers`` and ``imports`` are the code that ran: :func:`common.catalog.sources.provenance`.

    Of what is compiled:

    ``kernels``        for each architecture
    ``other_presets``  the kernels of those presets that compile to something else
    ``digest``         of the machine code of all launches, with their grids and blocks, for each preset
    ``cards``          summaries of the kernels
    ``missing_tool``   NVIDIA's assembler or disassembler is not installed
    """

    shape: Shape | None = None
    right: bool | None = None
    findings: Sequence[check.Finding] = ()
    elements_compared: int | None = None
    requires: str | None = None
    engine: plan.Engine | None = None
    engines: Sequence[plan.Engine] = ()
    seed: int | None = None
    only_compiled: bool = False
    needed_bytes: int | None = None
    free_bytes: int | None = None
    depth: plan.Depth | None = None
    unsought: str | None = None
    printed: Sequence[str] = ()
    prints: int = 0
    timing: Timing | None = None
    prepare_ms: float | UnsetType | None = UNSET
    first_launch_ms: float | None = None
    workspace_bytes: int | None = None
    beside: peers.Beside | None = None
    lacking: str | None = None
    pairs: dict[str, Paired] | None = None
    gpu: str | None = None
    source: str | None = None
    helpers: dict[str, str] | None = None
    imports: dict[str, sources.Code | str] | None = None
    kernels: Sequence[Summary] = ()
    other_presets: dict[str, list[Summary]] | None = None
    digest: str | None = None
    cards: Sequence[Summary] = ()
    missing_tool: bool = False

    @property
    def time(self) -> Timing:
        """The ``timing`` of a file that was timed."""
        assert self.timing is not None
        return self.timing


class TunablesResult(Struct, frozen=True, kw_only=True):
    """The values to try of each tile constant, and those that the file ships with."""

    tunables: dict[str, list[int]]
    shipped: Tile


class SizeResult(Result, frozen=True, kw_only=True):
    shape: Shape = field(default_factory=dict)


class LaunchResult(Result, frozen=True, kw_only=True):
    """The kernels that were launched, in order, the extents, and the code that ran."""

    shape: Shape = field(default_factory=dict)
    source: str = ""
    helpers: dict[str, str] = field(default_factory=dict)
    kernels: Sequence[str] = ()


class ExplainResult(Result, frozen=True, kw_only=True):
    text: str = ""


class PeerResult(Result, frozen=True, kw_only=True):
    shape: Shape = field(default_factory=dict)
    rows: Sequence[peers.Library] = ()


class EpiloguesResult(Struct, frozen=True, kw_only=True):
    """``code``: the step's that ran, ``ways`` the epilogues'; ``library``: PyTorch's version, if it is there."""

    shape: Shape
    found: list[timing.Fused]
    code: sources.Code
    ways: sources.Code
    library: str


class AccuracyResult(Struct, frozen=True, kw_only=True):
    """``products``, and by step the code that ran."""

    products: list[peers.Measured]
    code: dict[str, sources.Code]


class Check(ShapeTask[StepResult], frozen=True, kw_only=True, tag="jobs.check"):
    """Is a file right at one shape? The fields of :class:`common.check.plan.Case`, and

    ``precision``  what the step may compute with, one of :data:`common.catalog.catalog.PRECISIONS`
    ``algorithm``  one of :data:`common.catalog.algorithms.NAMES`; None: the definition
    ``repeats``  launches on equal inputs that must agree
    ``kernels``  the folder of kernels that are kept; empty: none are
    """

    engine: plan.Engine = "traced"
    depth: plan.Depth = "usual"
    seed: int = 0
    special: str = ""
    wide: bool = False
    small: bool = False
    budget: float | None = None
    precision: str = "fp32"
    algorithm: str | None = None
    repeats: int = check.REPEATS
    kernels: str = ""

    @property
    def on_gpu(self) -> bool:
        return self.engine == "gpu"


class Time(ShapeTask[StepResult], frozen=True, kw_only=True, tag="jobs.time"):
    """Is a file right at full size, by samples, and how fast is it?

    ``preset``   the shape's name, for whoever asks
    ``seed``     that of the operands
    ``kernels``  the folder of kernels that are kept; empty: none are
    ``beside``   the precision in which it is timed in turn with the library, too; empty: it is not
    ``most_seconds``  that launches are repeated for
    """

    gpu: ClassVar[bool] = True
    preset: str = ""
    beside: str = ""
    seed: int = 0
    kernels: str = ""
    room_bytes: int = 0
    most_seconds: float = timing.MAX_SECONDS


class Prepare(FileTask[Result], frozen=True, kw_only=True, tag="jobs.prepare"):
    """Compile a file's kernels ahead.

    ``shapes``   those that will be asked for
    ``device``   the GPU they are for
    ``kernels``  the folder that keeps them
    """

    ahead: ClassVar[bool] = True
    shapes: list[dict[str, int]]
    device: device.Gpu
    kernels: str


class Rival(Message, frozen=True, kw_only=True):
    """A file that another one is timed against: ``path`` and ``helpers`` as in a :class:`FileTask`."""

    path: str
    helpers: dict[str, str] = field(default_factory=dict)


class Pair(ShapeTask[StepResult], frozen=True, kw_only=True, tag="jobs.pair"):
    """How fast is a file beside others? ``against``: those by name; with none it is timed alone."""

    gpu: ClassVar[bool] = True
    against: dict[str, Rival]
    room_bytes: int = 0


class Sweep(ShapeTask[StepResult], frozen=True, kw_only=True, tag="jobs.sweep"):
    """Is a file right with one ``tile``, and how fast? ``kernels``: the folder of those that are kept, or empty."""

    gpu: ClassVar[bool] = True
    alone: ClassVar[bool] = True  # another tile is another kernel
    tile: Tile
    kernels: str = ""
    room_bytes: int = 0


class Size(ShapeTask[SizeResult], frozen=True, kw_only=True, tag="jobs.size"):
    """At which size may a file's kernels be launched on this card?"""

    room_bytes: int = 0


class Launch(ShapeTask[LaunchResult], frozen=True, kw_only=True, tag="jobs.launch"):
    """Launch a file's kernels once, for tools that watch."""

    gpu: ClassVar[bool] = True


class Explain(ShapeTask[ExplainResult], frozen=True, kw_only=True, tag="jobs.explain"):
    """What would a step do for this shape, and why?"""

    gpu: ClassVar[bool] = True


class Compile(ShapeTask[StepResult], frozen=True, kw_only=True, tag="jobs.compile"):
    """What does a file compile to?

    ``architectures``  compute capabilities, ``9.0``
    ``machine_code``   assemble it, and count its instructions
    ``lenient``        without NVIDIA's tools, leave the count out
    ``others``         more shapes, by name
    """

    architectures: list[str]
    machine_code: bool = False
    lenient: bool = False
    others: dict[str, dict[str, int]] = field(default_factory=dict)


class Summarise(ShapeTask[StepResult], frozen=True, kw_only=True, tag="jobs.summarise"):
    """What is said of every kernel of a file?

    ``architecture``  the compute capability, ``9.0``
    ``show``          the text to show besides
    ``preset``        the shape's name, for whoever asks
    """

    architecture: str
    show: Literal["ptx", "sass"] | None = None
    preset: str = ""


class Maps(FileTask[StepResult], frozen=True, kw_only=True, tag="jobs.maps"):
    """Run a conv2d step on ``x`` and ``filt`` and save ``y``: .npy files, NCHW, KCRS and NKPQ."""

    gpu: ClassVar[bool] = True
    x: str
    filt: str
    y: str


class Peer(Task[PeerResult], frozen=True, kw_only=True, tag="jobs.peer"):
    """How fast are NVIDIA's libraries at one shape? ``preset``: its name, for whoever asks."""

    gpu: ClassVar[bool] = True
    ladder: str
    shape: dict[str, int]
    preset: str = ""
    room_bytes: int = 0


class Answer(Result, frozen=True, kw_only=True):
    """``found``: what the function returned."""

    found: object = None


class Ask(Task[Answer], frozen=True, kw_only=True, tag="jobs.ask"):
    """What does a function return in a child process? It travels by its name, with its arguments.

    ``touches_gpu``  then the process that owns the GPU calls it
    """

    function: Callable[..., object]
    given: tuple[object, ...] = ()
    touches_gpu: bool = True

    @property
    def on_gpu(self) -> bool:
        return self.touches_gpu
