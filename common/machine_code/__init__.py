"""Machine code: what a kernel became.

Module by module:

    capture       what a step asks of Numba on the host, answered by others; what the driver must be told
    codegen       compiles to PTX, assembles and disassembles, without a GPU
    sass          reads a disassembly: instructions, their classes, lines, loops
    summaries     a kernel's summary: registers, occupancy, hot loop; which kernel is a step's main one
    kernelcache   kernels compiled before, to be run
"""
