from typing import Any

import pytest
import torch
from torch.nn import functional as F

from bfno import AFNO, BFNO, FNO, OperatorField
from bfno.fields import LAYERS, operator
from bfno.fields.interface import prepared, pull_back
from bfno.layers import mixing
from bfno.layers.pointwise import Pointwise
from tests.layers.oracle import plain_bfno


def plain_field(field, t, y):
    """Encoder with a concatenated time channel, layers, decoder, as loops over plain operations."""
    t = torch.as_tensor(t, dtype=y.dtype).reshape(-1, *[1] * (y.dim() - 1))
    channel = t * torch.ones_like(y[:, :1])
    points = torch.cat((y, channel), dim=1).movedim(1, -1)
    hidden = F.linear(points, field.encoder.weight, field.encoder.bias).movedim(-1, 1)
    for index, layer in enumerate(field.layers):
        hidden = plain_bfno(layer, hidden)
        if index < len(field.layers) - 1 or field.last_activation:
            hidden = {"relu": F.relu, "softplus": F.softplus, "tanh": torch.tanh}[field.activation](
                hidden
            )
    return F.linear(hidden.movedim(1, -1), field.decoder.weight, field.decoder.bias).movedim(-1, 1)


@pytest.mark.parametrize("time", [0.3, torch.tensor(0.3), torch.tensor([0.1, 0.5, 0.2, 0.9, 0.4])])
@pytest.mark.parametrize(
    ("activation", "last_activation"), [("relu", False), ("softplus", True), ("tanh", True)]
)
def test_field_equals_its_plain_form_with_gradients(time, activation, last_activation, monkeypatch):
    field = OperatorField(
        "bfno", 2, 4, 2, activation=activation, last_activation=last_activation, branches=3
    )
    y = torch.randn(5, 2, 5, 4, requires_grad=True)
    wanted = (y, *field.parameters())
    expected = plain_field(field, time, y)
    weight = torch.randn_like(expected)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), wanted)
    for piece in (mixing.PIECE_BYTES, 1):  # the whole batch at once, and sample by sample
        monkeypatch.setattr(mixing, "PIECE_BYTES", piece)
        result = field(time, y)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)
        found = torch.autograd.grad((result * weight).sum(), wanted)
        for one, other in zip(found, expected_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("layer", ["bfno", "fno", "afno"])
def test_every_kind_of_layer_depends_on_time_only_if_asked(layer):
    options = {"bfno": {}, "fno": {"modes": 2}, "afno": {"blocks": 2}}[layer]
    y = torch.randn(2, 3, 6, 6)
    timed = OperatorField(layer, 3, 4, 2, **options)
    assert not torch.allclose(timed(0.0, y), timed(1.0, y))
    autonomous = OperatorField(layer, 3, 4, 2, time=False, **options)
    assert torch.equal(autonomous(0.0, y), autonomous(1.0, y))


def test_a_callable_makes_the_layers():
    field = OperatorField(lambda width: torch.nn.Conv2d(width, width, 1), 2, 5, 3)
    assert len(field.layers) == 3
    assert field(0.0, torch.zeros(1, 2, 3, 3)).shape == (1, 2, 3, 3)


class Squash(torch.nn.Module):
    """Needs its result for its own derivative."""

    def __init__(self, width):
        super().__init__()
        self.conv = torch.nn.Conv2d(width, width, 1)

    def forward(self, x):
        return self.conv(x).sigmoid()


class SquashedFNO(FNO):
    def forward(self, x):
        return super().forward(x).sigmoid()


@pytest.mark.parametrize(("layer", "options"), [(Squash, {}), (SquashedFNO, {"modes": 2})])
def test_a_registered_layer_may_need_its_result_for_its_own_derivative(layer, options, monkeypatch):
    monkeypatch.setitem(LAYERS, "squash", layer)
    field = OperatorField("squash", 3, 8, 2, **options)
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: field(0.5, x), x)


@pytest.mark.parametrize(("layer", "options"), [(FNO, {"modes": 2}), (AFNO, {"blocks": 2})])
def test_own_layers_have_their_results_overwritten(layer, options, monkeypatch):
    seen, forward = [], layer.forward
    monkeypatch.setattr(layer, "forward", lambda self, x: seen.append(forward(self, x)) or seen[-1])
    field = OperatorField(layer, 2, 4, 2, **options)
    field(0.0, torch.randn(2, 2, 4, 4)).sum().backward()
    assert (seen[0] >= 0).all()


class Kept(torch.nn.Module):
    """Keeps what it returns."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.kept = inner, torch.empty(0)

    def forward(self, x):
        self.kept = self.inner(x)
        return self.kept


def test_what_a_layer_put_in_place_keeps_is_not_overwritten():
    field, y = OperatorField("fno", 2, 4, 2, modes=2), torch.randn(2, 2, 4, 4)
    first = field.layers[0]
    with torch.no_grad():
        expected = first(field.encoder(y, 0.3))
        field.layers[0] = kept = Kept(first)
        field(0.3, y)
        torch.testing.assert_close(kept.kept, expected, rtol=0, atol=0)
        seen, forward = [], first.forward
        first.forward = lambda x: seen.append(forward(x)) or seen[-1]
        field.layers[0] = first
        field(0.3, y)
        torch.testing.assert_close(seen[0], expected, rtol=0, atol=0)


def test_a_layer_put_in_place_may_need_its_result_for_its_own_derivative():
    field, y = OperatorField("fno", 2, 4, 2, modes=2), torch.randn(2, 2, 4, 4, requires_grad=True)
    field.layers[0] = Squash(4)
    assert torch.autograd.gradcheck(lambda y: field(0.3, y), y)


@pytest.mark.parametrize("layer", ["fno", "bfno"])
def test_an_activation_follows_a_layer_put_in_place_unless_it_applies_one(layer):
    field, y = OperatorField("bfno", 2, 4, 3, activation="tanh"), torch.randn(2, 2, 4, 4)
    field.layers[0] = FNO(4, 2) if layer == "fno" else BFNO(4)
    first, second, third = field.layers
    expected = field.decoder(third(second(first(field.encoder(y, 0.3)).tanh())))
    torch.testing.assert_close(field(0.3, y), expected, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn(2, 2, 4, 4)
    y.requires_grad_()
    (pulled,) = torch.autograd.grad(field(0.3, y), y, cotangent)
    found = pull_back(field, 0.3, y, cotangent)[1]
    torch.testing.assert_close(found, pulled, rtol=1e-12, atol=1e-12)


class Halved(BFNO):
    def forward(self, x):
        return 0.5 * super().forward(x) - 0.1


class Turned(OperatorField):
    def forward(self, t, y):
        return -super().forward(t, y)


class HalvedPointwise(Pointwise):
    def forward(self, x, t=None):
        return 0.5 * super().forward(x, t)


def _with_forward(module, function):
    """Put another forward pass on an object: a function of the result of its own."""
    forward = module.forward
    module.forward = lambda *inputs: function(forward(*inputs))


def _replaced(kind):
    """A field of layers that can be linearised, one part of which was replaced afterwards."""
    field: Any = _made("plain")
    first = field.layers[0]
    if kind == "layer of a subclass":
        field.layers[0] = Halved(4, activation="softplus", output_activation="softplus")
    elif kind == "layer of another class":
        field.layers[0] = FNO(4, 2)
    elif kind == "layer that passes attributes on":
        field.layers[0] = Delegate(first)
    elif kind == "skip":
        first.skip = HalvedPointwise(4, 4)
    elif kind == "decoder of a subclass":
        field.decoder = HalvedPointwise(4, 2)
    elif kind == "decoder of another class":
        field.decoder = torch.nn.Conv2d(4, 2, 1)
    else:
        part = {"layer": first, "encoder": field.encoder, "decoder": field.decoder}[kind]
        _with_forward(part, torch.sin)
    return field


class Delegate(torch.nn.Module):
    """Does something else than what it wraps, but shows all its attributes."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return -self.inner(*inputs)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


@pytest.mark.parametrize(
    "kind",
    [
        "layer of a subclass",
        "layer of another class",
        "layer that passes attributes on",
        "layer",
        "skip",
        "encoder",
        "decoder",
        "decoder of a subclass",
        "decoder of another class",
    ],
)
def test_a_field_is_pulled_back_through_the_parts_that_it_has_now(kind):
    field, y = _replaced(kind), torch.randn(2, 2, 4, 4, requires_grad=True)
    cotangent = torch.randn(2, 2, 4, 4)
    expected = field(0.3, y)
    (pulled,) = torch.autograd.grad(expected, y, cotangent)
    found = pull_back(field, 0.3, y, cotangent)
    torch.testing.assert_close(found, (expected, pulled), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("skip", ["identity", "linear", "conv"])
def test_weights_that_are_parametrised_do_not_slow_a_field_down(skip, monkeypatch):
    field, y = OperatorField("bfno", 2, 4, 2, skip=skip), torch.randn(2, 2, 4, 4).requires_grad_()
    weight_norm = torch.nn.utils.parametrizations.weight_norm
    parts: Any = (field.encoder, field.decoder, field.layers[0])
    for part in parts:
        weight_norm(part, "weight")
        part.parametrizations.weight.original0.data.mul_(1.5)
    cotangent = torch.randn(2, 2, 4, 4)
    expected = field(0.3, y)
    (pulled,) = torch.autograd.grad(expected, y, cotangent)
    monkeypatch.setattr(operator, "pull_back_by_autograd", None)  # a call of it fails
    found = pull_back(field, 0.3, y, cotangent)
    torch.testing.assert_close(found, (expected, pulled), rtol=1e-12, atol=1e-12)


def _hooked(module):
    module.register_forward_hook(lambda _, __, result: 0.5 * result - 0.1)


def _made(kind):
    """Fields whose classes, layers or hooks do something else than what they were made from."""
    options = {"activation": "softplus", "inner_activation": "softplus", "last_activation": True}
    layer = Halved if kind == "subclass of a layer" else "bfno"
    field = (Turned if kind == "subclass" else OperatorField)(layer, 2, 4, 2, **options)
    if kind.startswith("hook"):
        _hooked(field if kind == "hook" else field.layers[0])
    if kind == "forward of its own":
        forward = field.forward
        field.forward = lambda t, y: forward(t, y).exp()
    return field


@pytest.mark.parametrize(
    "kind", ["subclass of a layer", "subclass", "hook", "hook of a layer", "forward of its own"]
)
def test_a_field_is_pulled_back_as_it_is_called(kind):
    torch.manual_seed(0)
    field, y = _made(kind), torch.randn(2, 2, 4, 4, requires_grad=True)
    cotangent = torch.randn(2, 2, 4, 4)
    expected = field(0.3, y)
    (pulled,) = torch.autograd.grad(expected, y, cotangent)
    found = pull_back(prepared(field, y), 0.3, y, cotangent)
    torch.testing.assert_close(found, (expected, pulled), rtol=1e-12, atol=1e-12)


def test_a_jacobian_is_found_at_once():
    torch.manual_seed(0)
    field, y = OperatorField("bfno", 2, 4, 2, branches=3), torch.randn(1, 2, 4, 3)
    at_once, by_rows = (
        torch.autograd.functional.jacobian(lambda y: field(0.3, y), y, vectorize=at_once)
        for at_once in (True, False)
    )
    torch.testing.assert_close(at_once, by_rows, rtol=1e-12, atol=1e-12)


def test_an_activation_follows_a_layer_whose_class_has_another_forward_pass():
    torch.manual_seed(0)
    field, y = OperatorField(Halved, 2, 4, 2), torch.randn(2, 2, 4, 4)
    first, second = field.layers
    expected = field.decoder(second(first(field.encoder(y, 0.3)).relu()))
    torch.testing.assert_close(field(0.3, y), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("layer", "options"), [("fno", {"modes": 2}), ("afno", {"blocks": 2})])
def test_what_a_hook_has_kept_is_not_overwritten(layer, options):
    seen, field = [], OperatorField(layer, 3, 8, 2, **options)
    field.layers[0].register_forward_hook(lambda _, __, result: seen.append(result))
    field(0.0, torch.randn(2, 3, 16, 16))
    assert (seen[0] < 0).any()
    field.layers[0].register_forward_hook(lambda _, __, result: result.exp())
    field(0.0, torch.randn(2, 3, 16, 16)).sum().backward()  # exp needs its result


def test_bad_input_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="layer must be one of bfno, fno, afno or a callable"):
        OperatorField("cno", 3, 4, 1)
    field = OperatorField("bfno", 3, 4, 1)
    with pytest.raises(ValueError, match=r"the state must have shape \(batch, 3, \*space\)"):
        field(0.0, torch.zeros(2, 4, 5, 5))
    with pytest.raises(ValueError, match="one value per sample"):
        field(torch.zeros(3), torch.zeros(2, 3, 5, 5))
