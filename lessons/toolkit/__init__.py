"""What plain Numba does not offer, as functions that kernels call: instructions, loops written out, tiles, grids.

Each module imports from those below it only:

    tiles      tiles in registers and in shared memory: how large, who computes which, how they are filled
    grid       launch bounds, grids, and how many blocks share a tile of the output
    hopper     barriers that count bytes, copies of boxes, products of warpgroups, clusters: compute capability 9.0a
    maps       tensor maps: boxes of arrays, as the copy engine wants them described
    card       how much shared memory the card that runs has
    memory     wide and guarded loads and stores, copies to shared memory
    mma        products of a warp on tensor cores, and roundings to what these take
    narrow     integers of a kernel that have 32 bits without a cast at each
    unroll     loops written out before Numba sees them, functions that LLVM inlines
    ptx        how text in PTX becomes a function of a kernel

README.md lists the instructions.
"""
