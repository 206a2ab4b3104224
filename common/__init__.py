"""The harness: finds, checks, times and draws the lessons' kernels. Kernels know nothing of it.

A module imports from those that it needs, never in a circle; only ``cli`` prints. Four folders
have maps of their own:

    code/         machine code: what a kernel became
    tracing/      the microscope: a block, access by access
    editing/      the edit loop: save, and hear what came of it
    grading/      exercises, and grading of other people's files

Harness: what is computed, on what, is it right, how fast

    cli           the command line
    run           each command's tasks, and what comes of them
    isolate       starts child processes, with a time limit for each task
    child         what a child process does, task by task
    catalog       lessons, steps, experiments and ladders, found in the folders; loads step files
    problems      shapes, FLOPs, least bytes, presets
    inputs        seeded operands
    reference     the right answers, by NumPy in float64
    device        GPU or simulator; which GPU
    limits        threads, registers and shared memory that a block may take
    simulator     Numba's CUDA simulator, stricter and faster
    check         the verdict: right, or what is wrong
    diagnose      which usual mistake a wrong result looks like
    faults        what went wrong, at which line, and what to look at
    hazards       races and unset memory, watched in the simulator
    timing        CUDA events, a cold L2 cache, repeats
    ceilings      this GPU's copy bandwidth and multiply-add rate
    peers         cuBLAS and cuDNN on the same problem
    profiler      hardware counters, by Nsight Compute
    sanitizer     NVIDIA's compute-sanitizer

Records, charts and pages

    records       one JSON file for each GPU, one for machine code
    charts        records to figures
    layers        one step across layers, beside the library
    pages         tables and figures inside Markdown pages
    tables        tables for the terminal
    photo         the photograph and its feature maps
"""
