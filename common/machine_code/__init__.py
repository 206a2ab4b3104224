"""Machine code: what a kernel became.

Module by module:

    capture       runs a step's functions on the host, and answers what it asks of Numba there
    codegen       compiles to PTX, assembles and disassembles, without a GPU; keeps kernels that a GPU runs
    summaries     reads a disassembly; a kernel's summary: registers, occupancy, hot loop; which is a step's main one
    successor     what numba-cuda-mlir makes of a step
    llvm_in_mlir  what it lacks of llvmlite and Numba, for the lessons' helpers
"""
