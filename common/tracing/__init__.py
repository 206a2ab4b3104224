"""The microscope: ``trace``, one block on the CPU, access by access.

Module by module:

    trace         runs the blocks, adds up what they access
    bench         a step on the tracer, as a check's bench
    lockstep      translates a kernel to run all its threads at once
    lanes         the threads' registers, branches, barriers
    intrinsics    what cuda.* and the lessons' helpers do
    values        arithmetic as Numba types it
    spaces        global, shared, constant and local arrays
    shadow        who touched each element of global memory: races of threads and of blocks
    memory        sectors, wavefronts, and the kinds of faults
    microscope    a trace in sentences; whether it explains a failed check
    agreement     the tracer's counts beside the hardware's
    tracefigures  pictures of traces
"""
