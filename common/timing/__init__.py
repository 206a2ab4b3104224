"""How fast is a kernel, and its peers?

Module by module:

    clocks        the GPU's clock under load, and what holds it down
    timing        CUDA events, a cold L2 cache, repeats
    ceilings      this GPU's copy bandwidth and multiply-add rates
    tensorcores   kernels that do nothing but multiply on tensor cores
    fusing        what follows a convolution: in its kernel, in one of its own, and as PyTorch does it
    accuracy      errors of products over K, and operands that some precisions do not hold
    peers         cuBLAS and cuDNN on the same problem
    profiler      hardware counters, by Nsight Compute
    sanitizer     NVIDIA's compute-sanitizer
"""
