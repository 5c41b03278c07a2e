"""When something may be done in place of calling a module, and to what it returned."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from bfno.fields.convolution import TimedConv
from bfno.layers import AFNO, BFNO, FNO
from bfno.layers.modules import gives_result_away, has_hooks, is_plain, is_untouched

HOOKS = {
    "forward": nn.Module.register_forward_hook,
    "forward, before": nn.Module.register_forward_pre_hook,
    "backward": nn.Module.register_full_backward_hook,
    "backward, before": nn.Module.register_full_backward_pre_hook,
}
EVERYWHERE = {
    "forward": nn.modules.module.register_module_forward_hook,
    "forward, before": nn.modules.module.register_module_forward_pre_hook,
    "backward": nn.modules.module.register_module_full_backward_hook,
    "backward, before": nn.modules.module.register_module_full_backward_pre_hook,
}


def ignore(*_):
    return None


@pytest.mark.parametrize("register", HOOKS.values(), ids=HOOKS)
def test_every_kind_of_hook_is_seen_until_it_is_removed(register):
    module = nn.Linear(2, 2)
    assert not has_hooks(module) and is_untouched(module) and is_plain(module, nn.Linear)
    handle = register(module, ignore)
    assert has_hooks(module) and not is_untouched(module) and not is_plain(module, nn.Linear)
    handle.remove()
    assert not has_hooks(module)


@pytest.mark.parametrize("register", EVERYWHERE.values(), ids=EVERYWHERE)
def test_hooks_of_all_modules_are_seen_at_each(register):
    handle = register(ignore)
    try:
        assert has_hooks(nn.Linear(2, 2))
    finally:
        handle.remove()


class Named(nn.Linear):
    """Another class in name only."""


class Passing(nn.Linear):
    def forward(self, input):
        return super().forward(input).sigmoid()


class Calling(nn.Linear):
    def __call__(self, x):
        return super().__call__(x).sigmoid()


def touched():
    module = nn.Linear(2, 2)
    module.forward = torch.sigmoid
    return module


def parametrised():
    return parametrizations.weight_norm(nn.Linear(2, 2))


PLAIN = {"itself": nn.Linear, "in name": Named, "parametrised": parametrised}
OTHER = {"pass": Passing, "call": Calling, "on the object": touched, "class": nn.Identity}


@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_module_is_what_its_class_says(make):
    module = make() if make is parametrised else make(2, 2)
    assert is_plain(module, nn.Linear) and gives_result_away(module)


@pytest.mark.parametrize("make", OTHER.values(), ids=OTHER)
def test_a_module_is_something_else(make):
    module = make() if make is touched else make(2, 2)
    assert not is_plain(module, nn.Linear) and not gives_result_away(module)


class Squashed(FNO):
    def forward(self, x):
        return super().forward(x).sigmoid()


class Keeping(FNO):
    result_may_be_overwritten = False


GIVING = {
    "fno": lambda: FNO(4, 2),
    "afno": lambda: AFNO(4, 2),
    "timed": lambda: TimedConv(2, 2, 3),
    "parametrised": lambda: parametrizations.weight_norm(FNO(4, 2), "weight"),
}
HOLDING = {
    "says nothing": lambda: BFNO(4),
    "subclass": lambda: Squashed(4, 2),
    "says no": lambda: Keeping(4, 2),
    "convolution": lambda: nn.Conv2d(2, 2, 1),
}


@pytest.mark.parametrize("make", GIVING.values(), ids=GIVING)
def test_results_of_own_layers_may_be_overwritten_if_no_hook_watches(make):
    module = make()
    assert gives_result_away(module)
    module.register_forward_hook(ignore)
    assert not gives_result_away(module)
    module = make()
    module.forward = torch.sigmoid
    assert not gives_result_away(module)


@pytest.mark.parametrize("make", HOLDING.values(), ids=HOLDING)
def test_results_of_others_may_not(make):
    assert not gives_result_away(make())
