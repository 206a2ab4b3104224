"""PyTorch multiplies, if it is installed.

Expect: imports
Says: imports torch
"""


def launch(a, b, c):
    import torch

    product = torch.as_tensor(a.copy_to_host()) @ torch.as_tensor(b.copy_to_host())
    c.copy_to_device(product.numpy())
