"""The harness: finds, checks, times and draws the lessons' kernels. Kernels know nothing of it."""
