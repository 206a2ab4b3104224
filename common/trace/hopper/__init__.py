"""What works beside a Hopper kernel's threads: copies of boxes, products of warpgroups, barriers that count bytes.

Each module imports from those below it only:

    engines       warpgroups that take turns, clusters, registers
    tma           the copy engine
    wgmma         the matrix unit, swizzled tiles, descriptors
    mbarriers     barriers that count arrivals and bytes, and the pipeline of stages that arrive at them
    tiles         shared memory that threads and engines access, and what each lane knows to be done
"""
