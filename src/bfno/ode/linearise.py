"""Jacobians of fields, and linear equations with them.

Implicit steps solve equations with the matrix `I - hAJ`, gradients with its transpose. The way
depends on the state:

- Small states, of up to `MOST_NUMBERS` numbers: the whole Jacobian and its LU factors.
- Batches: one small Jacobian per sample, if the field treats samples separately. This is tested,
  not assumed: every Jacobian comes with products with a few more vectors, each zero for some of the
  samples, and the products have to be zero there, too.
- All others: only products of the Jacobian with vectors, and GMRES.

A Jacobian takes one evaluation of the field, whose graph is then run backward once per column of a
sample, all at once if autograd can.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bfno.ode.evaluate import Evaluator
from bfno.ode.replay import Surroundings
from bfno.ode.sizes import euclidean_norm, power_of_two
from bfno.ode.solution import GradientError, Stats, refuse_all_but_one_gradient
from bfno.ode.state import real_dtype
from bfno.tracing import without_autocast

__all__ = [
    "Linearisation",
    "Linearizer",
    "Pullback",
    "System",
    "TransposedSystem",
    "differentiating_twice",
    "following_time",
    "gmres",
    "make_system",
    "solve_transposed",
]

MOST_NUMBERS = 512
"""Numbers of a state, or of a sample, up to which its Jacobian is formed."""
MOST_ENTRIES = 1 << 22
"""Entries of Jacobians up to which they are formed."""
MOST_DIFFERENCES = 64
"""Numbers of a state up to which a Jacobian is formed from differences."""

SMALL = 32
"""Size of matrices up to which multiplying by an inverse is faster than using LU factors."""

Vectors = Sequence[Tensor]
"""One tensor like the state for every stage of a block."""


def _flat(values: Tensor, lead: int = 0) -> Tensor:
    """All real numbers of a state along one axis, after some axes that are kept."""
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    return values.reshape(*values.shape[:lead], -1)


def _shaped(flat: Tensor, like: Tensor) -> Tensor:
    """The inverse of `_flat`; axes before the last are kept."""
    lead = flat.shape[:-1]
    if like.is_complex():
        return torch.view_as_complex(flat.reshape(*lead, *like.shape, 2).contiguous())
    return flat.reshape((*lead, *like.shape))  # possibly no axes


@functools.lru_cache(maxsize=32)
def _groups(rows: int) -> Tensor:
    """Membership in a few groups of samples; for any two samples, some group has only the first.

    Example:
        >>> _groups(2).tolist(), len(_groups(64)), len(_groups(1024))
        ([[True, False], [False, True]], 8, 13)
    """
    count = 1
    while math.comb(count, count // 2) < rows:
        count += 1
    # Different sets of one size, so none is a subset of another.
    sets = list(itertools.islice(itertools.combinations(range(count), count // 2), rows))
    return torch.tensor([[group in own for own in sets] for group in range(count)])


class Pullback:
    """Products of vectors with the Jacobian of one tensor by another, along a recorded graph.

    Args:
        output: The tensor, or its place in the graph; None is one that depends on nothing.
        point: The tensor it was computed from, or its place.
        like: A state.
    """

    def __init__(self, output: Any, point: Any, like: Tensor) -> None:
        self._output, self._point, self.like = output, point, like

    def __call__(self, vector: Tensor) -> Tensor:
        """The product with one vector."""
        if self._output is None:
            return torch.zeros_like(vector)
        found = torch.autograd.grad(
            self._output, self._point, vector, retain_graph=True, allow_unused=True
        )[0]
        return torch.zeros_like(vector) if found is None else found.detach()

    def at_once(self, vectors: Tensor) -> Tensor:
        """The products with many vectors, as far as autograd can vectorise the field."""
        if self._output is None:
            return torch.zeros_like(vectors)
        found = torch.autograd.grad(
            self._output,
            self._point,
            vectors,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=True,
        )[0]
        return torch.zeros_like(vectors) if found is None else found.detach()


class Linearizer:
    """Linearises one field, and remembers what it has found out about it.

    Args:
        like: A state.
        stats: Where Jacobians and factorisations are counted.
    """

    def __init__(self, like: Tensor, stats: Stats) -> None:
        self.stats = stats
        count = like.numel() * (2 if like.is_complex() else 1)
        self._count, self._rows = count, len(like) if like.dim() > 1 else 1
        self._is_dense = count <= MOST_NUMBERS
        size = count // max(self._rows, 1)
        self._by_rows = self._rows > 1 and 0 < size <= MOST_NUMBERS and count * size <= MOST_ENTRIES
        self._at_once = True
        self._surroundings = Surroundings(like.device)
        self.last: tuple[Any, Any] = (None, None)  # equations of a gradient, and their solver

    def at(
        self, evaluate: Evaluator, t: Tensor, z: Tensor, *, with_time: bool = False
    ) -> Linearisation:
        """The field around a point.

        Args:
            evaluate: Calls the field: once, or more often if the call leaves no graph.
            t: The time.
            z: The state.
            with_time: Whether its derivative with respect to time is needed.

        Raises:
            ValueError: If the field draws random numbers.
        """
        self.stats.jacobians += 1
        self.stats.forward_evaluations += 1
        random = self._surroundings.random_state()
        with torch.inference_mode(False), torch.enable_grad(), following_time(with_time):
            time = t.detach().clone().requires_grad_(with_time)
            point = z.detach().clone().requires_grad_()
            try:
                slope = evaluate(time, point)
            except RuntimeError:  # a field that cannot be differentiated, or fails in any case
                self.stats.forward_evaluations += 1
                with torch.no_grad():
                    slope = evaluate(time.detach(), point.detach())
        if self._surroundings.random_state() is not random:
            self._refuse_random(evaluate, t, z, slope)
        if not slope.requires_grad:
            return self._from_differences(evaluate, t, z, slope, with_time)
        by_time = _derivative_by_time(slope, time) if with_time else None
        matrix = self.matrix(Pullback(slope, point, point.detach()))
        if matrix is not None:
            return Linearisation(self, slope.detach(), matrix=matrix, by_time=by_time)
        product = _product(slope, point, evaluate, t, self.stats)
        return Linearisation(self, slope.detach(), product=product, by_time=by_time)

    def _refuse_random(self, evaluate: Evaluator, t: Tensor, z: Tensor, slope: Tensor) -> None:
        """Refuse a field whose result changes from call to call, unless a thread caused it."""
        self.stats.forward_evaluations += 1
        with torch.no_grad():
            again = evaluate(t, z)
        if not torch.equal(again.nan_to_num(), slope.detach().nan_to_num()):
            raise ValueError(
                "the field must not draw random numbers (dropout) where a method solves equations "
                "with it; call .eval(), or use an explicit method such as dopri5"
            )

    def matrix(self, pull: Pullback) -> Tensor | None:
        """The Jacobian as `(samples, size, size)`, or None if it is too large.

        Samples that depend on each other count as one.
        """
        if self._by_rows:
            matrix = self._separate(pull)
            if matrix is not None:
                return matrix
            self._by_rows = False  # and will not become separate later
        if not self._is_dense:
            return None
        basis = torch.eye(self._count, dtype=real_dtype(pull.like.dtype), device=pull.like.device)
        return self._pull(pull, basis)[None]

    def _separate(self, pull: Pullback) -> Tensor | None:
        """One Jacobian for every sample, or None if samples depend on each other."""
        like, rows, size = pull.like, self._rows, self._count // self._rows
        kind: dict[str, Any] = {"dtype": real_dtype(like.dtype), "device": like.device}
        basis = torch.eye(size, **kind)[:, None].expand(size, rows, size)
        # Without a simple period, so that nothing cancels.
        probe = torch.arange(1, self._count + 1, **kind).cos_().view(rows, size)
        groups = _groups(rows).to(like.device)[:, :, None]
        vectors = torch.cat((basis, groups * probe)).reshape(size + len(groups), -1)
        found = self._pull(pull, vectors).view(-1, rows, size)
        # Exactly zero, even if one sample is much stiffer: nothing is rounded there.
        if bool((found[size:].masked_fill(groups, 0.0).abs() > 0).any()):
            return None
        return found[:size].transpose(0, 1).contiguous()

    def _pull(self, pull: Pullback, vectors: Tensor) -> Tensor:
        """Products with rows of flat vectors."""
        if not vectors.numel():
            return vectors
        shaped = _shaped(vectors, pull.like)
        if self._at_once:
            try:
                return _flat(pull.at_once(shaped), 1)
            except Exception:  # from a field that cannot be vectorised, with an unhelpful message
                self._at_once = False
        return torch.stack([_flat(pull(one)) for one in shaped])

    def _from_differences(
        self, evaluate: Evaluator, t: Tensor, z: Tensor, slope: Tensor, with_time: bool
    ) -> Linearisation:
        """The same for a field that autograd cannot follow, such as one that uses NumPy."""
        by_time = None
        if with_time:
            self.stats.forward_evaluations += 1
            shift = math.sqrt(torch.finfo(t.dtype).eps) * max(float(t.abs()), 1e-3)
            with torch.no_grad():
                by_time = (evaluate(t + shift, z) - slope) / shift

        def product(vector: Tensor) -> Tensor:
            return _difference(evaluate, t, z, slope, vector, self.stats)

        if self._count > MOST_DIFFERENCES:
            return Linearisation(self, slope, product=product, by_time=by_time)
        basis = torch.eye(self._count, dtype=real_dtype(z.dtype), device=z.device)
        columns = [_flat(product(_shaped(one, z))) for one in basis]
        matrix = torch.stack(columns, dim=1)[None] if columns else basis[None]
        return Linearisation(self, slope, matrix=matrix, by_time=by_time)


@contextlib.contextmanager
def following_time(wanted: bool = True) -> Iterator[None]:
    """Let fields read the time as a number without a warning, although autograd follows it."""
    if not wanted:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad=True")
        yield


def _derivative_by_time(slope: Tensor, time: Tensor) -> Tensor | None:
    """The derivative of a field with respect to time; None if it does not depend on time."""
    with torch.inference_mode(False), torch.enable_grad(), differentiating_twice():
        dual = torch.zeros_like(slope).requires_grad_()
        (pulled,) = torch.autograd.grad(slope, time, dual, create_graph=True, allow_unused=True)
        if pulled is None:
            return None
        # Linear in `dual`, or differentiable only once.
        return torch.autograd.grad(pulled, dual, torch.ones_like(pulled))[0]


@contextlib.contextmanager
def differentiating_twice() -> Iterator[None]:
    """Raise a clear error if autograd cannot differentiate a field's derivatives.

    Raises:
        ValueError: If it cannot.
    """
    try:
        yield
    except GradientError:
        raise
    except RuntimeError as error:
        raise ValueError(
            "a Rosenbrock method needs a field that can be differentiated twice; use kvaerno5 "
            f"instead ({error})"
        ) from error


def _difference(
    evaluate: Evaluator, t: Tensor, z: Tensor, slope: Tensor, vector: Tensor, stats: Stats
) -> Tensor:
    """Product of a Jacobian with a vector, from two values of the field."""
    length = euclidean_norm(vector)
    if length == 0:
        return torch.zeros_like(vector)
    scale = euclidean_norm(z) / math.sqrt(max(z.numel(), 1))
    shift = math.sqrt(torch.finfo(z.dtype).eps) * max(scale, 1e-3) / length
    stats.forward_evaluations += 1
    with torch.no_grad():
        return (evaluate(t, torch.add(z, vector, alpha=shift)) - slope) / shift


def _product(
    slope: Tensor, point: Tensor, evaluate: Evaluator, t: Tensor, stats: Stats
) -> Callable[[Tensor], Tensor]:
    """Products of the Jacobian with vectors: the derivative of the pullback, which is linear."""
    with torch.inference_mode(False), torch.enable_grad():
        dual = torch.zeros_like(slope).requires_grad_()
        try:
            pulled = torch.autograd.grad(slope, point, dual, create_graph=True, allow_unused=True)[
                0
            ]
        except RuntimeError:  # a field that can be differentiated once only
            pulled = slope

    def product(vector: Tensor) -> Tensor:
        if pulled is None:
            return torch.zeros_like(vector)
        if pulled is not slope and pulled.requires_grad:
            found = torch.autograd.grad(pulled, dual, vector, retain_graph=True, allow_unused=True)
            if found[0] is not None:
                return found[0]
        return _difference(evaluate, t, point.detach(), slope.detach(), vector, stats)

    return product


class Linearisation:
    """A field around a point.

    Args:
        linearizer: The linearizer that made it.
        slope: The field at the point.
        matrix: Its Jacobian, `(samples, size, size)`.
        product: Products of the Jacobian with vectors, if there is no matrix.
        by_time: The derivative with respect to time, if it was requested and is not zero.
    """

    def __init__(
        self,
        linearizer: Linearizer,
        slope: Tensor,
        matrix: Tensor | None = None,
        product: Callable[[Tensor], Tensor] | None = None,
        by_time: Tensor | None = None,
    ) -> None:
        self._linearizer, self.slope = linearizer, slope
        self.matrix, self.product, self.by_time = matrix, product, by_time
        self._systems: dict[bytes, System | None] = {}

    def is_finite(self) -> bool:
        """Whether the field and its Jacobian have values there."""
        parts = (self.slope,) if self.matrix is None else (self.slope, self.matrix)
        return all(bool(torch.isfinite(part).all()) for part in parts)

    def system(self, coupling: np.ndarray) -> System | None:
        """The equations of a block of stages; None if they have no solution.

        Args:
            coupling: How stages depend on each other, times the step size.
        """
        key = coupling.tobytes()
        if key not in self._systems:
            self._systems = {key: make_system(self._linearizer, [self] * len(coupling), coupling)}
        return self._systems[key]


def make_system(
    linearizer: Linearizer, points: Sequence[Linearisation], coupling: np.ndarray
) -> System | None:
    """The equations `x_i - Σ_j coupling_ij J_i x_j = r_i` of stages around their own points."""
    matrices, like = [point.matrix for point in points], points[0].slope
    if _are_alike(matrices):
        return factorise(linearizer, matrices, coupling, like)

    def apply(xs: Vectors) -> list[Tensor]:
        mixed = [_mixed(row, xs) for row in coupling]
        return [
            x - (_shaped(_multiplied(one.matrix, part), like) if one.product is None
                 else one.product(part))
            for x, one, part in zip(xs, points, mixed, strict=True)
        ]  # fmt: skip

    return KrylovSystem(apply, like)


def factorise(
    linearizer: Linearizer, matrices: Sequence[Any], coupling: np.ndarray, like: Tensor
) -> FactoredSystem | None:
    """The same with Jacobians `(samples, size, size)`; None if they are singular or not finite."""
    linearizer.stats.factorisations += 1
    count, (rows, size, _) = len(coupling), matrices[0].shape
    if count == 1:
        whole = matrices[0] * -float(coupling[0, 0])
    else:
        stacked = torch.stack(list(matrices))
        weights = torch.as_tensor(coupling, dtype=stacked.dtype, device=stacked.device)
        whole = -torch.einsum("ij,irkl->rikjl", weights, stacked)
        whole = whole.reshape(rows, count * size, count * size)
    whole.diagonal(dim1=-2, dim2=-1).add_(1)
    factors, pivots, problems = torch.linalg.lu_factor_ex(whole)
    if bool(problems.any()) or not bool(torch.isfinite(factors).all()):
        return None
    return FactoredSystem((factors, pivots), (count, rows, size), like)


def _are_alike(matrices: Sequence[Tensor | None]) -> bool:
    """Whether all have Jacobians, of the same form."""
    shapes = {None if one is None else one.shape for one in matrices}
    return len(shapes) == 1 and None not in shapes


def _mixed(row: np.ndarray, xs: Vectors) -> Tensor:
    """A sum of vectors."""
    total = xs[0] * float(row[0])
    for weight, x in zip(row[1:], xs[1:], strict=True):
        total = torch.add(total, x, alpha=float(weight))
    return total


def _multiplied(matrix: Any, vector: Tensor) -> Tensor:
    rows, size, _ = matrix.shape
    with without_autocast(vector):
        return (matrix @ _flat(vector).view(rows, size, 1)).reshape(-1)


class System(ABC):
    """Linear equations of a block of stages."""

    @abstractmethod
    def solve(self, right: Vectors, rtol: float = 1e-3) -> list[Tensor]:
        """The solution.

        Args:
            right: The right-hand sides.
            rtol: Relative tolerance of the residual, for iterative solvers.
        """


class FactoredSystem(System):
    """Equations with factorised matrices, one per sample."""

    def __init__(
        self, factors: tuple[Tensor, Tensor], sizes: tuple[int, int, int], like: Tensor
    ) -> None:
        self._factors, self._sizes, self._like = factors, sizes, like
        self._inverse: Tensor | None = None

    def solve(self, right: Vectors, rtol: float = 1e-3) -> list[Tensor]:
        count, rows, size = self._sizes
        if rtol < 1e-3 or count > 1 or size > SMALL:
            return self._solve(right, transposed=False)
        if self._inverse is None:
            eye = torch.eye(size, dtype=self._factors[0].dtype, device=self._factors[0].device)
            self._inverse = torch.linalg.lu_solve(*self._factors, eye.expand(rows, size, size))
        return [_shaped(_multiplied(self._inverse, right[0]), self._like)]

    def solve_transposed(self, right: Vectors) -> list[Tensor]:
        """The solution of the transposed equations."""
        return self._solve(right, transposed=True)

    def _solve(self, right: Vectors, *, transposed: bool) -> list[Tensor]:
        count, rows, size = self._sizes
        like = self._like
        if count == 1:
            column = _flat(right[0]).view(rows, size, 1)
            found = torch.linalg.lu_solve(*self._factors, column, adjoint=transposed)
            return [_shaped(found.reshape(-1), like)]
        column = torch.stack([_flat(one).view(rows, size) for one in right], dim=1)
        column = column.reshape(rows, count * size, 1)
        found = torch.linalg.lu_solve(*self._factors, column, adjoint=transposed)
        parts = found.view(rows, count, size).unbind(1)
        return [_shaped(part.reshape(-1), like) for part in parts]


class KrylovSystem(System):
    """Equations for which only products of the matrix with vectors are known.

    Args:
        apply: The product.
        like: A state.
    """

    def __init__(self, apply: Callable[[Vectors], Vectors], like: Tensor) -> None:
        self._apply, self._like = apply, like

    def solve(self, right: Vectors, rtol: float = 1e-3) -> list[Tensor]:
        return self.solve_to(right, rtol)[0]

    def solve_to(self, right: Vectors, rtol: float) -> tuple[list[Tensor], float]:
        """The solution, and the residual as a share of the right-hand sides."""
        count = len(right)
        flat = torch.cat([_flat(one) for one in right])

        def apply(vector: Tensor) -> Tensor:
            parts = [_shaped(part, self._like) for part in vector.chunk(count)]
            return torch.cat([_flat(one) for one in self._apply(parts)])

        found, left = gmres(apply, flat, rtol)
        return [_shaped(part, self._like) for part in found.chunk(count)], left


def gmres(
    apply: Callable[[Tensor], Tensor],
    right: Tensor,
    rtol: float,
    *,
    basis: int = 100,
    restarts: int = 10,
) -> tuple[Tensor, float]:
    """Solve linear equations by the generalised minimal residual method, restarted.

    Args:
        apply: The product of the matrix with a vector.
        right: The right-hand side.
        rtol: Bound of the residual, relative to the right-hand side.
        basis: Largest number of vectors kept.
        restarts: Largest number of restarts.

    Returns:
        The solution, and the residual as a share of the right-hand side. Both are not-a-number
        where numbers overflow.
    """
    unit = power_of_two(right)  # otherwise squares of its numbers would overflow or vanish
    right = right / unit
    found = torch.zeros_like(right)
    whole = float(torch.linalg.vector_norm(right))
    if whole == 0:
        return found, 0.0
    if not math.isfinite(whole):  # zeros would look like a solution
        return found + math.nan, math.nan
    residual, left = right, whole
    for _ in range(restarts):
        found = found + _minimised(apply, residual, left, rtol * whole, basis)
        residual = right - apply(found)
        before, left = left, float(torch.linalg.vector_norm(residual))
        if not left > rtol * whole or left > 0.9 * before:  # done, or no longer useful
            break
    if not math.isfinite(left):
        return found + math.nan, math.nan
    return found * unit, left / whole


def _minimised(
    apply: Callable[[Tensor], Tensor], residual: Tensor, norm: float, goal: float, most: int
) -> Tensor:
    """The change that makes a residual smallest within a Krylov space."""
    most = min(most, residual.numel())
    basis = residual.new_zeros(most + 1, residual.numel())
    basis[0] = residual / norm
    columns, weights, count = np.zeros((most + 1, most)), np.zeros(0), 0
    for count in range(1, most + 1):
        known, vector = basis[:count], apply(basis[count - 1])
        for _ in range(2):  # twice is enough to be orthogonal to rounding
            with without_autocast(vector):
                shares = known @ vector
                vector = vector - shares @ known
            columns[:count, count - 1] += shares.double().cpu().numpy()
        length = float(torch.linalg.vector_norm(vector))
        columns[count, count - 1] = length
        target = np.zeros(count + 1)
        target[0] = norm
        part = columns[: count + 1, :count]
        if not np.isfinite(part).all():
            return torch.full_like(residual, math.nan)
        weights = np.linalg.lstsq(part, target, rcond=None)[0]
        left = np.linalg.norm(part @ weights - target)
        if left <= goal or length <= 1e-14 * norm or count == most:
            break
        basis[count] = vector / length
    with without_autocast(residual):
        return residual.new_tensor(weights) @ basis[:count]


def solve_transposed(
    linearizer: Linearizer,
    pulls: Sequence[Pullback],
    coupling: np.ndarray,
    right: Vectors,
) -> list[Tensor]:
    """Solve the equations of a gradient: `x_i - Σ_j coupling_ji J_jᵀ x_j = r_i`.

    Args:
        linearizer: What is known about the field.
        pulls: Products with the Jacobian of each stage.
        coupling: How stages depend on each other, times the step size.
        right: The right-hand sides.

    Raises:
        GradientError: If they have no solution, or it cannot be found.
    """
    return transposed_solver(linearizer, pulls, coupling, right[0])(right)


def transposed_solver(
    linearizer: Linearizer, pulls: Sequence[Pullback], coupling: np.ndarray, like: Tensor
) -> Callable[[Vectors], list[Tensor]]:
    """Solver of these equations, for one right-hand side at a time."""
    matrices = [linearizer.matrix(pull) for pull in pulls]
    if not _are_alike(matrices):  # samples have been found to depend on each other
        matrices = [linearizer.matrix(pull) for pull in pulls]
    if _are_alike(matrices):
        system = factorise(linearizer, matrices, coupling, like)
        if system is None:
            raise GradientError(_SINGULAR)
        return system.solve_transposed

    def apply(xs: Vectors) -> list[Tensor]:
        pulled = [pull(x) for pull, x in zip(pulls, xs, strict=True)]
        return [x - _mixed(column, pulled) for x, column in zip(xs, coupling.T, strict=True)]

    goal = 1e-12 if real_dtype(like.dtype) == torch.float64 else 1e-6

    def solve(right: Vectors) -> list[Tensor]:
        # GMRES needs to read numbers.
        refuse_all_but_one_gradient(
            right, "an implicit step of a large state", "or use an explicit method such as dopri5"
        )
        found, left = KrylovSystem(apply, like).solve_to(right, goal)
        if not left <= 1e3 * goal:
            raise GradientError(_UNSOLVED.format(left))
        return found

    return solve


class TransposedSystem:
    """The equations of the gradient of a Rosenbrock step, the same for all its stages.

    Args:
        linearizer: What is known about the field; it keeps only the last equations.
        edges: Places of the field's value and of its state in the graph.
        factor: Factor of the Jacobian.
    """

    def __init__(self, linearizer: Linearizer, edges: tuple[Any, Any], factor: float) -> None:
        self._linearizer, self._edges, self._factor = linearizer, edges, factor

    def solve(self, right: Tensor) -> Tensor:
        """The solution for one right-hand side."""
        owner, solver = self._linearizer.last
        if owner is not self:
            pull = Pullback(*self._edges, right.detach())
            solver = transposed_solver(
                self._linearizer, [pull], np.array([[self._factor]]), right.detach()
            )
            self._linearizer.last = self, solver
        return solver([right])[0]


_SINGULAR = (
    "the equations of an implicit step's gradient are singular: the solution branches there, and "
    "has no gradient; take smaller steps (tighten rtol and atol)"
)
_UNSOLVED = (
    "the equations of an implicit step's gradient could not be solved: GMRES left {:.0e} of them; "
    "take smaller steps (tighten rtol and atol), or use an explicit method"
)
