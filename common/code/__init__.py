"""Machine code: what a kernel became.

Module by module:

    codegen       compiles to PTX, assembles and disassembles, without a GPU
    sass          reads a disassembly: instructions, their classes, lines, loops
    cards         a kernel's card: registers, occupancy, hot loop
    cardcache     cards made before
    kernelcache   kernels compiled before, to be run
"""
