import copy
import pickle

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from bfno.layers import BFNO, mixing, spectral
from bfno.layers.bfno import Kernel, Skip
from tests.layers.oracle import plain_bfno
from tests.torch_versions import ONE_GRAPH

GRIDS = {1: (7,), 2: (5, 6), 3: (3, 4, 5)}
CLOSE = {"rtol": 0, "atol": 1e-10}  # float64, values of order one, sums of at most 1,000 terms


def make(
    kernel: Kernel = "branch",
    skip: Skip = "identity",
    axes=2,
    branches=2,
    activation="relu",
    channels=3,
):
    grid = GRIDS[axes] if kernel == "filter" else None
    layer = BFNO(
        channels, branches, kernel=kernel, skip=skip, axes=axes, activation=activation, grid=grid
    )
    for parameter in layer.parameters():  # all signs, so that every relu has two sides
        torch.nn.init.normal_(parameter, std=0.5)
    return layer


def gradients(function, layer, x):
    x = x.clone().requires_grad_()
    y = function(x)
    weight = torch.sin(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
    return y, torch.autograd.grad((y * weight).sum(), (x, *layer.parameters()))


def check_against_plain(layer, x):
    plain = gradients(lambda value: plain_bfno(layer, value), layer, x)
    torch.testing.assert_close(gradients(layer, layer, x), plain, **CLOSE)


@pytest.mark.parametrize("branches", [1, 2, 3, 4])
@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("skip", ["identity", "linear", "conv"])
@pytest.mark.parametrize("kernel", ["branch", "gate", "filter"])
def test_output_and_all_gradients_equal_the_plain_formulation(kernel, skip, axes, branches):
    check_against_plain(make(kernel, skip, axes, branches), torch.randn(4, 3, *GRIDS[axes]))


@pytest.mark.parametrize("activation", ["relu", "softplus", "tanh"])
@pytest.mark.parametrize(
    "grid", [(1, 1), (1, 2), (2, 1), (4, 4), (5, 3), (8, 7), (3, 70), (24, 3), (26, 24)]
)
def test_every_activation_and_grid_equals_the_plain_formulation(activation, grid):
    check_against_plain(make(activation=activation), torch.randn(3, 3, *grid))


def test_a_batch_cut_into_pieces_gives_the_same_result(monkeypatch):
    layer, x = make(), torch.randn(5, 3, 6, 6)
    whole = gradients(layer, layer, x)
    monkeypatch.setattr(mixing, "PIECE_BYTES", 6 * 4 * 12 * 8 * 2)  # two samples a piece
    assert mixing.samples_at_once(x.movedim(1, -1), 12) == 2
    torch.testing.assert_close(gradients(layer, layer, x), whole, **CLOSE)


@pytest.mark.parametrize("kernel", ["branch", "filter"])
@pytest.mark.parametrize("channels", [1, 2, 4, 5, 7, 8])
def test_a_width_that_is_padded_inside_gives_the_same_result(kernel, channels):
    check_against_plain(make(kernel, channels=channels), torch.randn(2, channels, *GRIDS[2]))


def test_widths_are_padded_where_it_pays():
    assert [mixing.padded_width(width) for width in (16, 47, 75, 76, 79)] == [16, 48, 76, 76, 80]


@pytest.mark.parametrize("channels", [7, 8])
@pytest.mark.parametrize("kernel", ["branch", "filter"])
def test_results_with_and_without_a_graph_are_the_same_bits(kernel, channels, monkeypatch):
    grid = (24, 26)
    layer = BFNO(channels, kernel=kernel, grid=grid if kernel == "filter" else None).float()
    x = torch.randn(5, channels, *grid, dtype=torch.float32)
    monkeypatch.setattr(mixing, "PIECE_BYTES", 24 * 14 * 32 * 4 * 2)  # several pieces
    with_graph = layer(x)
    with torch.no_grad():
        assert torch.equal(layer(x), with_graph)


def test_frozen_weights_leave_second_derivatives_to_the_input():
    layer, x = make(activation="tanh").requires_grad_(False), torch.randn(2, 3, 3, 4)
    assert gradgradcheck(layer, (x.requires_grad_(),))


def test_fast_transforms_give_the_same_layer_as_matrices(monkeypatch):
    layer, x = make(), torch.randn(2, 3, 6, 5)
    by_matrices = gradients(layer, layer, x)
    monkeypatch.setattr(spectral, "DFT_LIMIT", 0)
    torch.testing.assert_close(gradients(layer, layer, x), by_matrices, **CLOSE)


@pytest.mark.parametrize("uses", [2, 3])
@pytest.mark.parametrize("kernel", ["branch", "gate", "filter"])
def test_a_layer_used_again_has_the_same_gradient_for_those_who_differentiate_it(kernel, uses):
    layer, x = make(kernel), torch.randn(2, 3, *GRIDS[2], requires_grad=True)
    inputs = [x, *layer.parameters()]

    def gradient(create_graph):
        y = x
        for _ in range(uses):
            y = 0.1 * layer(y)
        return torch.autograd.grad(y.square().sum(), inputs, create_graph=create_graph)

    torch.testing.assert_close(gradient(True), gradient(False), **CLOSE)


@pytest.mark.parametrize("kernel", ["branch", "gate", "filter"])
def test_several_cotangents_are_pulled_back_at_once(kernel):
    layer, x = make(kernel), torch.randn(2, 3, *GRIDS[2], requires_grad=True)
    inputs, y = [x, *layer.parameters()], 0.1 * layer(layer(x))
    cotangents = torch.randn(3, *y.shape)
    together = torch.autograd.grad(y, inputs, cotangents, retain_graph=True, is_grads_batched=True)
    apart = [torch.autograd.grad(y, inputs, one, retain_graph=True) for one in cotangents]
    apart = [torch.stack(parts) for parts in zip(*apart, strict=True)]
    torch.testing.assert_close(list(together), apart, **CLOSE)


def test_a_gradient_is_differentiated_forward():
    layer, x = make(activation="tanh"), torch.randn(2, 3, *GRIDS[2], requires_grad=True)
    y = layer(x)
    cotangent, direction = torch.randn(2, *y.shape)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(cotangent, direction)
        (found,) = torch.autograd.grad(y, x, dual, retain_graph=True)
        along = torch.autograd.forward_ad.unpack_dual(found).tangent
    (expected,) = torch.autograd.grad(y, x, direction)  # a gradient is linear in its cotangent
    torch.testing.assert_close(along, expected, **CLOSE)


def test_second_derivatives_of_a_layer_used_again_are_those_of_the_plain_formulation():
    layer, x = make(activation="tanh"), torch.randn(2, 3, *GRIDS[2])
    weights = list(layer.parameters())

    def product(function):
        y = x
        for _ in range(2):
            y = 0.1 * function(y)
        found = torch.autograd.grad(y.square().sum(), weights, create_graph=True)
        along = torch.stack([(one * torch.cos(one.detach())).sum() for one in found]).sum()
        return torch.autograd.grad(along, weights)

    found = product(layer)
    torch.testing.assert_close(found, product(lambda value: plain_bfno(layer, value)), **CLOSE)


def test_differentiating_a_gradient_takes_each_use_of_a_layer_once(monkeypatch):
    layer, taken = make(), []
    plainly = mixing._gradients_plainly
    monkeypatch.setattr(
        mixing, "_gradients_plainly", lambda *inputs: (taken.append(1), plainly(*inputs))[1]
    )
    y = torch.randn(2, 3, *GRIDS[2])
    for _ in range(6):
        y = 0.1 * layer(y)
    torch.autograd.grad(y.sum(), list(layer.parameters()), create_graph=True)
    assert len(taken) == 6


@pytest.mark.parametrize("activation", ["softplus", "tanh"])
def test_first_and_second_derivatives_pass_gradcheck(activation):
    layer = make(activation=activation, channels=2)
    x = torch.randn(2, 2, 3, 4, requires_grad=True)
    assert gradcheck(layer, (x,))
    assert gradgradcheck(layer, (x,))


def test_one_channel_on_one_point_by_hand():
    layer = BFNO(1, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[[[2.0]], [[5.0]]]]))
        layer.bias.copy_(torch.tensor([[[1.0], [7.0]]]))
        layer.merge_real.weight.fill_(3.0)
        layer.merge_real.bias.fill_(0.5)
    # The spectrum of one point is the point, and its imaginary output is dropped.
    x = torch.tensor([[[[1.5]]]])
    assert layer(x).item() == pytest.approx(1.5 + 3 * (2 * 1.5 + 1) + 0.5)
    assert layer(-x).item() == pytest.approx(-1.5 + 3 * 0.0 + 0.5)


def test_a_filter_on_another_grid_acts_on_the_frequencies_both_have():
    layer = BFNO(1, 1, kernel="filter", grid=(5, 5))
    with torch.no_grad():
        layer.merge_real.weight.fill_(1.0)
        layer.merge_imag.weight.fill_(1.0)
        layer.merge_real.bias.zero_()
        layer.merge_imag.bias.zero_()

    def wave(size, frequency):
        angle = 2 * torch.pi * frequency * torch.arange(size) / size
        return torch.cos(angle).expand(1, 1, size, size).contiguous()

    # A band-limited wave is multiplied by the same number on the trained and on the finer grid.
    trained, finer = layer(wave(5, 1)) - wave(5, 1), layer(wave(9, 1)) - wave(9, 1)
    torch.testing.assert_close(trained[0, 0, 0, 0], finer[0, 0, 0, 0])
    # A frequency that the trained grid does not have is filtered out.
    torch.testing.assert_close(layer(wave(9, 4)), wave(9, 4))


def test_memory_layout_of_the_input_does_not_matter():
    layer, x = make(), torch.randn(2, 3, 5, 6)
    torch.testing.assert_close(layer(x.to(memory_format=torch.channels_last)), layer(x), **CLOSE)
    torch.testing.assert_close(layer(x.permute(0, 1, 3, 2).contiguous().mT), layer(x), **CLOSE)


def test_autocast_keeps_the_spectrum_in_full_precision():
    layer, x = make().float(), torch.randn(2, 3, 6, 6, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = layer(x)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, layer(x), rtol=0, atol=0)


def single(kernel: Kernel = "branch", skip: Skip = "identity"):
    """A layer in single precision, as autocast finds it, with input and cotangent."""
    layer = make(kernel, skip, activation="tanh").float()
    return layer, *torch.randn(2, 2, 3, *GRIDS[2], dtype=torch.float32).unbind()


BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16}


@pytest.mark.parametrize("limit", [0, spectral.DFT_LIMIT], ids=["fast transforms", "matrices"])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("skip", ["identity", "linear"])
@pytest.mark.parametrize("kernel", ["branch", "filter"])
def test_autocast_leaves_gradients_in_full_precision(
    kernel, skip, create_graph, limit, monkeypatch
):
    monkeypatch.setattr(spectral, "DFT_LIMIT", limit)
    layer, x, cotangent = single(kernel, skip)
    leaves = [x.requires_grad_(), *layer.parameters()]

    def found(forward, backward):
        with torch.autocast(**BFLOAT16, enabled=forward):
            y = layer(x)
        with torch.autocast(**BFLOAT16, enabled=backward):
            return torch.autograd.grad(y, leaves, cotangent, create_graph=create_graph)

    expected = found(False, False)
    for forward, backward in ((True, True), (False, True), (True, False)):
        torch.testing.assert_close(found(forward, backward), expected, rtol=0, atol=0)


@pytest.mark.parametrize("limit", [0, spectral.DFT_LIMIT], ids=["fast transforms", "matrices"])
@pytest.mark.parametrize("skip", ["identity", "linear", "conv"])
def test_autocast_leaves_products_with_the_jacobian_in_full_precision(skip, limit, monkeypatch):
    monkeypatch.setattr(spectral, "DFT_LIMIT", limit)
    layer, x, cotangent = single(skip=skip)
    value, pull = layer.linearise(x)
    expected = value, pull(cotangent)
    with torch.autocast(**BFLOAT16):
        found, pull_back = layer.linearise(x)
        torch.testing.assert_close((found, pull_back(cotangent)), expected, rtol=0, atol=0)
        torch.testing.assert_close(pull(cotangent), expected[1], rtol=0, atol=0)
        half = layer.linearise(x.bfloat16())
        assert half[0].dtype == half[1](cotangent.bfloat16()).dtype == torch.bfloat16
        torch.testing.assert_close(half[0], layer(x.bfloat16()), rtol=0, atol=0)
    torch.testing.assert_close(pull_back(cotangent), expected[1], rtol=0, atol=0)


# PyTorch's own forward-mode rules are scripted when first used.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_forward_and_reverse_mode_agree():
    layer, x = make(), torch.randn(2, 3, 4, 4)
    tangent = torch.randn_like(x)
    by_forward_mode = torch.func.jvp(layer, (x,), (tangent,))[1]
    cotangent = torch.randn_like(x)
    pull = torch.func.vjp(layer, x)[1]
    torch.testing.assert_close(
        (by_forward_mode * cotangent).sum(), (tangent * pull(cotangent)[0]).sum()
    )


@ONE_GRAPH
# The compiler says that it looks through the cache of the transforms' matrices.
@pytest.mark.filterwarnings("ignore:.*lru_cache.*:UserWarning")
@pytest.mark.parametrize("kernel", ["branch", "filter"])
def test_a_compiler_sees_the_layer_as_one_graph(kernel):
    layer, x = make(kernel), torch.randn(2, 3, *GRIDS[2])
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(compiled, layer, x), gradients(layer, layer, x), **CLOSE)


def test_a_layer_survives_copying_and_pickling():
    layer, x = make(activation="softplus"), torch.randn(1, 3, 4, 4)
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(clone(x), layer(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"channels": 0}, "channels must be a positive whole number, got 0"),
        ({"channels": 2, "branches": -1}, "branches must be a positive"),
        ({"channels": 2, "kernel": "dynamic"}, "kernel must be one of branch, gate, filter"),
        ({"channels": 2, "skip": "none"}, "skip must be one of identity, linear, conv"),
        ({"channels": 2, "activation": "gelu"}, "activation must be one of relu"),
        ({"channels": 2, "axes": 4}, "axes must be 1, 2 or 3"),
        ({"channels": 2, "kernel": "filter"}, "kernel='filter' needs grid"),
        ({"channels": 2, "grid": (4, 4)}, "grid belongs to kernel='filter' alone"),
        ({"channels": 2, "kernel": "filter", "grid": "4,4"}, "grid must be the points along each"),
        ({"channels": 2, "kernel": "filter", "grid": (4, 0)}, "grid must be the points along each"),
        ({"channels": 2, "kernel": "filter", "grid": 16}, "grid must be the points along each"),
        ({"channels": 2, "kernel": "filter", "grid": ()}, "grid must be the points along each"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        BFNO(**options)


@pytest.mark.parametrize("shape", [(2, 3), (2, 4, 5, 5), (2, 3, 0, 5), (1, 3, 2, 2, 2, 2)])
def test_bad_shapes_are_refused_in_one_sentence(shape):
    with pytest.raises(ValueError, match=r"input must have shape \(batch, 3, \*space\)"):
        make()(torch.zeros(shape))


def test_a_wrong_dtype_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"layer's dtype torch.float64, got torch.float32"):
        make()(torch.zeros(1, 3, 4, 4, dtype=torch.float32))
    with pytest.raises(ValueError, match="was built for 2 space axes"):
        make(skip="conv")(torch.zeros(1, 3, 4))
