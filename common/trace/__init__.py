"""The microscope: the tracer, all blocks on the CPU, access by access.

Module by module:

    trace         runs the blocks, adds up what they access
    bench         a step on the tracer, as a check's bench
    card          another card than an H200, as far as a step asks
    lockstep      translates a kernel to run all its threads at once
    lanes         the threads' registers, branches, barriers
    fragments     what a warp holds of the matrices that tensor cores multiply
    intrinsics    what cuda.* and the lessons' helpers do
    hopper        what the helpers of lessons/hopper.py do
    engines       what runs beside the threads of an asynchronous kernel
    teams         warpgroups that take turns, and deadlocks
    mbarriers     barriers that count arrivals and bytes
    clocks        what each warp knows to be done
    tiles         shared memory that threads, copies and wgmma access
    bulk          boxes of tensor maps on their way
    wgmma         descriptors, and products that are under way
    pipeline      when each stage is filled, full, multiplied and free
    values        arithmetic as Numba types it
    spaces        global, shared, constant and local arrays
    shadow        who touched each element of global memory: races of threads and of blocks
    rounds        races around the end of a loop
    memory        sectors, wavefronts, and the kinds of faults
    boxes         what copies and wgmma find where: boxes, swizzled tiles, descriptors
    messages      what a child process can be asked to trace, and answers
"""
