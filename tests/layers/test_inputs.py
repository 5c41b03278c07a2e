"""What all spectral layers take and refuse in the same way."""

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from bfno.fields import OperatorField
from bfno.layers import AFNO, BFNO, FNO, spectral
from bfno.layers.pointwise import Pointwise

LAYERS = {
    "bfno": lambda: BFNO(4, 2),
    "gate": lambda: BFNO(4, 2, kernel="gate"),
    "filter": lambda: BFNO(4, 2, kernel="filter", grid=(5, 7)),
    "conv": lambda: BFNO(4, 2, skip="conv"),
    "fno": lambda: FNO(4, modes=2, skip="linear"),
    "afno": lambda: AFNO(4, blocks=2),
}
WIDE = 66  # more points along an axis than the products of matrices are for


@pytest.mark.parametrize("name", LAYERS)
def test_another_number_of_channels_is_named(name):
    with pytest.raises(ValueError, match=r"input must have shape \(batch, 4, \*space\) .*, got"):
        LAYERS[name]()(torch.zeros(2, 3, 6, 6))


@pytest.mark.parametrize("name", LAYERS)
def test_another_dtype_is_named_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"layer's dtype torch\.float64, got torch\.float32; co"):
        LAYERS[name]()(torch.zeros(2, 4, 6, 6, dtype=torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_is_named_where_there_is_no_transform_in_it(name, dtype):
    layer = LAYERS[name]().to(dtype)
    with pytest.raises(ValueError, match=f"transformed in float32 or float64, got {dtype}; keep"):
        layer(torch.zeros(1, 4, WIDE, 6, dtype=dtype))


@pytest.mark.parametrize("name", LAYERS)
def test_autocast_takes_half_precision_on_any_grid(name):
    layer, x = LAYERS[name]().float(), torch.randn(1, 4, WIDE, 6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x.bfloat16()).isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
def test_an_empty_batch_gives_an_empty_batch(name):
    x = torch.zeros(0, 4, 6, WIDE, requires_grad=True)
    found = LAYERS[name]()(x)
    assert found.shape == x.shape
    found.sum().backward()
    assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("size", [6, WIDE])
def test_tensors_without_numbers_have_the_shape_that_others_have(name, size):
    x = torch.zeros(2, 4, size, 8)
    found = LAYERS[name]().to("meta")(x.to("meta"))
    assert found.shape == x.shape and found.is_meta


def _forget():
    for kept in (spectral._matrices, spectral._folded_matrices, spectral._multiplicities):
        kept.cache_clear()


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("batch", [2, 100])  # with the larger one, memory would be recycled
@pytest.mark.parametrize("name", ["bfno", "filter", "conv", "fno", "afno"])
def test_fake_tensors_pass_and_leave_nothing_behind_for_real_ones(name, batch, mixed):
    _forget()
    with FakeTensorMode(allow_non_fake_inputs=mixed):
        layer, x = LAYERS[name](), torch.randn(batch, 4, 6, 8, requires_grad=True)
        found = layer(x)
        (gradient,) = torch.autograd.grad(found.sum(), x)
    assert isinstance(found, FakeTensor) and isinstance(gradient, FakeTensor)
    assert found.shape == gradient.shape == x.shape
    layer, x = LAYERS[name](), torch.randn(2, 4, 6, 8)
    after = layer(x)
    _forget()
    assert torch.equal(after, layer(x))


@pytest.mark.parametrize("name", ["bfno", "fno", "afno"])
def test_a_field_of_an_empty_batch_is_empty(name):
    options: dict[str, Any] = {"fno": {"modes": 2}, "afno": {"blocks": 2}}.get(name, {})
    field = OperatorField(name, 3, 4, 2, out_channels=5, **options)
    for t in (0.5, torch.zeros(0)):
        assert field(t, torch.zeros(0, 3, 6, 6)).shape == (0, 5, 6, 6)
    assert Pointwise(3, 5)(torch.zeros(0, 3, 6)).shape == (0, 5, 6)
