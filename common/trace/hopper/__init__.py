"""What works beside a Hopper kernel's threads: copies of boxes, products of warpgroups, barriers that count bytes.

Each module imports from those below it only:

    engines       what blocks have for all of these; clusters, registers, and the end of a block
    wgmma         the matrix unit: products that are under way
    tma           the copy engine: boxes of tensor maps on their way
    mbarriers     barriers that count arrivals and bytes
    tiles         shared memory that threads, copies and wgmma access
    teams         warpgroups that take turns, and deadlocks
    pipeline      when each stage is filled, full, multiplied and free
    layouts       swizzled tiles, descriptors, boxes of im2col
    clocks        what each warp knows to be done
"""
