"""Calls of the field: counted, checked and, in a backward pass, repeated.

With `gradient="checkpoint"` autograd records every call as usual, so that gradients flow wherever
the field took its tensors from. Only the tensors that the graph would keep are let go when a call
ends. The backward pass makes the call once more to get them back: with the same random numbers,
under the same autocast, and sure that it gave the same result. If it did not, it raises.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils import parametrize, stateless

from bfno.ode.dependencies import mark, refuse_recorded_batch_norm
from bfno.ode.solution import GradientError, Stats

__all__ = [
    "NOT_REPEATABLE",
    "Evaluator",
    "Field",
    "Replayer",
    "ReplayingEvaluator",
    "Surroundings",
    "TrackingEvaluator",
    "borrows_parameters",
    "is_transformed",
]

Field = Callable[[Any, Tensor], Tensor]


def is_transformed() -> bool:
    """Whether a compiler, a function transform or forward-mode differentiation is at work.

    Then tensors are stand-ins, whose memory and history cannot be looked at.
    """
    return (
        torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
        or torch.compiler.is_compiling()
    )


def borrows_parameters() -> bool:
    """Whether modules hold parameters that will be gone when a backward pass runs.

    `torch.func.functional_call` puts a module's own parameters back when it returns, and
    `parametrize.cached` forgets what it computed when it is left.
    """
    if parametrize._cache_enabled:
        return True
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is stateless._functional_call.__code__:
            return True
        frame = frame.f_back
    return False


class Evaluator:
    """Calls a field and checks that slopes look like states."""

    def __init__(self, field: Field) -> None:
        self.field = field

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return self.check(self.field(t, y), y)

    def check(self, slope: Any, y: Tensor) -> Tensor:
        """Refuse a derivative that does not look like the state."""
        if not isinstance(slope, Tensor):
            raise ValueError(f"the field must return a tensor, got {type(slope).__name__}")
        if slope.shape != y.shape:
            raise ValueError(
                f"the field must return the state's shape {tuple(y.shape)}, "
                f"got {tuple(slope.shape)}"
            )
        if slope.dtype != y.dtype:
            if torch.is_autocast_enabled(y.device.type) and not slope.is_complex():
                return slope.to(y.dtype)
            raise ValueError(
                f"the field must return the state's dtype {y.dtype}, got {slope.dtype}; convert "
                "the field's weights or y0"
            )
        return slope


class TrackingEvaluator(Evaluator):
    """Also refuses fields that write into their input, and copies slopes that may be overwritten.

    A field may return its input or the same buffer every time; a later call would change the slope
    that an earlier one returned.
    """

    def __init__(self, field: Field, y0: Tensor) -> None:
        super().__init__(field)
        self._address = address(y0)
        self._counts = not y0.is_inference()
        self._first, self._since = True, mark() if torch.is_grad_enabled() else 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        version = y._version if self._counts else 0
        slope, first = self.field(t, y), self._first
        if first or (self._counts and y._version != version):
            self._inspect(slope, y, version)
        if type(slope) is not Tensor or slope.shape != y.shape or slope.dtype != y.dtype:
            slope = self.check(slope, y)
        before, self._address = self._address, address(slope)
        return slope.clone() if first or self._address == before or slope._is_view() else slope

    def _inspect(self, slope: Any, y: Tensor, version: int) -> None:
        """Look at the first call, and at one that went wrong."""
        if self._counts and y._version != version:
            raise ValueError(
                "the field must not change its state in place; write y = y * 2 instead of "
                "y.mul_(2), and leave inplace=True out of its first layer"
            )
        self._first = False
        if torch.is_grad_enabled():
            refuse_recorded_batch_norm(slope, self._since)


class ReplayingEvaluator(TrackingEvaluator):
    """Records calls without keeping their tensors; see the module."""

    def __init__(self, field: Field, y0: Tensor, replayer: Replayer) -> None:
        super().__init__(field, y0)
        self._replayer = replayer

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return super().__call__(t, y)
        with self._replayer.recording(super().__call__, (t, y)) as call:
            slope = call.result = super().__call__(t, y)
        return slope


class RandomState(NamedTuple):
    """Where the random number generators of the processor and of a device stand."""

    numbers: tuple[Tensor, ...]
    key: tuple[bytes, ...]


class Surroundings:
    """What a call of a field depends on besides its arguments: autocast and random numbers.

    Args:
        device: Where states live.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._autocast = _autocast_state(device.type)
        self._last = self._read()

    def random_state(self) -> RandomState:
        """Where the generators stand; as long as they do not move, the same object."""
        now = self._read()
        if now.key != self._last.key:
            self._last = now
        return self._last

    @contextlib.contextmanager
    def restored(self, random: RandomState) -> Iterator[None]:
        """Go back to the autocast of the start and to earlier random numbers for a while."""
        before = self._read()
        if before.key != random.key:
            self._write(random)
        try:
            if _autocast_state(self._device.type) == self._autocast:
                yield
            else:
                enabled, dtype, cache = self._autocast
                with torch.autocast(
                    self._device.type, dtype=dtype, enabled=enabled, cache_enabled=cache
                ):
                    yield
        finally:
            if self._read().key != before.key:
                self._write(before)

    def _read(self) -> RandomState:
        numbers = [torch.default_generator.get_state()]
        if self._device.type != "cpu":
            numbers.append(torch.get_device_module(self._device).get_rng_state())
        return RandomState(tuple(numbers), tuple(one.numpy().tobytes() for one in numbers))

    def _write(self, state: RandomState) -> None:
        torch.default_generator.set_state(state.numbers[0])
        if self._device.type != "cpu":
            torch.get_device_module(self._device).set_rng_state(state.numbers[1])


def _autocast_state(device_type: str) -> tuple[bool, torch.dtype, bool]:
    return (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )


class Replayer:
    """Calls functions so that their graphs keep no tensors; backward passes repeat the calls.

    The tensors of the first call are kept until the second one has shown that it uses the same
    kind of tensors: a field that computes something once and remembers it does so in its first
    call, which cannot be repeated then.

    Args:
        like: A state.
        stats: Where repeated evaluations are counted.
    """

    def __init__(self, like: Tensor, stats: Stats) -> None:
        self.stats = stats
        self.surroundings = Surroundings(like.device)
        self.unchanged: list[tuple[Tensor, int]] = []
        self._ripples = like.new_zeros(0)
        self.first: Recording | None = None
        self._begun = False
        self._held: Recording | None = None

    def recording(
        self, function: Callable[..., Any], inputs: tuple[Tensor, ...], evaluations: int = 1
    ) -> Recording:
        """A context in which to call a function of tensors.

        Args:
            function: What will be called. A backward pass calls it again with the same arguments.
            inputs: Its arguments.
            evaluations: How many evaluations of the field it makes.
        """
        return Recording(self, function, inputs, evaluations)

    def end(self, call: Recording) -> None:
        """Look at what the first two calls saved."""
        if not self._begun:
            self._begun, self.first = True, call
            call.detach()
        elif self.first is not None:
            first, second = self.first.saved, call.saved
            addresses = {address(tensor) for tensor, _ in second} - {0}
            # What both calls saved at one address existed before them: weights, buffers, inputs.
            self.unchanged = [pair for pair in first if address(pair[0]) in addresses]
            if [one.shape for one, _ in first] == [one.shape for one, _ in second]:
                self.first.saved = None
            self.first = None

    def hold(self, call: Recording | None) -> None:
        """Hold the tensors of one repeated call at a time, and let those of the last one go."""
        if self._held is not None:
            self._held.saved = None
        self._held = call

    def checksum(self, result: Any) -> Tensor:
        """One number that tells results apart."""
        values = (result[0] if isinstance(result, tuple) else result).detach().reshape(-1)
        return torch.dot(self._weights(values), values)

    def is_same(self, checksum: Tensor, result: Any) -> bool:
        """Whether a result has a checksum, up to rounding."""
        found = self.checksum(result)
        if torch.equal(found, checksum):
            return True
        # Processors of graphics may add up in another order each time.
        values = (result[0] if isinstance(result, tuple) else result).detach().reshape(-1)
        scale = torch.dot(self._weights(values).abs(), values.abs())
        bound = 64 * torch.finfo(found.dtype).eps * scale.abs()
        return bool(((found - checksum).abs() <= bound) | (found.isnan() & checksum.isnan()))

    def _weights(self, values: Tensor) -> Tensor:
        # Waves of no simple period: plain sums or norms would not see changes of fields that keep
        # their sum or their norm, as normalised ones do.
        if self._ripples.numel() != values.numel() or self._ripples.dtype != values.dtype:
            count = torch.arange(values.numel(), dtype=torch.float32, device=values.device)
            self._ripples = (count + 1).cos_().to(values.dtype)
        return self._ripples


class Recording:
    """One call of a function, and how to repeat it.

    Set `result` inside to what the function returned: a tensor, or a tuple that begins with one.

    Attributes:
        result: What the function returned.
        saved: The tensors that its graph asks for, each with the version it had, or None.
    """

    __slots__ = (
        "_checksum", "_count", "_evaluations", "_function", "_hooks", "_inputs", "_random",
        "_replayer", "_versions", "result", "saved",
    )  # fmt: skip

    def __init__(
        self,
        replayer: Replayer,
        function: Callable[..., Any],
        inputs: tuple[Tensor, ...],
        evaluations: int,
    ) -> None:
        self._replayer, self._function, self._evaluations = replayer, function, evaluations
        self._inputs = [_alone(one) for one in inputs]
        self._versions = [one._version for one in inputs]
        self._random = replayer.surroundings.random_state()
        self._hooks: Any = None
        self.result: Any = None
        self.saved: Any = []

    def __enter__(self) -> Recording:
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)
        self._hooks.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._hooks.__exit__(kind, error, trace)
        self._hooks = None
        if kind is None:
            self._count = len(self.saved)
            self._checksum = self._replayer.checksum(self.result)
            self._replayer.end(self)
        self.result = None  # whose history holds this recording in turn
        if self is not self._replayer.first:
            self.saved = None

    def pack(self, tensor: Tensor) -> int:
        """Take a tensor that the graph wants to keep, and give a number for it."""
        self.saved.append((tensor, tensor._version))
        return len(self.saved) - 1

    def unpack(self, number: int) -> Tensor:
        """Give a tensor back, after repeating the call if need be."""
        if self.saved is None:
            self._repeat()
        tensor, version = self.saved[number]
        if tensor._version != version:
            raise GradientError(
                "the field changed a tensor in place after another of its operations had used it; "
                "replace the in-place operation by one that makes a new tensor"
            )
        return tensor

    def detach(self) -> None:
        """Hold the tensors without their history, which would hold this call in turn."""
        self.saved = [(tensor.detach(), version) for tensor, version in self.saved]

    def _repeat(self) -> None:
        replayer = self._replayer
        replayer.hold(None)
        self._refuse_changes()
        replayer.stats.backward_evaluations += self._evaluations
        inputs = [_alone(one) for one in self._inputs]
        self.saved = []
        try:
            with (
                torch.enable_grad(),
                replayer.surroundings.restored(self._random),
                torch.autograd.graph.saved_tensors_hooks(self._pack_detached, self.unpack),
            ):
                result = self._function(*inputs)
            same = len(self.saved) == self._count and replayer.is_same(self._checksum, result)
        except Exception as error:
            self.saved = None
            if isinstance(error, GradientError):
                raise
            raise GradientError(
                f"the field failed when the backward pass repeated a call ({error}); it has to "
                "work after the solve as it did before, or use gradient='direct'"
            ) from error
        if not same:
            self.saved = None
            raise GradientError(NOT_REPEATABLE)
        replayer.hold(self)

    def _pack_detached(self, tensor: Tensor) -> int:
        self.saved.append((tensor.detach(), tensor._version))
        return len(self.saved) - 1

    def _refuse_changes(self) -> None:
        pairs = zip(self._inputs, self._versions, strict=True)
        if any(one._version != version for one, version in pairs):
            raise GradientError(
                "a state of the solve was changed in place before the backward pass (y0, or what a "
                "callback was given); change a copy instead: y0.clone()"
            )
        for tensor, version in self._replayer.unchanged:
            if tensor._version != version:
                raise GradientError(
                    f"a tensor of shape {tuple(tensor.shape)} that the field uses was changed in "
                    "place before the backward pass, as optimizer.step() changes parameters; call "
                    "backward() first, or solve again"
                )


NOT_REPEATABLE = (
    "the field gave another result when the backward pass repeated a call: a tensor that it uses "
    "was replaced or changed since the solve, or it keeps a state of its own (spectral_norm in "
    "training mode, a random number generator other than torch's, a counter); call backward() "
    "before anything changes, or use gradient='direct'"
)


def _alone(tensor: Tensor) -> Tensor:
    """The same values without history, to be differentiated if the tensor was."""
    alone = tensor.detach()
    return alone.requires_grad_() if tensor.requires_grad else alone


def address(tensor: Tensor) -> int:
    """Where the values of a tensor begin; zero if they lie in no single place."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, for example
        return 0
