"""The harness: finds, checks, times and draws the lessons' kernels. Kernels know nothing of it.

A module imports from those that it needs, never in a circle; only ``cli`` prints.

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
    timing        CUDA events, a cold L2 cache, repeats
    ceilings      this GPU's copy bandwidth and multiply-add rate
    peers         cuBLAS and cuDNN on the same problem
    profiler      hardware counters, by Nsight Compute
    sanitizer     NVIDIA's compute-sanitizer

Machine code: what a kernel became

    codegen       compiles to PTX, assembles and disassembles, without a GPU
    sass          reads a disassembly: instructions, their classes, lines, loops
    occupancy     warps that fit a multiprocessor
    cards         a kernel's card: registers, occupancy, hot loop
    cardcache     cards made before
    cardtables    cards for the terminal

Memory microscope: ``trace``, one block on the CPU, access by access

    trace         runs the blocks, adds up what they access
    lockstep      translates a kernel to run all its threads at once
    lanes         the threads' registers, branches, barriers; what cuda.* and helpers do
    values        arithmetic as Numba types it
    spaces        global, shared, constant and local arrays
    memory        sectors, wavefronts, and the kinds of faults
    microscope    a trace in sentences; whether it explains a failed check
    agreement     the tracer's counts beside the hardware's
    tracefigures  pictures of traces

Edit loop: save, and hear what came of it

    loop          an edited step, stage by stage
    saves         tells when a file is saved
    shipped       the steps as they came
    history       every source that was run, and its verdict
    faults        what went wrong, at which line, and what to look at
    hazards       races and unset memory, watched in the simulator
    words         all this in sentences for the terminal

Exercises and grading: other people's files, in processes of their own

    exercises     what there is, hints, progress
    answers       what a prediction is compared with
    grade         verdicts on exercises and folders
    referee       keeps what a verdict rests on out of a file's reach
    nursery       warm processes, forked for each file
    player        the process that a file is imported in
    watch         what a file does beside starting kernels
    plans         what a step would start on a GPU, written down
    rehearse      a step in the simulator, its operands watched
    replay        runs plans on the GPU

Records, charts and pages

    records       one JSON file for each GPU, one for machine code
    charts        records to figures
    layers        one step across layers, beside the library
    pages         tables and figures inside Markdown pages
    tables        tables for the terminal
    photo         the photograph and its feature maps
"""
