"""PyTorch multiplies, if it is installed.

Refused: import of torch
Expect: crashed
Says: No module named .torch.|torch
Expect on GPU: host_access
Says on GPU: launch reaches into an operand from the host
"""


def launch(a, b, c):
    import torch

    product = torch.as_tensor(a.copy_to_host()) @ torch.as_tensor(b.copy_to_host())
    c.copy_to_device(product.numpy())
