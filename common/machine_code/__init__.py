"""Machine code: what a kernel became.

Module by module:

    capture       runs a step's functions on the host, and answers what it asks of Numba there
    codegen       compiles to PTX, assembles and disassembles, without a GPU
    sass          reads a disassembly: instructions, their classes, lines, loops
    summaries     a kernel's summary: registers, occupancy, hot loop; which kernel is a step's main one
    successor     what numba-cuda-mlir makes of a step
    llvm_in_mlir  what it lacks of llvmlite and Numba, for the lessons' helpers
    kernelcache   kernels compiled before, to be run
"""
