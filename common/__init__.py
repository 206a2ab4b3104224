"""The harness: finds, checks, times and draws the lessons' kernels. Kernels know nothing of it.

A module imports from those that it needs, never in a circle; only ``cli`` prints. Four folders
have maps of their own:

    code/         machine code: what a kernel became
    tracing/      the microscope: a block, access by access
    editing/      the edit loop: save, and hear what came of it
    grading/      exercises, and grading of other people's files

Harness: what is computed, on what, is it right, how fast

    cli           the command line
    arguments     its words: each option once, with a value of its kind
    run           each command's tasks, and what comes of them
    plan          what a check of a step consists of, engine by engine
    shapes        the shapes that it is checked at, chosen so that every pair of conditions occurs
    relay         one GPU for many processes, each alone, the next ones getting ready
    isolate       starts child processes, with a time limit for each task
    forkserver    forks processes from one that has Numba imported
    keeper        ends all that a child process has started
    child         what a child process does, task by task
    catalog       lessons, steps, experiments and ladders, found in the folders; loads step files
    problems      shapes, FLOPs, least bytes, presets
    inputs        seeded operands
    reference     the right answers, by NumPy in float64
    device        GPU or simulator; which GPU
    limits        threads, registers and shared memory that a block may take
    simulator     Numba's CUDA simulator, stricter and faster
    frozen        what a compiled kernel knows of its module: values of its first launch
    warps         lanes of a warp that wait for each other
    check         the verdict: right, or what is wrong
    diagnose      what wrong values say: where they belong, which terms are missing
    suspects      the mistakes that they are compared with
    probe         launches that single out one term
    terms         which products an output element sums, in index letters
    faults        what went wrong, at which line, and what to look at
    hazards       races and unset memory, watched in the simulator
    timing        CUDA events, a cold L2 cache, repeats
    fullsize      a problem at full size: its operands, made once, and a check that stays on the GPU
    large         arrays of more than 2^31 elements
    arraykernels  five kernels that look at large arrays where they are
    ceilings      this GPU's copy bandwidth and multiply-add rate
    peers         cuBLAS and cuDNN on the same problem
    profiler      hardware counters, by Nsight Compute
    sanitizer     NVIDIA's compute-sanitizer

What need not be done again, and where the time goes

    kept          results of unchanged code, by a key of all they depend on
    unchanged     the verdicts and compilations of steps that have not changed
    current       which rows of a record are as new as their code
    flow          the lines that are said as work is done
    selftime      the main job itself, timed
    ledger        what each process spent on each stage

Records, charts and pages

    store         reads and writes files, whole or not at all
    schema        what a file that was read must look like
    records       one JSON file for each GPU, one for machine code
    drawing       what is drawn, by several processes, and only if it changed
    charts        records to figures
    layers        one step across layers, beside the library
    pages         tables and figures inside Markdown pages
    tables        tables for the terminal
    photo         the photograph and its feature maps
"""

import os
import sys

# Started with -m in the checkout, Python looks there first: a file that somebody left there would be taken for one of
# the standard library's. Both modules are in memory by now.
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for _path in [path for path in sys.path if os.path.abspath(path) == _ROOT]:
    sys.path.remove(_path)
    sys.path.append(_path)
