"""A GPU that is not there: shapes and devices are checked, and every wait of the host is counted.

Tensors of the processor are real; those of the GPU are `FakeTensor`s, which have a device but no
values. Where a program asks for a value all the same, the host would have to wait for the device.
Such questions are counted, and get an answer with which a program can go on.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

import bfno
from bfno.ode import replay

_SOURCES = str(Path(bfno.__file__).parent)
_ATEN = torch.ops.aten


class Host(TorchDispatchMode):
    """Counts how often the host waits for the device, by the line that makes it wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not _concerns_gpu(args, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func in _ANSWERS and _on_gpu(args[0]):
            self.wait(func)
            return _ANSWERS[func](*args)
        if func is _ATEN.index.Tensor and any(_is_mask(one) for one in args[1]):
            self.wait(func)  # the places of a mask have to be counted
            args = (args[0], [part for one in args[1] for part in _as_places(one)])
        if func in _STAND_INS:
            return _STAND_INS[func](*args)
        result = func(*args, **kwargs)
        if func in _DENIED:
            result.is_denied = True
        if func is _ATEN._to_copy.default:
            return self._copied(args[0], result, kwargs)
        if func is _ATEN.copy_.default and _on_gpu(args[0]) != _on_gpu(args[1]):
            self.wait(func)
        return result

    def _copied(self, source: Tensor, result: Tensor, kwargs: Any) -> Tensor:
        """The host need not wait for what it sends, but for what it gets."""
        if _on_gpu(source) == (result.device.type == "gpu"):
            return result
        if _on_gpu(source):
            self.wait("cpu")
            with unset_fake_temporarily():
                return _values(source).to(result.dtype)
        if not kwargs.get("non_blocking"):
            self.wait("a copy to the device")
        return result

    def wait(self, what: Any) -> None:
        """Note one wait and the line that is to blame."""
        frames = [one for one in traceback.extract_stack() if one.filename.startswith(_SOURCES)]
        if frames:
            last = frames[-1]
            self.waits.append(f"{Path(last.filename).relative_to(_SOURCES)}: {last.line}")
        else:
            self.waits.append(str(what))


def _concerns_gpu(args: Any, kwargs: Any) -> bool:
    return any(
        isinstance(one, FakeTensor) or (isinstance(one, torch.device) and one.type == "gpu")
        for one in tree_leaves((args, kwargs))
    )


def _on_gpu(tensor: Any) -> bool:
    return isinstance(tensor, FakeTensor)


def _number(tensor: Tensor) -> Any:
    """Any number: true for a condition, two for a count, and for an error one that is small enough
    to let an adaptive solve succeed in a single step."""
    if tensor.dtype is torch.bool:
        return not hasattr(tensor, "is_denied")
    return 1e-4 if tensor.dtype.is_floating_point else 2


def _everywhere(tensor: Tensor) -> Tensor:
    """The places of what is not zero, as if nothing were."""
    return tensor.new_zeros(tensor.numel(), tensor.dim(), dtype=torch.long)


def _all_different(tensor: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    number = torch.arange(tensor.numel(), device=tensor.device)
    return tensor.flatten().clone(), number.view(tensor.shape), torch.ones_like(number)


_ANSWERS = {
    _ATEN._local_scalar_dense.default: _number,
    _ATEN.equal.default: lambda *_: True,
    _ATEN.nonzero.default: _everywhere,
    _ATEN._unique2.default: _all_different,
}


def _gru_cell(gates: Tensor, _: Tensor, state: Tensor, *biases: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(state), state.new_empty(len(state), 5 * state.shape[1])


def _gru_cell_backward(gradient: Tensor, *_: Any) -> tuple[Tensor, ...]:
    batch, size = gradient.shape
    gates, bias = gradient.new_empty(batch, 3 * size), gradient.new_empty(3 * size)
    return gates, gates.clone(), torch.empty_like(gradient), bias, bias.clone()


# Operations that PyTorch cannot do without values, on any device but CUDA, where others are used.
_STAND_INS = {
    _ATEN._thnn_fused_gru_cell.default: _gru_cell,
    _ATEN._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
}


# Nothing is ever found to be wrong.
_DENIED = (_ATEN.any.default, _ATEN.any.dim)


def _is_mask(place: Any) -> bool:
    return isinstance(place, FakeTensor) and place.dtype is torch.bool


def _as_places(place: Any) -> list[Any]:
    return list(_everywhere(place).unbind(1)) if _is_mask(place) else [place]


def _values(tensor: Tensor) -> Tensor:
    """Numbers in place of those of a tensor; they increase along its last axis, as times do."""
    if tensor.dtype is torch.bool:
        return torch.ones(tensor.shape, dtype=torch.bool)
    count = tensor.shape[-1] if tensor.dim() else 1
    numbers = _number(tensor) * torch.arange(1, count + 1, dtype=tensor.dtype)
    return numbers.expand(tensor.shape).clone() if tensor.dim() else numbers[0]


def _tolist(tensor: Tensor) -> Any:
    """The answer to `tolist`: one wait, however many numbers."""
    host = _get_current_dispatch_mode()
    assert isinstance(host, Host)
    host.wait("tolist")
    with unset_fake_temporarily():
        return _values(tensor).tolist()


class _Module(_DummyBackendModule):
    """What `torch.cuda` would be, with torch's own generator."""

    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]

    def is_available(self) -> bool:
        return False  # there is nothing to initialise, and nothing to compute with

    @staticmethod
    def get_rng_state(device: Any = None) -> Tensor:
        return torch.default_generator.get_state()

    @staticmethod
    def set_rng_state(state: Tensor, device: Any = None) -> None:
        torch.default_generator.set_state(state)


# One, because constants of a device are kept for later calls.
_MODE = FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def fake_gpu() -> Iterator[Host]:
    """A context in which there is a GPU; `moved` puts a model there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeTensor, "tolist", _tolist)
        patch.setattr(FakeTensor, "data_ptr", lambda tensor: 0, raising=False)
        # Fake tensors have no addresses, so that a solve cannot count what it keeps.
        patch.setattr(replay, "KEPT_BYTES", -1)
        with _MODE, Host() as host:
            yield host


def moved(model: Any) -> Any:
    """A model, made on the meta device, with its parameters and buffers alone on the GPU."""
    for module in model.modules():
        for name, value in module._parameters.items():
            if value is not None:
                there = torch.empty(value.shape, dtype=value.dtype, device=GPU)
                module._parameters[name] = nn.Parameter(there, value.requires_grad)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = torch.empty(value.shape, dtype=value.dtype, device=GPU)
    return model


def _register() -> torch.device:
    """A device of our own: builds of torch without CUDA, or without a GPU, refuse to differentiate
    what lies on `cuda`."""
    _setup_privateuseone_for_python_backend("gpu", _Module())
    return torch.device("gpu", 0)


GPU = _register()
