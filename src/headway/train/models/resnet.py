"""ResNet-20, as it is used for CIFAR."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

_WIDTHS = (16, 16, 32, 64)
_BLOCKS_A_STAGE = 3


class Block(nn.Module):
    """Two convolutions with batch norm, around which the input passes: y = relu(x + f(x)).

    Where the number of channels grows, x is halved in size and padded with channels of zeros, so that the way around
    has no parameters.
    """

    def __init__(self, num_inputs: int, num_outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(num_inputs, num_outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
            nn.ReLU(),
            nn.Conv2d(num_outputs, num_outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(num_outputs),
        )
        self._stride = stride
        self._num_new = num_outputs - num_inputs

    def forward(self, x: Tensor) -> Tensor:
        """Return images of as many channels as there are outputs."""
        shortcut = x[:, :, :: self._stride, :: self._stride]
        if self._num_new:
            shortcut = nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self._num_new))
        return nn.functional.relu(self.body(x) + shortcut)


def resnet(num_classes: int = 10) -> nn.Module:
    """Return ResNet-20 for grey images: 3 stages of 3 blocks, 16, 32 and 64 channels wide.

    >>> sum(parameter.numel() for parameter in resnet().parameters())
    269434

    Reference: He et al., Deep Residual Learning for Image Recognition, 2015, section 4.2.
    """
    first = _WIDTHS[0]
    layers: list[nn.Module] = [nn.Conv2d(1, first, 3, padding=1, bias=False), nn.BatchNorm2d(first), nn.ReLU()]
    for narrow, wide in pairwise(_WIDTHS):
        layers.append(Block(narrow, wide, stride=1 if narrow == wide else 2))
        layers += [Block(wide, wide, stride=1) for _ in range(_BLOCKS_A_STAGE - 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(_WIDTHS[-1], num_classes))
