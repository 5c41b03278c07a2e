"""Image classification with a neural ODE."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bfno.ode import NeuralODE

__all__ = ["ImageClassifier"]


class ImageClassifier(nn.Module):
    """Classifies an image with a neural ODE followed by one linear layer.

    Args:
        block: The neural ODE; its `stats` hold the cost of the last solution.
        in_shape: Shape of one image, `(channels, *space)`.
        classes: Number of classes.

    Attributes:
        class_names: Name of each class; numbers until you set others.

    Shape:
        `(batch, *in_shape)` to scores `(batch, classes)`.

    Example:
        >>> from bfno.dynamics import FirstOrder
        >>> from bfno.fields import ConvField
        >>> block = NeuralODE(FirstOrder(ConvField(channels=1, hidden=8)))
        >>> classifier = ImageClassifier(block, (1, 8, 8), classes=10)
        >>> classifier(torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 10])
    """

    def __init__(self, block: NeuralODE, in_shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.block = block
        self.in_shape = tuple(in_shape)
        self.class_names = tuple(str(number) for number in range(classes))
        self.head = nn.Linear(_features(block, self.in_shape), classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != self.in_shape:
            raise ValueError(
                f"images must have shape (batch, {', '.join(map(str, self.in_shape))}), got "
                f"{tuple(x.shape)}; resize them or build the classifier for their shape"
            )
        return self.head(self.features(x))

    def features(self, x: Tensor) -> Tensor:
        """Input of the head, `(batch, features)`."""
        return self.block(x).flatten(1)

    @property
    def blocks(self) -> tuple[NeuralODE, ...]:
        """The neural ODEs that an image goes through, in order."""
        return (self.block,)


def _features(block: NeuralODE, in_shape: tuple[int, ...]) -> int:
    """Size of the read-out of one image, which depends on how the dynamics augment it."""
    like = next(block.parameters(), torch.empty(0))
    with torch.no_grad():
        y0 = block.dynamics.initial(like.new_zeros(1, *in_shape))
        return math.prod(block.dynamics.read_out(y0).shape)
