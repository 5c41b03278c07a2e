"""Calls whose graphs keep no tensors; a backward pass repeats the calls.

With `gradient="checkpoint"` autograd records every call of a field as usual, so that gradients flow
wherever the field took its tensors from. But the tensors that the graph would keep are released
when a call ends. The backward pass makes the call once more to get them back: with the same random
numbers and under the same autocast, and it checks that the result is the same. If not, it raises an
error.

Calls keep their tensors as long as these fit into the memory that the graphs of a solve may take,
its `Room`; only later ones let go. The first calls rather than the last: a backward pass needs room
to repeat a call either way, and the very last call of most adaptive methods serves only the error
test, so keeping it would save nothing.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bfno.ode.dependencies import mark, used_leaves
from bfno.ode.solution import GradientError, Stats
from bfno.ode.state import clock_dtype
from bfno.tracing import is_transformed

__all__ = ["FAILED", "NOT_REPEATABLE", "Recording", "Replayer", "Room", "Surroundings", "address"]

Saved = list[tuple[Tensor, int]]

KEPT_BYTES = 512 << 20
"""Memory that the graphs of all solves without their own limit may keep together."""


class RandomState(NamedTuple):
    """State of the random number generators of the processor and of a device."""

    key: bytes
    numbers: Tensor
    device: Tensor | None = None


class Surroundings:
    """What a call of a field depends on besides its arguments: autocast and random numbers.

    Args:
        device: Where states live.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._module = None if device.type == "cpu" else torch.get_device_module(device)
        self._autocast = _autocast_state(device.type)
        self._last = self._read()

    def random_state(self) -> RandomState:
        """State of the generators; the same object as long as they do not move."""
        now = self._read()
        if now.key != self._last.key:
            self._last = now
        return self._last

    @contextlib.contextmanager
    def restored(self, random: RandomState) -> Iterator[None]:
        """Temporarily restore the autocast of the start and earlier random numbers."""
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
        numbers = torch.default_generator.get_state()
        if self._module is None:
            return RandomState(numbers.numpy().tobytes(), numbers)
        device = self._module.get_rng_state()
        return RandomState(numbers.numpy().tobytes() + device.numpy().tobytes(), numbers, device)

    def _write(self, state: RandomState) -> None:
        torch.default_generator.set_state(state.numbers)
        if self._module is not None:
            self._module.set_rng_state(state.device)


def _autocast_state(device_type: str) -> tuple[bool, torch.dtype, bool]:
    return (
        torch.is_autocast_enabled(device_type),
        torch.get_autocast_dtype(device_type),
        torch.is_autocast_cache_enabled(),
    )


class Room:
    """The number of bytes that the graphs of one solve may keep.

    Args:
        size: The number. None takes the bytes from `KEPT_BYTES`, shared by all solves whose
            gradients are still to come; they are free again when the last recorded call of this
            solve is gone.
    """

    _lock = threading.RLock()  # the last reference may go while it is held
    _shared = 0.0
    _taken = 0.0  # here too, because torch.compile may drop one before it is initialised

    def __init__(self, size: float | None = None) -> None:
        self._size, self._taken, self._before = size, 0.0, 0.0

    @property
    def free(self) -> float:
        """Bytes that are still free."""
        return KEPT_BYTES - self._shared if self._size is None else self._size - self._taken

    def take(self, size: float) -> bool:
        """Take some bytes, if that many are free."""
        with self._lock:
            fits = size <= self.free
            if fits:
                self._add(size)
        return fits

    def lose(self, size: float) -> None:
        """Count what is kept for good, even without room or if its step is rejected."""
        with self._lock:
            self._add(size)
        self._before += size

    def begin(self) -> None:
        """Called before a step is tried."""
        self._before = self._taken

    def undo(self) -> None:
        """Called when the step was rejected, so what it kept is freed."""
        with self._lock:
            self._add(self._before - self._taken)

    def _add(self, size: float) -> None:
        self._taken += size
        if self._size is None:
            type(self)._shared += size

    def __del__(self) -> None:
        if self._taken:
            with self._lock:
                self._add(-self._taken)


class Replayer:
    """Calls functions so that their graphs keep no tensors; backward passes repeat the calls.

    The tensors of the first call are kept at least until the second one has shown that it uses the
    same kind of tensors: a field that computes something once and remembers it does so in its first
    call, which cannot be repeated then.

    Args:
        like: A state.
        stats: Where repeated evaluations are counted.
        room: What the graphs of the solve may keep.
    """

    def __init__(self, like: Tensor, stats: Stats, room: Room | None = None) -> None:
        self.stats = stats
        self.surroundings = Surroundings(like.device)
        self.unchanged: list[tuple[Tensor, int]] = []
        self.lasting: set[int] = set()  # their addresses, unique while they exist
        self.lock = threading.RLock()  # several threads may differentiate one graph at once
        self._is_exact = like.device.type == "cpu"  # GPUs may sum in a different order each time
        self._ripples: Tensor | None = None
        self._doubts: list[Tensor] = []  # whether calls were repeated faithfully, not yet read
        self._backward_pass = -1  # in which they were repeated
        self._room = Room() if room is None else room
        self._since = mark()
        self._leaves: list[tuple[weakref.ref[Tensor], int]] = []
        self._typical: int | None = None
        # Only the graph keeps calls alive: their tensors are freed at once with it.
        self._first: Callable[[], Recording | None] = _nothing
        self._held: Callable[[], Recording | None] = _nothing

    @property
    def first(self) -> Recording | None:
        """The first call, until there is a second one."""
        return self._first()

    def reserve(self) -> bool:
        """Reserve room for the tensors of the next call; with enough, it is not recorded."""
        return self._typical is not None and self._room.take(self._typical)

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
        """Release the tensors of a call, once the first two have shown how many there are."""
        if self._typical is not None:
            call.saved = None
        elif self.first is None:
            self._first = weakref.ref(call)
            call.detach()
        else:
            self._compare(self.first, call)
            self._first = _nothing

    def _compare(self, one: Recording, other: Recording) -> None:
        first, second = one.saved, other.saved
        # What both calls saved at one address existed before them: weights, buffers, inputs.
        both = {where for tensor, _ in second if (where := address(tensor))}
        self.unchanged = [pair for pair in first if address(pair[0]) in both]
        self.lasting = {address(tensor) for tensor, _ in self.unchanged}
        size, self._typical = (_kept_bytes(saved, self.unchanged) for saved in (first, second))
        alike = [tensor.shape for tensor, _ in first] == [tensor.shape for tensor, _ in second]
        if alike and size > self._room.free:
            one.saved = None
        else:
            self._room.lose(size)
        if self._room.take(self._typical):
            leaves = used_leaves(_tensors(other.result)[0], self._since)
            self._leaves = [(weakref.ref(leaf), address(leaf)) for leaf in leaves]
            other.detach()
        else:
            other.saved = None

    def refuse_replaced(self) -> None:
        """Raise an error if the data of a leaf were replaced, which autograd does not notice."""
        for reference, before in self._leaves:
            leaf = reference()
            if leaf is not None and address(leaf) != before:
                raise GradientError(
                    f"the data of a tensor of shape {tuple(leaf.shape)} that the field uses were "
                    "replaced before the backward pass; call backward() first, or solve again"
                )

    def is_held(self, call: Recording) -> bool:
        """Whether the tensors of a call are held because it was repeated."""
        return self._held() is call

    def hold(self, call: Recording | None) -> None:
        """Hold the tensors of one repeated call at a time, and release those of the last one."""
        held = self._held()
        if held is not None:
            held.saved = None
        self._held = _nothing if call is None else weakref.ref(call)

    def is_copy(self, tensor: Tensor, where: int) -> bool:
        """Whether a tensor has the values of a lasting one at an address.

        Autocast, for example, converts a weight once per region, and again in a backward pass.
        """
        originals = (one for one, _ in self.unchanged if address(one) == where)
        return any(torch.equal(one, tensor) for one in originals if one.dtype == tensor.dtype)

    def checksum(self, result: Any) -> Tensor:
        """One number that distinguishes results."""
        values = _values(result)
        return torch.dot(self._weights(values), values)

    def is_same(self, checksum: Tensor, result: Any, *, exactly: bool | None = None) -> bool:
        """Whether a result has a checksum.

        Args:
            checksum: The checksum.
            result: The result.
            exactly: Whether to the last bit; None requires this of a processor whose results are
                reproducible, and of other devices only agreement up to rounding.
        """
        values = _values(result)
        weights = self._weights(values)
        found = torch.dot(weights, values)
        if self._is_exact if exactly is None else exactly:
            return torch.equal(found, checksum) or bool(found.isnan() & checksum.isnan())
        rounding = torch.finfo((result[0] if isinstance(result, tuple) else result).dtype).eps
        # Errors of a few layers add up; half precision has no digits to spare for that.
        rounding *= 256 if rounding < 1e-6 else 16
        near = (found - checksum).abs() <= rounding * (weights * values).norm()
        same = near | (found == checksum) | (found.isnan() & checksum.isnan())
        return self._settle_later(same) or bool(same)

    def _settle_later(self, same: Tensor) -> bool:
        """Postpone a check to the end of the backward pass, where the host waits once."""
        running = torch._C._current_graph_task_id()
        if self._is_exact or running < 0:
            return False
        if running != self._backward_pass:
            self._backward_pass, self._doubts = running, []
            torch.autograd.Variable._execution_engine.queue_callback(self._settle)
        self._doubts.append(same)
        return True

    def _settle(self) -> None:
        doubts, self._doubts, self._backward_pass = self._doubts, [], -1
        if not bool(torch.stack(doubts).all()):
            raise GradientError(NOT_REPEATABLE)

    def _weights(self, values: Tensor) -> Tensor:
        # Waves without a simple period: plain sums or norms would miss changes of fields that keep
        # their sum or their norm, as normalised ones do.
        if self._ripples is None or self._ripples.numel() != values.numel():
            count = torch.arange(values.numel(), dtype=values.dtype, device=values.device)
            self._ripples = (count + 1).cos_()
        return self._ripples


def _nothing() -> None:
    """Stands for a weak reference to nothing."""


def _kept_bytes(saved: Saved, lasting: Saved) -> int:
    """Memory that tensors hold, without memory that other, lasting tensors hold anyway.

    A slice of a tensor holds the memory of the whole.
    """
    held = {where: size for tensor, _ in saved for where, size in (_memory(tensor),)}
    return sum(held[where] for where in held.keys() - {_memory(one)[0] for one, _ in lasting})


def _memory(tensor: Tensor) -> tuple[int, int]:
    """The memory block of a tensor, and its size in bytes."""
    try:
        storage = tensor.untyped_storage()
        return storage._cdata, storage.nbytes()  # not its address: tensors without data have none
    except (RuntimeError, NotImplementedError):  # sparse tensors, for example, are not counted
        return 0, 0


def _values(result: Any) -> Tensor:
    """All numbers of a result, in double precision, where no change of one is rounded away."""
    flat = [_as_real(one.detach()).reshape(-1) for one in _tensors(result)]
    values = flat[0] if len(flat) == 1 else torch.cat(flat)
    # A copy, aligned like all copies: the rounding of a sum depends on the alignment.
    return values.to(clock_dtype(values.device), copy=True)


def _tensors(result: Any) -> list[Tensor]:
    """The tensors of a result."""
    return [one for one in result if isinstance(one, Tensor)] if type(result) is tuple else [result]


def _as_real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


class Recording:
    """One call of a function, and how to repeat it.

    Set `result` inside to what the function returned: a tensor, or a tuple with some.

    Attributes:
        result: What the function returned.
        saved: The tensors that its graph asks for, each with the version it had, or None.
    """

    __slots__ = (
        "__weakref__", "_addresses", "_checksum", "_evaluations", "_function", "_hooks", "_inputs",
        "_random", "_replayer", "_versions", "result", "saved",
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
            self._addresses = [address(tensor) for tensor, _ in self.saved]
            self._checksum = self._replayer.checksum(self.result)
            self._replayer.end(self)
        else:
            self.saved = None
        self.result = None  # whose history holds this recording in turn

    def pack(self, tensor: Tensor) -> int:
        """Take a tensor that the graph wants to keep, and return a number for it."""
        self.saved.append((tensor, tensor._version))
        return len(self.saved) - 1

    def unpack(self, number: int) -> Tensor:
        """Return a tensor, after repeating the call if necessary."""
        with self._replayer.lock:
            if self.saved is None:
                self._repeat()
            elif not self._replayer.is_held(self):
                self._replayer.refuse_replaced()
            found: Any = self.saved
            tensor, version = found[number]
        if tensor._version != version:
            raise GradientError(
                "the field, or something after it, changed a tensor in place that a gradient "
                "needs; make a new tensor instead, or call backward() first"
            )
        return tensor

    def detach(self) -> None:
        """Hold the tensors without their history, which would hold this call in turn."""
        self.saved = [(tensor.detach(), version) for tensor, version in self.saved]

    def verify(self) -> None:
        """Repeat the call, and raise an error if it differs now."""
        with self._replayer.lock:
            self._repeat()
            self._replayer.hold(None)

    def _repeat(self) -> None:
        # Under transforms leaves have no gradients, and fields may compute differently.
        if is_transformed() and not torch.compiler.is_compiling():
            raise GradientError(
                "a solve whose backward pass repeats calls of the field cannot be differentiated "
                "under torch.func or in forward mode; use gradient='direct'"
            )
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
            same = self._asks_for_the_same() and replayer.is_same(self._checksum, result)
        except Exception as error:
            self.saved = None
            if isinstance(error, GradientError):
                raise
            raise GradientError(FAILED.format(error)) from error
        if not same:
            self.saved = None
            raise GradientError(NOT_REPEATABLE)
        replayer.hold(self)

    def _asks_for_the_same(self) -> bool:
        """Whether the graph of the repeated call keeps the same as that of the original call.

        A field whose weights were replaced may give the same values with other derivatives: twice
        the weights in one layer, half of them in the next.
        """
        replayer, found = self._replayer, self.saved
        return len(found) == len(self._addresses) and all(
            before == address(tensor) or replayer.is_copy(tensor, before)
            for before, (tensor, _) in zip(self._addresses, found, strict=True)
            if before in replayer.lasting
        )

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


FAILED = (
    "the field failed when the backward pass repeated a call ({}); it has to work after the solve "
    "as it did before, or use gradient='direct'"
)
NOT_REPEATABLE = (
    "the field gave another result when the backward pass repeated a call: a tensor that it uses "
    "was replaced or changed since the solve, or it keeps its own state (spectral_norm in "
    "training mode, a random number generator other than torch's, a counter); call backward() "
    "before anything changes, or use gradient='direct'"
)


def _alone(tensor: Tensor) -> Tensor:
    """The same values without history, to be differentiated if the tensor was."""
    alone = tensor.detach()
    return alone.requires_grad_() if tensor.requires_grad else alone


def address(tensor: Tensor) -> int:
    """Address of a tensor's values; zero if they are not in one block."""
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse tensors, for example
        return 0
