"""How fast is a kernel, and its peers?

Module by module:

    timing        CUDA events, a cold L2 cache, repeats; the GPU's clock meanwhile
    ceilings      this GPU's copy bandwidth and multiply-add rates, those of its tensor cores among them
    peers         cuBLAS and cuDNN on the same problem
    measuring     what is measured of steps, libraries and the GPU, in child processes
    tasks         what a child process does to measure
    tools         hardware counters, by Nsight Compute, and NVIDIA's compute-sanitizer
"""
