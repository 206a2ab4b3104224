"""The book: what there is to compute, where, and on what.

Module by module:
    catalog       lessons and their settings, steps, experiments and ladders, found in the folders; loads step files
    sources       what a result depends on: imports, hashes of code, versions of packages; what was shipped
    exercises     the exercises of the lessons, their hints, and what of both was used
    problems      shapes, FLOPs, least bytes, presets
    codes         arrays of codes, in place of types that NumPy lacks: e4m3 and bfloat16
    inputs        seeded operands whose sums are exact, and normals
    reference     the right answers, by NumPy in float64, and how far a kernel may be off
    limits        what a block may take, and how many warps fit a multiprocessor
    device        is there a GPU, and which
    cache         values found before, by a key of all they depend on
    store         reads and writes files, whole or not at all; what data from outside must be
"""
