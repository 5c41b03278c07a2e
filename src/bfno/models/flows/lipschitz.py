"""Convolutions that bring no two images further apart than a given factor."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["LipschitzConv2d"]

_EVALUATION_ITERATIONS = 30
"""Rounds of the power method in evaluation, where they add to those that training made.

From a random start in n dimensions, r rounds underestimate a norm by about log(n) / (4 r) if its
singular values are as close together as can be: 8 per cent for 10,000 dimensions, which is less
than three layers of factor 0.9 leave before their product reaches 1.
"""


class LipschitzConv2d(nn.Conv2d):
    """A convolution whose weights are divided where its operator norm is above a bound.

    The norm is that of the whole linear map between images, zeros at the border included, for side
    1 that of the matrix between channels. It is found by the power method: training goes on from
    where the last call stopped and keeps what it found, evaluation changes nothing. (The one in
    normflows never goes on by itself, and creates its state in the first call.)

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        side: Side of the kernel; the image keeps its size.
        grid: Height and width of an image.
        coefficient: The bound.
        power_iterations: Rounds of the power method in each call in training.
    """

    direction: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        side: int,
        grid: tuple[int, int],
        *,
        coefficient: float,
        power_iterations: int,
    ) -> None:
        super().__init__(in_channels, out_channels, side, padding=side // 2)
        self._margin = side // 2
        self.coefficient, self.power_iterations = coefficient, power_iterations
        start = torch.randn(1, in_channels, *((1, 1) if side == 1 else grid))
        self.register_buffer("direction", start / torch.linalg.vector_norm(start))

    def bounded_weight(self, *, update: bool) -> Tensor:
        """The weights to use.

        Args:
            update: Whether training improves the norm. If not, it is that of the last call that
                did, so that a map and its inverse use the same weights.
        """
        weight, direction = self.weight, self.direction.clone()
        if update or not self.training:
            rounds = self.power_iterations if self.training else _EVALUATION_ITERATIONS
            direction = self._improved(direction, rounds)
        if update and self.training:
            self.direction.copy_(direction)
        # The derivative by the direction is zero where it is the best one.
        norm = torch.linalg.vector_norm(F.conv2d(direction, weight, padding=self._margin))
        return weight / (norm / self.coefficient).clamp(min=1)

    def apply_weight(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the convolution with weights that `bounded_weight` gave."""
        return self._conv_forward(x, weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return self.apply_weight(input, self.bounded_weight(update=True))

    @torch.no_grad()
    def _improved(self, direction: Tensor, rounds: int) -> Tensor:
        for _ in range(rounds):
            image = F.conv2d(direction, self.weight, padding=self._margin)
            back = F.conv_transpose2d(image, self.weight, padding=self._margin)
            norm = torch.linalg.vector_norm(back)
            # Weights that are all zero must not destroy the direction.
            direction = torch.where(norm > 0, back / norm, direction)
        return direction
