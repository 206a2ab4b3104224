"""Is a kernel right?

Module by module:

    check         the verdict: right, or what is wrong
    plan          what a check of a step consists of, engine by engine; its shapes are data, shapes.toml
    drawn         shapes drawn from a seed, far out on any axis
    shapes        the shapes of `check --full`, among which every pair of conditions occurs
    inputs        seeded operands
    blank         what an element holds that nobody has written
    fullsize      a problem at full size: its operands, made once, and a check that stays on the GPU
    budget        how large a problem this card takes: bytes, and seconds of a launch
    large         arrays of more than 2^31 elements
    arraykernels  five kernels that look at large arrays where they are
    oracle        the right answers where they are quickest
    gpuoracle     those by plain kernels on a GPU, a thread for each output
"""
