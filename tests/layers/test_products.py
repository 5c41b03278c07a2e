"""Products by either library are the same, and each is used where it is meant to be."""

import pytest
import torch

import bfno
from bfno.layers import products

LARGE = 500, 96, 192  # enough multiplications to be worth a call of oneDNN

needs_onednn = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)


def _randn(*shape):
    return torch.randn(shape, dtype=torch.float32)


@pytest.fixture
def called(monkeypatch):
    """Products by oneDNN, on whichever processor this is."""
    calls, onednn = [], torch.ops.mkldnn._linear_pointwise
    monkeypatch.setattr(products, "_is_onednn_faster", lambda: True)
    monkeypatch.setattr(
        torch.ops.mkldnn,
        "_linear_pointwise",
        lambda rows, *others: calls.append(tuple(rows.shape)) or onednn(rows, *others),
    )
    return calls


def _close(found, expected):
    # Sums of 96 to 500 products of normal numbers, in single precision.
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@needs_onednn
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_out", [False, True])
@pytest.mark.parametrize("turned", ["neither", "rows", "matrix", "both"])
def test_products_are_right_however_matrices_lie_in_memory(called, has_bias, has_out, turned):
    count, inputs, outputs = LARGE
    rows, matrix = _randn(count, inputs), _randn(inputs, outputs)
    rows = rows.T.contiguous().T if turned in ("rows", "both") else rows
    matrix = matrix.T.contiguous().T if turned in ("matrix", "both") else matrix
    bias = _randn(outputs) if has_bias else None
    out = _randn(count, 2 * outputs)[:, outputs:] if has_out else None
    found = products.product(rows, matrix, bias=bias, out=out)
    _close(found, rows.double() @ matrix.double() + (0 if bias is None else bias.double()))
    assert called == [(count, inputs)]
    assert out is None or found.data_ptr() == out.data_ptr()


@needs_onednn
def test_mkl_keeps_what_onednn_is_slow_at(called):
    count, inputs, outputs = LARGE
    rows, matrix = _randn(count, inputs), _randn(inputs, outputs)
    part = _randn(inputs, 2 * count)[:, :count].T  # a transposed part
    for one, other in ((rows[:50], matrix), (part, matrix), (rows.double(), matrix.double())):
        _close(products.product(one, other), one.double() @ other.double())
    torch._C._set_mkldnn_enabled(False)  # `torch.backends.mkldnn.flags` would warn of a GPU
    try:
        products.product(rows, matrix)
    finally:
        torch._C._set_mkldnn_enabled(True)
    assert not called


@needs_onednn
@pytest.mark.parametrize("shape", [(40_000, 16, 32), (40_000, 32, 16), (16, 40_000, 32)])
def test_mkl_keeps_narrow_products_however_long_they_are(called, shape):
    count, inputs, outputs = shape
    # Sums of small whole numbers are exact.
    rows, matrix = torch.randint(-3, 4, (inputs, count)).T, torch.randint(-3, 4, (inputs, outputs))
    assert torch.equal(products.product(rows.float(), matrix.float()), (rows @ matrix).float())
    assert not called


@needs_onednn
def test_a_layer_has_the_same_result_and_gradients_by_either_library(called, monkeypatch):
    torch.manual_seed(0)
    layer, images = bfno.BFNO(48, branches=2).float(), _randn(4, 48, 28, 28).requires_grad_()
    cotangent = _randn(4, 48, 28, 28)

    def computed():
        leaves = [images, *layer.parameters()]
        return [layer(images), *torch.autograd.grad(layer(images), leaves, cotangent)]

    by_onednn = computed()
    assert called
    monkeypatch.setattr(products, "_is_onednn_faster", lambda: False)
    for one, other in zip(by_onednn, computed(), strict=True):
        # Both round differently; gradients of weights are sums over thousands of points.
        scale = other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=1e-5 * scale)


def test_which_library_is_faster_is_known_of_the_processor_alone(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    for vendor, is_faster in (("AuthenticAMD", True), ("GenuineIntel", False), ("", False)):
        monkeypatch.setattr(products, "_vendor", lambda vendor=vendor: vendor)
        assert products._is_onednn_faster.__wrapped__() is is_faster
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(products, "_vendor", lambda: "AuthenticAMD")
    assert not products._is_onednn_faster.__wrapped__()
