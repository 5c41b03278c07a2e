"""The branched Fourier neural operator layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bfno.layers.activation import Activation, ActivationChoice, find_activation, known_activation
from bfno.layers.fourier import check_input, in_full_precision, is_empty
from bfno.layers.mixing import Recipe, Weights, complex_product, linearise_mixing, merge, mix
from bfno.layers.modules import known_method
from bfno.layers.pointwise import Pointwise, channels_first, channels_last
from bfno.layers.spectral import analyse, frequencies, synthesise
from bfno.tracing import without_autocast

__all__ = ["BFNO"]

Kernel = Literal["branch", "gate", "filter"]
Skip = Literal["identity", "linear", "conv"]
Init = Literal["published", "centred"]
INITS = ("published", "centred")
KERNELS, SKIPS = ("branch", "gate", "filter"), ("identity", "linear", "conv")


class BFNO(nn.Module):
    r"""Mixes channels in frequency space through parallel branches.

    The layer computes $F^{-1}(\rho(F(x))) + \mathrm{skip}(x)$. With $G = F(x)$, every branch $i$
    makes its own spectrum $O_i$, and $\rho$ merges them with one real linear map for the real parts
    and one for the imaginary parts. What a branch does is the `kernel`:

    - `"branch"`: $O_i = \sigma(G A_i + p_i)$, a complex affine map, the same at every frequency,
      with $\sigma$ applied to real and imaginary parts separately. This is what the paper's authors
      released, and it matches the paper's parameter counts.
    - `"gate"`: $O_i = \sigma(G A_i + p_i) \odot G$, a complex product.
    - `"filter"`: $O_i = R_i \odot G$ with a learned complex filter on a given `grid`. On another
      grid, frequencies that lie inside both keep their value and the others are filtered out.

    Args:
        channels: Width of input and output.
        branches: Number of branches.
        kernel: What a branch computes, see above.
        skip: Path around the spectrum: `"identity"`, `"linear"` (the paper's W) or `"conv"` (a
            convolution three points wide).
        activation: The function $\sigma$ inside the branches: relu, softplus, tanh, sigmoid,
            hardtanh (clipped to ±0.5), identity, or any elementwise function.
        output_activation: A function applied to the result, in the same pass over memory; None for
            none.
        init: How the branches' weights are initialised: `"published"`, uniform on [0, 1/channels)
            as in the authors' code, or `"centred"`, normal around 0 so that a branch keeps the size
            of its input, with zero biases.
        axes: Number of space axes; only `skip="conv"` needs it.
        grid: Points along each space axis; only `kernel="filter"` needs them.

    Shape:
        `(batch, channels, *space)` to the same, for one to three space axes of any size.

    Note:
        All weights are real: complex numbers are stored as pairs, so any gradient method works.
        Weights of `"branch"` and `"gate"` do not depend on the grid, but the result does: the
        activation makes the layer neither grid-size consistent nor equivariant to shifts.

    References:
        Cho et al., Operator-learning-inspired Modeling of Neural Ordinary Differential Equations,
        AAAI 2024.

    Example:
        >>> layer = BFNO(channels=4, branches=2)
        >>> layer(torch.zeros(1, 4, 9, 8)).shape
        torch.Size([1, 4, 9, 8])
    """

    takes_output_activation = True  # the layer can apply the next activation itself

    def __init__(
        self,
        channels: int,
        branches: int = 2,
        *,
        kernel: Kernel = "branch",
        skip: Skip = "identity",
        activation: ActivationChoice = "relu",
        output_activation: ActivationChoice | None = None,
        init: Init = "published",
        axes: int = 2,
        grid: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__()
        _check_options(channels=channels, branches=branches, axes=axes)
        _check_choice("kernel", kernel, KERNELS)
        _check_choice("skip", skip, SKIPS)
        _check_choice("init", init, INITS)
        grid = _checked_grid(grid, kernel)
        self.channels, self.branches, self.kernel, self.grid = channels, branches, kernel, grid
        self.activation, self.skip_kind = known_activation(activation), skip
        self.output_activation, self.init = output_activation, init
        if output_activation is not None:
            find_activation(output_activation)
        if grid is None:
            self.weight = nn.Parameter(torch.empty(branches, 2, channels, channels))
            self.bias = nn.Parameter(torch.empty(branches, 2, channels))
        else:
            half = (*grid[:-1], frequencies(grid[-1]))
            self.weight = nn.Parameter(torch.empty(branches, 2, channels, *half))
            self.register_parameter("bias", None)
        self.merge_real = nn.Linear(branches * channels, channels)
        self.merge_imag = nn.Linear(branches * channels, channels)
        self.skip: Any = _make_skip(skip, channels, axes)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw new weights for the branches, see `init`; other maps use PyTorch's default."""
        if self.init == "published":
            self.weight.uniform_(0, 1 / self.channels)
        else:  # real and imaginary parts add up; filters have no sum over channels
            self.weight.normal_(0, (2 * (1 if self.kernel == "filter" else self.channels)) ** -0.5)
        if self.bias is not None:
            self.bias.uniform_(0, 1 / self.channels if self.init == "published" else 0)

    def forward(self, x: Tensor) -> Tensor:
        dtype = self.weight.dtype
        check_input(x, self.channels, dtype)
        return x.clone() if is_empty(x) else in_full_precision(self._mixed, x, dtype)

    @property
    def can_linearise(self) -> bool:
        """Whether `linearise` supports this kernel and the path around it."""
        skip = self.skip
        has_transpose = skip is None or known_method(skip, "transposed") is not None
        return self.kernel == "branch" and has_transpose

    def linearise(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Apply the layer; return its result and a function that pulls a cotangent back through it.

        Both consist of differentiable operations, so that Jacobian products can be trained.

        Raises:
            ValueError: If the kernel is not `"branch"`, or the skip was replaced by another module;
                see `can_linearise`.
        """
        if not self.can_linearise:
            raise ValueError(
                f"linearise needs kernel='branch' and a skip that can be transposed, got "
                f"{self.kernel!r} and {type(self.skip).__name__}; use autograd"
            )
        dtype = self.weight.dtype
        check_input(x, self.channels, dtype)
        with without_autocast(x):
            result, pull = self._linearised(x.to(dtype))
        return result.to(x.dtype), lambda cotangent: in_full_precision(pull, cotangent, dtype)

    def _linearised(self, x: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        signal = channels_last(x).contiguous()
        sigma = find_activation(self.activation)
        mixed, pull_mixing = linearise_mixing(signal, self._weights(), sigma)
        before = channels_first(mixed) + (x if self.skip is None else self.skip(x))
        after = self._after()
        result = before if after is None else after.apply(before)

        def pull_back(cotangent: Tensor) -> Tensor:
            if after is not None:
                cotangent = cotangent * after.slope(before, result)
            mixing = channels_first(pull_mixing(channels_last(cotangent).contiguous()))
            return mixing + (cotangent if self.skip is None else self.skip.transposed(cotangent))

        return result, pull_back

    def extra_repr(self) -> str:
        return (
            f"channels={self.channels}, branches={self.branches}, kernel={self.kernel!r}, "
            f"skip={self.skip_kind!r}, activation={self.activation!r}, "
            f"output_activation={self.output_activation!r}"
        )

    def _after(self) -> Activation | None:
        choice = self.output_activation
        return None if choice is None else find_activation(choice)

    def _mixed(self, x: Tensor) -> Tensor:
        signal, skip, after = channels_last(x).contiguous(), self.skip, self._after()
        if self.kernel == "gate":
            mixed = self._gated(signal)
        else:
            sigma = find_activation(self.activation if self.kernel == "branch" else "identity")
            weights = self._weights(tuple(x.shape[2:]))
            if skip is None:
                return channels_first(mix(signal, weights, Recipe(sigma, True, after)))
            mixed = mix(signal, weights, Recipe(sigma, False))
        result = channels_first(mixed) + (x if skip is None else skip(x))
        return result if after is None else after.apply(result)

    def _weights(self, grid: tuple[int, ...] = ()) -> Weights:
        """The weights; those of a filter on the given grid."""
        inner = self.weight if self.grid is None else _fit_filter(self.weight, self.grid, grid)
        real, imaginary = self.merge_real, self.merge_imag
        return Weights(inner, self.bias, real.weight, real.bias, imaginary.weight, imaginary.bias)

    def _gated(self, signal: Tensor) -> Tensor:
        spectrum, weights = analyse(signal), self._weights()
        gate = find_activation(self.activation).apply(F.linear(spectrum, *weights.affine()))
        real, imaginary = gate.unflatten(-1, (2, self.branches, -1)).unbind(-3)
        hidden = complex_product(real, imaginary, spectrum)
        return synthesise(merge(hidden, weights), signal.shape[1])


def _fit_filter(weight: Tensor, grid: tuple[int, ...], new_grid: tuple[int, ...]) -> Tensor:
    """Carry a filter over to another grid, frequency by frequency.

    The highest frequency of an even grid stands for both signs and exists on no other grid.
    """
    if len(grid) != len(new_grid):
        raise ValueError(
            f"a filter on the grid {grid} needs input with {len(grid)} space axes, "
            f"got {len(new_grid)}"
        )
    for axis, (old, new) in enumerate(zip(grid, new_grid, strict=True), start=3):
        if old == new:
            continue
        inner = (min(old, new) - 1) // 2
        is_half = axis == weight.dim() - 1
        shape = list(weight.shape)
        shape[axis] = frequencies(new) - inner - 1 if is_half else new - 2 * inner - 1
        parts = [weight.narrow(axis, 0, inner + 1), weight.new_zeros(shape)]
        if not is_half:
            parts.append(weight.narrow(axis, old - inner, inner))
        weight = torch.cat(parts, dim=axis)
    return weight


class _ConvSkip(nn.Module):
    """Convolution three points wide, on tensors whose memory is channels-last."""

    def __init__(self, channels: int, axes: int) -> None:
        super().__init__()
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        self.conv = kind(channels, channels, kernel_size=3, padding=1)
        self._convolve = (F.conv1d, F.conv2d, F.conv3d)[axes - 1]

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        if x.dim() != weight.dim():
            raise ValueError(
                f"skip='conv' was built for {weight.dim() - 2} space axes, got input of shape "
                f"{tuple(x.shape)}; pass axes={x.dim() - 2} to the layer"
            )
        return self._apply_kernel(x, weight, self.conv.bias)

    def transposed(self, y: Tensor) -> Tensor:
        """Apply the transpose of the linear map."""
        # With its kernel flipped, the transpose is itself a convolution on the same grid.
        turned = self.conv.weight.flip(*range(2, y.dim())).transpose(0, 1)
        return self._apply_kernel(y, turned, None)

    def _apply_kernel(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # With space axes reversed the data is channels-last, which convolutions take as it is.
        reverse = (0, 1, *range(x.dim() - 1, 1, -1))
        result = self._convolve(x.permute(reverse), weight.permute(reverse), bias, padding=1)
        return result.permute(reverse)


def _make_skip(kind: Skip, channels: int, axes: int) -> nn.Module | None:
    if kind == "linear":
        return Pointwise(channels, channels)
    return _ConvSkip(channels, axes) if kind == "conv" else None


def _check_options(**sizes: int) -> None:
    for name, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a positive whole number, got {value!r}")
    if sizes["axes"] > 3:
        raise ValueError(f"axes must be 1, 2 or 3, got {sizes['axes']}")


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


def _checked_grid(grid: tuple[int, ...] | None, kernel: Kernel) -> tuple[int, ...] | None:
    """The grid of a filter as a tuple; other kernels have none."""
    if grid is None and kernel != "filter":
        return None
    points = "the points along each space axis, such as (16, 16)"
    if grid is None:
        raise ValueError(f"kernel='filter' needs grid, {points}")
    if kernel != "filter":
        raise ValueError(f"grid belongs to kernel='filter' alone, got kernel={kernel!r}")
    is_row = isinstance(grid, (tuple, list)) and grid  # a list comes from YAML
    if not is_row or not all(isinstance(one, int) and one > 0 for one in grid):
        raise ValueError(f"grid must be {points}, got {grid!r}")
    return tuple(grid)
