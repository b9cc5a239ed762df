"""Linear layers in int8: weights with one scale an output, activations with one scale a token.

A scale for each token, not for the whole batch, keeps a text's potentials independent of the texts beside it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Int8Linear(nn.Module):
    """A linear layer whose product is of 8-bit integers, exact in 32 bits; for inference on a CPU."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()  # (out, in)
        scale = (weight.abs().amax(dim=1) / 127.0).clamp_min(1e-12)  # (out,)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8).t().contiguous())  # (in, out)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().float())

    def forward(self, x: Tensor) -> Tensor:
        """Return `x @ weight.T + bias`, to the precision of the scales."""
        rows = x.reshape(-1, self.in_features)  # (R, in)
        size = (rows.abs().amax(dim=1, keepdim=True) / 127.0).clamp_min(1e-12)  # (R, 1)
        small = (rows / size).round_().to(torch.int8)
        product = torch._int_mm(small, self.get_buffer("weight")).float()  # noqa: SLF001 - the integer product has no public name
        product.mul_(size).mul_(self.get_buffer("scale"))
        if isinstance(self.bias, Tensor):
            product.add_(self.bias)
        return product.reshape(*x.shape[:-1], self.out_features)


def quantise(module: nn.Module, *, keep: frozenset[str] = frozenset()) -> int:
    """Replace the linear layers under `module`, in place, but those named in `keep`; return how many.

    >>> net = nn.Sequential(nn.Linear(4, 2))
    >>> quantise(net), type(net[0]).__name__
    (1, 'Int8Linear')
    """
    count = 0
    for name, child in module.named_children():
        if name in keep:
            continue
        if isinstance(child, nn.Linear):
            setattr(module, name, Int8Linear(child))
            count += 1
        else:
            count += quantise(child, keep=keep)
    return count
