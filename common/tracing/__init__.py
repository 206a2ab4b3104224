"""The microscope: ``trace``, one block on the CPU, access by access.

Module by module:

    trace         runs the blocks, adds up what they access
    lockstep      translates a kernel to run all its threads at once
    lanes         the threads' registers, branches, barriers; what cuda.* and helpers do
    values        arithmetic as Numba types it
    spaces        global, shared, constant and local arrays
    memory        sectors, wavefronts, and the kinds of faults
    microscope    a trace in sentences; whether it explains a failed check
    agreement     the tracer's counts beside the hardware's
    tracefigures  pictures of traces
"""
