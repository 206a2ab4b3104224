"""Machine code: what a kernel became.

Module by module:

    capture       what a step asks of Numba on the host, answered by others
    codegen       compiles to PTX, assembles and disassembles, without a GPU
    sass          reads a disassembly: instructions, their classes, lines, loops
    loops         what a hot loop does, and which kernel is a step's main one
    messages      what is told of a kernel's machine code, and recorded
    cards         a kernel's card: registers, occupancy, hot loop
    kernelcache   kernels compiled before, to be run
    launching     tells the driver of launches that need more than 48 KiB, or run in clusters
"""
