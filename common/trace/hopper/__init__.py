"""What works beside a Hopper kernel's threads: copies of boxes, products of warpgroups, barriers that count bytes.

Each module imports from those below it only:

    engines       warpgroups that take turns, clusters, registers
    wgmma         the matrix unit, descriptors of swizzled tiles
    mbarriers     barriers that count arrivals and bytes, the copy engine, and the pipeline of stages that it fills
    tiles         shared memory that threads and engines access, and what each lane knows to be done
"""
