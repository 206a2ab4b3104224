"""What works beside a Hopper kernel's threads: copies of boxes, products of warpgroups, barriers that count bytes.

Each module imports from those below it only:

    engines       what blocks have for all of these: warpgroups that take turns, clusters, registers
    wgmma         the matrix unit: products that are under way
    tma           the copy engine: boxes of tensor maps on their way
    mbarriers     barriers that count arrivals and bytes, and the pipeline of stages that arrive at them
    tiles         shared memory that threads, copies and wgmma access, and what each warp knows to be done
    layouts       swizzled tiles, descriptors, boxes of im2col
"""
