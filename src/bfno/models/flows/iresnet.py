"""i-ResNet: residual networks whose blocks change so little that they can be inverted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.models.flows.factoring import (
    ActNorm,
    Bijection,
    Chain,
    ChannelSplit,
    FactoringFlow,
    Shape,
    Squeeze,
    halvings,
    image_shape,
    refuse_below_one,
)
from bfno.models.flows.interface import Encoding, FlowError

__all__ = [
    "DiagonalNormal",
    "FixedPoint",
    "IResNet",
    "LipschitzConv2d",
    "ResidualBlock",
    "ResidualSettings",
    "log_det_series",
]

Branch = Callable[[Tensor], Tensor]

_EVALUATION_ITERATIONS = 30
"""Rounds of the power method in evaluation, in addition to those made in training.

From a random start in n dimensions, r rounds underestimate a norm by about log(n) / (4 r) if its
singular values are as close together as possible: 8 per cent for 10,000 dimensions, which is less
than the margin that three layers of factor 0.9 leave before their product reaches 1.
"""


class LipschitzConv2d(nn.Conv2d):
    """A convolution whose weights are scaled down if its operator norm exceeds a bound.

    The norm is that of the whole linear map between images, including zeros at the border; for side
    1, it is that of the matrix between channels. It is found by the power method: training starts
    from the result of the last call and stores its own, evaluation changes nothing. (The class of
    this name in normflows never continues, and creates its state in the first call.)

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
            update: Whether training improves the norm. If not, it is that of the last improvement,
                so that a map and its inverse use the same weights.
        """
        weight, direction = self.weight, self.direction.clone()
        if update or not self.training:
            rounds = self.power_iterations if self.training else _EVALUATION_ITERATIONS
            direction = self._improved(direction, rounds)
        if update and self.training:
            self.direction.copy_(direction)
        # The derivative with respect to the direction is zero at the best direction.
        norm = torch.linalg.vector_norm(F.conv2d(direction, weight, padding=self._margin))
        return weight / (norm / self.coefficient).clamp(min=1)

    def apply_weight(self, x: Tensor, weight: Tensor) -> Tensor:
        """Apply the convolution with weights from `bounded_weight`."""
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


def log_det_series(
    output: Tensor, point: Tensor, noise: Tensor, terms: int, *, differentiable: bool
) -> Tensor:
    r"""Estimate the logarithm of $\det(I + J)$ for each sample.

    The series $\sum_{k=1}^{n} (-1)^{k+1} ε^\top J^k ε / k$ for the Jacobian J of a map, whose mean
    over the noise is the truncated series of traces. Its gradient is an estimate, too: that of
    $\sum_{k=0}^{n-1} (-1)^k ε^\top J^k (dJ) ε$, whose mean is the gradient of the same truncated
    series, which needs second derivatives in one term instead of n. (The estimate in normflows
    returns in training the value of the latter sum, which is not a log-determinant.)

    Args:
        output: Values of the map.
        point: The point at which they were computed.
        noise: The vectors ε, of zero mean and unit covariance.
        terms: The number n.
        differentiable: Whether the result has a gradient.
    """
    value, product, summed = output.new_zeros(len(output)), noise, torch.zeros_like(noise)
    for k in range(1, terms + 1):
        sign = -1 if k % 2 == 0 else 1
        summed = summed + sign * product
        (product,) = torch.autograd.grad(output, point, product, retain_graph=True)
        value = value + sign / k * (product * noise).flatten(1).sum(1)
    if not differentiable:
        return value
    (pulled,) = torch.autograd.grad(output, point, summed, create_graph=True)
    slope = (pulled * noise).flatten(1).sum(1)
    return value + (slope - slope.detach())


@dataclass(frozen=True)
class FixedPoint:
    """Solves x + g(x) = y for a contraction g.

    Attributes:
        tolerance: The iteration stops when no number of a sample changes by more than this share
            of its largest one (of 1 if that is smaller). None depends on the precision: 1e-5 for
            float32, 1e-11 for float64.
        max_iterations: Largest number of iterations.
    """

    tolerance: float | None = None
    max_iterations: int = 100

    def __post_init__(self) -> None:
        refuse_below_one(max_iterations=self.max_iterations)
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {self.tolerance}")

    def solve(self, branch: Branch, y: Tensor) -> Tensor:
        """Find x.

        Raises:
            FlowError: If the iteration does not converge.
        """
        tolerance = self.tolerance or torch.finfo(y.dtype).eps ** 0.7
        x, share = y, y.new_zeros(())
        for _ in range(self.max_iterations):
            before, x = x, y - branch(x)
            change = (x - before).detach().abs().flatten(1).amax(1)
            share = change / x.detach().abs().flatten(1).amax(1).clamp(min=1)
            if (share <= tolerance).all():
                return x
        raise FlowError(
            f"the inverse of a residual block changed by {share.max().item():.1e} in the last of "
            f"{self.max_iterations} iterations, above {tolerance:.1e}; raise max_iterations, or "
            "train with a smaller coefficient or more power_iterations"
        )


@dataclass(frozen=True)
class ResidualSettings:
    """Settings that the blocks of an i-ResNet share.

    Attributes:
        width: Channels inside.
        terms: Terms of the log-determinant's series in training.
        test_terms: Terms in evaluation.
        coefficient: Bound of the operator norm of each convolution.
        power_iterations: Rounds of the power method for that norm in each training step.
        inverse: How blocks are inverted.
    """

    width: int
    terms: int = 5
    test_terms: int = 20
    coefficient: float = 0.9
    power_iterations: int = 5
    inverse: FixedPoint = FixedPoint()

    def __post_init__(self) -> None:
        refuse_below_one(
            width=self.width,
            terms=self.terms,
            test_terms=self.test_terms,
            power_iterations=self.power_iterations,
        )
        if not 0 < self.coefficient < 1:
            raise ValueError(f"coefficient must lie between 0 and 1, got {self.coefficient}")


class ResidualBlock(Bijection):
    """Adds three bounded convolutions, of sides 3, 1 and 3, of an image to the image.

    Args:
        shape: Channels, height and width of an image.
        settings: Sizes and accuracies.
        activate: Whether an ELU comes before the first convolution, too, as before the others.
    """

    def __init__(self, shape: Shape, settings: ResidualSettings, *, activate: bool = True) -> None:
        super().__init__()
        channels, width, grid = shape[0], settings.width, shape[1:]
        bounds = {
            "coefficient": settings.coefficient,
            "power_iterations": settings.power_iterations,
        }
        self.convolutions: Any = nn.ModuleList(
            LipschitzConv2d(before, after, side, grid, **bounds)
            for before, after, side in (
                (channels, width, 3),
                (width, width, 1),
                (width, channels, 3),
            )
        )
        self.settings, self.activate = settings, activate

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        # Signs instead of normal noise: of all independent noise they give the least variance.
        noise = torch.randint_like(x, 2).mul_(2).sub_(1)
        return self.encode_with(noise, x)

    def encode_with(self, noise: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Encode, and estimate traces with given noise."""
        terms = self.settings.terms if self.training else self.settings.test_terms
        wanted = torch.is_grad_enabled()
        # Traces are derivatives, which are needed even if gradients are switched off; in
        # inference mode there are none at all.
        with torch.inference_mode(False), torch.set_grad_enabled(wanted):
            branch = self.branch(update=True)
            noise, x = (one.clone() if one.is_inference() else one for one in (noise, x))
        with torch.inference_mode(False), torch.enable_grad():
            point = x if wanted and x.requires_grad else x.detach().requires_grad_()
            added = branch(point)
            log_det = log_det_series(added, point, noise, terms, differentiable=wanted)
        return x + (added if wanted else added.detach()), log_det

    def decode(self, y: Tensor) -> Tensor:
        # In half precision the iteration would not converge.
        with torch.autocast(y.device.type, enabled=False):
            kind = self.convolutions[0].weight.dtype
            return self.settings.inverse.solve(self.branch(update=False), y.to(kind))

    def branch(self, *, update: bool) -> Branch:
        """The branch of the block, with weights bounded once for many calls."""
        weights = [layer.bounded_weight(update=update) for layer in self.convolutions]

        def added(x: Tensor) -> Tensor:
            for number, (layer, weight) in enumerate(zip(self.convolutions, weights, strict=True)):
                if number or self.activate:
                    x = F.elu(x)
                x = layer.apply_weight(x, weight)
            return x

        return added


class DiagonalNormal(Bijection):
    """Makes a vector with learned means and scales standard normal.

    Args:
        dimensions: Size of a vector.
    """

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(dimensions))
        self.log_scale = nn.Parameter(torch.zeros(dimensions))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x - self.mean) * (-self.log_scale).exp(), -self.log_scale.sum()

    def decode(self, y: Tensor) -> Tensor:
        return self.mean + y * self.log_scale.exp()


class IResNet(FactoringFlow):
    """i-ResNet for images.

    Residual blocks, each after an `ActNorm`, on increasingly coarse grids: the image is squeezed
    before each scale, and half of the channels leave after it. If a side is odd or would be less
    than 2, the grid stays the same, and a single channel is not divided: images are neither padded
    nor repeated in colours, which would change the number of dimensions in bits/dim.

    Densities are estimates: noise is drawn from torch's generator in each call, once for each
    block, and the series of the log-determinant is truncated, which biases it (upwards or
    downwards).

    Args:
        event_shape: Channels, height and width of an image.
        scales: Number of scales.
        blocks: Blocks in each scale.
        width: Channels inside the blocks.
        terms: Terms of the log-determinant's series in training.
        test_terms: Terms in evaluation.
        coefficient: Bound of the operator norm of each convolution.
        power_iterations: Rounds of the power method for that norm in each training step.
        **inverse: Attributes of `FixedPoint`: `tolerance` and `max_iterations`.

    References:
        Behrmann et al., Invertible Residual Networks, ICML 2019.

    Example:
        >>> flow = IResNet((1, 28, 28), blocks=1, width=4)
        >>> flow.encode(torch.rand(5, 1, 28, 28)).latent.shape
        torch.Size([5, 784])
    """

    def __init__(
        self,
        event_shape: Sequence[int],
        *,
        scales: int = 3,
        blocks: int = 16,
        width: int = 512,
        terms: int = 5,
        test_terms: int = 20,
        coefficient: float = 0.9,
        power_iterations: int = 5,
        **inverse: Any,
    ) -> None:
        refuse_below_one(scales=scales, blocks=blocks)
        shape = image_shape(event_shape)
        settings = ResidualSettings(
            width, terms, test_terms, coefficient, power_iterations, FixedPoint(**inverse)
        )
        stages, shapes = _stages(shape, scales, blocks, settings)
        super().__init__(shape, stages, [ChannelSplit() for _ in stages[1:]], shapes)
        self.prior = DiagonalNormal(self.dimensions)

    def encode(self, x: Tensor) -> Encoding:
        found = super().encode(x)
        latent, gained = self.prior.encode(found.latent)
        return Encoding(latent, found.log_det + gained)

    def decode(self, latent: Tensor) -> Tensor:
        self.check_latent(latent)
        return super().decode(self.prior.decode(latent))


def _stages(
    shape: Shape, scales: int, blocks: int, settings: ResidualSettings
) -> tuple[list[Bijection], list[Shape]]:
    """The blocks between splits, and the shapes of the splits' and the last blocks' latents."""
    stages: list[Bijection] = []
    shapes: list[Shape] = []
    parts: list[Bijection] = []
    for scale in range(scales):
        if halvings(*shape[1:]):
            parts.append(Squeeze())
            shape = (4 * shape[0], shape[1] // 2, shape[2] // 2)
        for block in range(blocks):
            first = scale == block == 0
            parts += [ActNorm(shape[0]), ResidualBlock(shape, settings, activate=not first)]
        if scale < scales - 1 and shape[0] > 1:
            stages.append(Chain(parts))
            shapes.append((shape[0] // 2, *shape[1:]))
            shape, parts = (shape[0] - shape[0] // 2, *shape[1:]), []
    return [*stages, Chain(parts)], [*shapes, shape]
