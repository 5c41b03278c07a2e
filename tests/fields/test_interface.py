"""Which fields' own `pull_back` is used, and which is not."""

from typing import Any

import pytest
import torch
from torch import nn

from bfno.fields import FlowConvField, MLPField
from bfno.fields.interface import prepared, pull_back


class Turned:
    """Does something else than the field in it, but shows all its attributes."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, t, y):
        return -self.inner(t, y)

    def __getattr__(self, name):
        return getattr(self.inner, name)


class TurnedModule(nn.Module):
    """The same as a module."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, t, y):
        return -self.inner(t, y)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


class Static:
    @staticmethod
    def pull_back(t, y, cotangent):
        return y.sin(), cotangent * y.cos()

    def __call__(self, t, y):
        return y.sin()


class Doubled(Static):
    def __call__(self, t, y):
        return 2 * y.sin()


class Called(MLPField):
    def __call__(self, t, y):
        return -super().__call__(t, y)


def convolutional():
    field = FlowConvField(2, 4)
    nn.init.normal_(field._convolutions()[-1].weight)
    return field


def compiled() -> Any:
    return torch.compile(MLPField(2, 4), backend="eager")


def watched():
    field = compiled()
    field.register_forward_hook(lambda _, __, result: result.sin())
    return field


POINTS, IMAGES = (3, 2), (3, 2, 4, 4)
FIELDS = {
    "wrapper": (lambda: Turned(MLPField(2, 4)), POINTS),
    "module as a wrapper": (lambda: TurnedModule(MLPField(2, 4)), POINTS),
    "wrapper of a field that is prepared": (lambda: Turned(convolutional()), IMAGES),
    "module around a field that is prepared": (lambda: TurnedModule(convolutional()), IMAGES),
    "wrapper of a compiled field": (lambda: Turned(compiled()), POINTS),
    "hook on a compiled field": (watched, POINTS),
    "static method": (Static, POINTS),
    "static method, another call": (Doubled, POINTS),
    "another call": (lambda: Called(2, 4), POINTS),
}


@pytest.mark.parametrize(("make", "shape"), FIELDS.values(), ids=FIELDS)
def test_a_field_is_pulled_back_as_it_is_called(make, shape):
    field, y, cotangent = make(), torch.randn(shape, requires_grad=True), torch.randn(shape)
    expected = field(0.3, y)
    (pulled,) = torch.autograd.grad(expected, y, cotangent)
    found = pull_back(prepared(field, y), 0.3, y, cotangent)
    torch.testing.assert_close(found, (expected, pulled), rtol=1e-12, atol=1e-12)


class Counted(MLPField):
    calls = 0

    def forward(self, t, y):
        return super().forward(t, y)

    def pull_back(self, t, y, cotangent):
        self.calls += 1
        return super().pull_back(t, y, cotangent)


def test_a_compiled_field_keeps_its_own_way():
    field, y = Counted(2, 4), torch.randn(POINTS)
    found = pull_back(torch.compile(field, backend="eager"), 0.3, y, torch.ones(POINTS))
    assert field.calls == 1
    torch.testing.assert_close(found, field.pull_back(0.3, y, torch.ones(POINTS)))


def test_a_way_that_was_put_on_an_object_is_its_own():
    field, y = nn.Identity(), torch.randn(POINTS)
    field.__dict__["pull_back"] = lambda t, y, cotangent: (y, 3 * cotangent)
    assert torch.equal(pull_back(field, 0.3, y, torch.ones(POINTS))[1], 3 * torch.ones(POINTS))
