"""The tracer: runs a kernel's blocks on the CPU and finds its faults and costs, access by access.

Module by module; each imports from itself and from those below it:

    script         runs a program of anybody's, as it is; what it finds in numba.cuda on the host
    trace          runs a step's blocks, or all launches of a program; device arrays of the tracer
    executor       runs a translated kernel: masks, branches, loads and stores, products
    functions      what a kernel's names stand for: functions, modules, types, constants
    translate      turns a kernel's AST into code that runs all threads at once; which variables live on
    expressions    the same for its expressions
    hopper/        what works beside the threads of a Hopper kernel
    helpers        the lessons' helpers, as kernels call them: wide accesses, copies, matrices in the lanes of a warp
    intrinsics     the registry of what kernels may call; what cuda.* does
    shared         shared and local arrays
    memory         global and constant arrays; arrays of records
    races          accesses that nothing orders; barriers of a block, and of the grid
    views          arrays as a kernel sees them, their indices, and reads of what nothing has written
    state          the threads that run, what they did and when, and how a fault of one is reported
    values         arithmetic as Numba types it; functions of math and libdevice
    cost           sectors, wavefronts, the ledger of a kernel, and figures of a trace
    messages       what a child process can be asked to trace, and what a trace is
"""
