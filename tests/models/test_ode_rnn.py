"""ODE-RNNs against a plain loop over one series at a time."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from bfno.dynamics import FirstOrder
from bfno.fields import Autonomous
from bfno.models.ode_rnn import DYNAMICS, ODERNN, GRUUnit, ODERNNClassifier, make_ode_rnn
from bfno.ode import solve
from tests.models.series_batches import (
    Batch,
    changed_series,
    on_union_of_times,
    one_series,
    padded,
    random_batch,
    with_rubbish_where_nothing_was_observed,
)

EXACT = {"rtol": 0, "atol": 1e-13}


def small(dynamics="first_order", **options):
    """A network of strong weights, so that nothing it does is lost in rounding."""
    network = make_ode_rnn(2, 3, layers=1, units=4, gru_units=5, dynamics=dynamics, **options)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim():
                parameter.normal_(std=0.6)
    return network


def classifier(dynamics="first_order", *, by_row=False, classes=3, **options):
    return ODERNNClassifier(
        2, classes, small(dynamics, **options), by_row=by_row, decoder=4, head=(5,)
    )


def test_a_classifier_does_not_read_series_from_their_end():
    with pytest.raises(ValueError, match="build its ODERNN with backward=False"):
        classifier(backward=True)


def plain_unit(unit, y, s, x):
    """The update of one series as it is written down."""
    read, bias = unit.read_row.weight, unit.read_row.bias
    units = unit.units

    def hidden(number, state, weight):
        rows = slice(number * units, (number + 1) * units)
        return torch.tanh(read[rows] @ x + bias[rows] + state @ weight)

    state = torch.cat((y, s))
    update = torch.sigmoid(unit.update(hidden(0, state, unit.gates_hidden[:, :units])))
    reset = torch.sigmoid(unit.reset(hidden(1, state, unit.gates_hidden[:, units:])))
    kept = torch.cat((y * reset, s * reset))
    new, spread = unit.new(hidden(2, kept, unit.new_hidden)).chunk(2)
    return (1 - update) * new + update * y, ((1 - update) * spread.abs() + update * s).abs()


def plain_network(network, batch, gaps, counts):
    """Every series alone, one row after the other, moved by the engine."""
    begin, end = network.dynamics.interval
    before, after = [], []
    for times, values, mask, ways, steps in zip(*batch, gaps, counts, strict=True):
        y = s = torch.zeros(network.size)
        for row in range(len(times)):
            if ways[row] != 0:
                clock = torch.linspace(begin, end, int(steps[row]) + 1)

                def rates(t, state, way=ways[row]):
                    return way / (end - begin) * network.dynamics(t, state)

                solution = solve(rates, y[None], clock, method=network.tableau.name)
                y = solution.ys[-1, 0]
            before.append(y)
            if mask[row].any():
                y, s = plain_unit(network.unit, y, s, torch.cat((values[row], mask[row].double())))
            after.append(torch.cat((y, s)))
    shape = (*batch.times.shape, -1)
    return torch.stack(before).view(shape), torch.stack(after).view(shape)


def own_ways(times, step, *, backward=False):
    """Gaps and steps by the rule: as many equal steps of at most `step` as are needed."""
    gaps = torch.zeros_like(times)
    gaps[:, 1:] = times[:, 1:] - times[:, :-1]
    if backward:
        gaps[:, 0] = -0.01
    counts = [[math.ceil(abs(float(gap)) / step) for gap in row] for row in gaps]
    return gaps, torch.tensor(counts)


@pytest.mark.parametrize("method", ["euler", "midpoint", "rk4"])
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_a_batch_equals_a_plain_loop_over_each_series(dynamics, method):
    network, batch = small(dynamics, method=method, step=0.1), random_batch()
    states = network(*batch)
    before, after = plain_network(network, batch, *own_ways(batch.times, 0.1))
    torch.testing.assert_close(states.before, before, **EXACT)
    torch.testing.assert_close(torch.cat((states.after, states.spread), -1), after, **EXACT)


def test_a_backward_network_goes_from_the_last_row_to_the_first():
    network, batch = small(backward=True, step=0.1), random_batch()
    states = network(*batch)
    turned = Batch(*(part.flip(1) for part in batch))
    gaps, counts = own_ways(turned.times, 0.1, backward=True)
    assert (gaps <= 0).all()
    before, after = plain_network(network, turned, gaps, counts)
    torch.testing.assert_close(states.before, before.flip(1), **EXACT)
    torch.testing.assert_close(states.after, after.flip(1)[..., :3], **EXACT)
    torch.testing.assert_close(states.spread, after.flip(1)[..., 3:], **EXACT)


def test_the_public_variant_lags_behind_and_goes_backwards():
    network = small(gaps="public_code", step=0.1)
    batch = random_batch((5, 4))
    states = network(*batch)
    times = batch.times
    gaps, counts = torch.zeros(2, 5), torch.ones(2, 5, dtype=torch.long)
    for series, length in ((0, 5), (1, 4)):
        gaps[series, 0] = -0.01
        gaps[series, 1] = times[series, -1] - times[series, 0]
        for row in range(2, length):
            gaps[series, row] = times[series, row - 2] - times[series, row - 1]
            counts[series, row] = math.ceil(abs(float(gaps[series, row])) / 0.1)
    before, after = plain_network(network, batch, gaps, counts)
    torch.testing.assert_close(states.before, before, **EXACT)
    torch.testing.assert_close(states.after, after[..., :3], **EXACT)


def test_without_a_field_only_the_gated_unit_is_left():
    class Rest(nn.Module):
        def forward(self, y):
            return torch.zeros_like(y)

    network = ODERNN(FirstOrder(Autonomous(Rest())), 2, 3, 5)
    batch = random_batch()
    states = network(*batch)
    for series in range(len(batch.times)):
        y = s = torch.zeros(3)
        for row in range(batch.times.shape[1]):
            torch.testing.assert_close(states.before[series, row], y, **EXACT)
            if batch.mask[series, row].any():
                x = torch.cat((batch.values[series, row], batch.mask[series, row].double()))
                y, s = plain_unit(network.unit, y, s, x)
            torch.testing.assert_close(states.after[series, row], y, **EXACT)
    nothing = network(batch.times, batch.values, torch.zeros_like(batch.mask))
    assert not torch.cat(nothing).any()


def test_without_observations_the_field_alone_moves_the_state():
    network, batch = small(step=0.01, method="rk4"), random_batch()
    states = network(batch.times, batch.values, torch.zeros_like(batch.mask))
    assert torch.equal(states.before, states.after)
    assert not states.spread.any()
    exact = solve(network.dynamics, torch.zeros(3, 3), batch.times, rtol=1e-10, atol=1e-10).ys
    torch.testing.assert_close(states.after, exact, rtol=0, atol=1e-7)


@pytest.mark.parametrize("backward", [False, True])
def test_steps_go_along_the_times_and_are_never_longer_than_allowed(backward):
    network, batch = small(step=0.05, backward=backward), random_batch()
    turned = [part.flip(1) if backward else part for part in batch]
    schedule = network.schedule(turned[0], turned[2].any(-1))
    sizes = -schedule.sizes if backward else schedule.sizes
    assert (sizes >= 0).all()
    assert (sizes <= 0.05 * (1 + 1e-3)).all()
    total = torch.zeros(3).index_add(0, schedule.rows // batch.times.shape[1], sizes)
    span = batch.times[:, -1] - batch.times[:, 0] + (0.01 if backward else 0.0)
    torch.testing.assert_close(total, span)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_another_series_changes_nothing(dynamics, by_row):
    model, batch = classifier(dynamics, by_row=by_row, step=0.1), random_batch()
    before, after = model(*batch), model(*changed_series(batch, 1))
    for old, new in ((before.scores, after.scores), (before.prediction, after.prediction)):
        torch.testing.assert_close(old[:, [0, 2]], new[:, [0, 2]], **EXACT)
        assert not torch.allclose(old[:, 1], new[:, 1])


def test_a_series_alone_says_what_it_says_in_a_batch():
    model, batch = classifier(by_row=True, step=0.1), random_batch()
    together = model(*batch)
    for series, length in enumerate((5, 3, 7)):
        alone = model(*one_series(batch, series, length))
        expected = together.scores[:, series : series + 1, :length]
        torch.testing.assert_close(alone.scores, expected, **EXACT)


def test_series_in_another_order_give_the_same_in_that_order():
    model, batch = classifier(by_row=True, step=0.1), random_batch()
    order = torch.tensor([2, 0, 1])
    turned = model(*(part[order] for part in batch))
    torch.testing.assert_close(turned.scores, model(*batch).scores[:, order], **EXACT)


@pytest.mark.parametrize("gaps", ["own", "public_code"])
@pytest.mark.parametrize("change", [padded, with_rubbish_where_nothing_was_observed])
def test_padding_and_masked_values_change_nothing(change, gaps):
    model, batch = classifier(step=0.1, gaps=gaps), random_batch()
    plain, changed = model(*batch), model(*change(batch))
    torch.testing.assert_close(changed.scores, plain.scores, **EXACT)
    rows = batch.times.shape[1]
    torch.testing.assert_close(changed.prediction[:, :, :rows], plain.prediction, **EXACT)


@pytest.mark.parametrize("backward", [False, True])
def test_a_network_of_its_own_reads_no_masked_values_either(backward):
    network, batch = small(step=0.1, backward=backward), random_batch()
    times, values, mask = with_rubbish_where_nothing_was_observed(batch)
    for one, other in zip(network(times, values, mask.double()), network(*batch), strict=True):
        assert torch.equal(one, other)


def test_the_union_of_all_times_gives_the_same_up_to_the_error_of_the_steps():
    model, batch = classifier(by_row=True, step=0.02, method="rk4"), random_batch((6, 6, 6))
    union, place = on_union_of_times(batch)
    shared, own = model(*union), model(*batch)
    at = place[None, :, :, None]
    # Steps of 0.02 to the fourth power leave an error of 1e-7 times a derivative.
    for one, other in ((shared.scores, own.scores), (shared.prediction, own.prediction)):
        chosen = one.gather(2, at.expand_as(other))
        torch.testing.assert_close(chosen, other, rtol=0, atol=1e-5)


def test_a_prediction_uses_earlier_rows_only():
    model, batch = classifier(step=0.1), random_batch((6,))
    values = batch.values.clone().requires_grad_()
    prediction = model(batch.times, values, batch.mask).prediction
    for row in range(6):
        (gradient,) = torch.autograd.grad(prediction[0, 0, row].sum(), values, retain_graph=True)
        assert not gradient[0, row:].any()
        if batch.mask[0, :row].any():
            assert gradient[0, :row].any()


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_gradients_agree_with_differences(dynamics):
    model, batch = classifier(dynamics, step=0.2), random_batch((4, 2))

    def run(values, *_):
        output = model(batch.times, values, batch.mask)
        return output.scores, output.prediction

    wanted = (batch.values.requires_grad_(), *model.parameters())
    assert torch.autograd.gradcheck(run, wanted, fast_mode=True)


@pytest.mark.parametrize("backward", [False, True])
def test_gradients_reach_the_times(backward):
    # No two rows at one time: there the number of steps jumps from none to one.
    network, batch = small(step=0.2, backward=backward), random_batch((4, 4))
    run = lambda times: network(times, batch.values, batch.mask)  # noqa: E731
    assert torch.autograd.gradcheck(run, batch.times.requires_grad_())


def test_momentum_starts_with_the_scalars_of_the_public_scripts():
    def scalars(dynamics):
        network = make_ode_rnn(2, 3, dynamics=dynamics)
        return [one.item() for one in network.parameters() if not one.dim()]

    assert scalars("generalized_heavy_ball") == [-3, 1]
    assert scalars("generalized_nesterov") == [0]


def test_a_single_row_is_enough():
    for length in (1, 4):
        batch = random_batch((length,))
        batch = Batch(torch.zeros_like(batch.times), batch.values, batch.mask)
        output = classifier()(*batch)
        assert torch.isfinite(output.scores).all()
        assert output.prediction.shape == (1, 1, length, 2)


def test_nothing_observed_at_one_time_leaves_the_state_at_rest():
    states = small()(torch.zeros(2, 3), torch.zeros(2, 3, 2), torch.zeros(2, 3, 2).bool())
    assert not torch.cat(states).any()


def test_single_precision_stays_single():
    model = classifier().float()
    times, values, mask = random_batch()
    output = model(times, values.float(), mask)
    assert output.scores.dtype == output.prediction.dtype == torch.float32


def test_gated_units_of_two_classes_give_one_logit():
    model, batch = classifier(classes=2), random_batch()
    scores = model(*batch).scores
    assert scores.shape == (1, 3, 2)
    assert not scores[..., 0].any()


def test_the_published_sizes_have_the_published_parameters():
    """Three networks of `2 (2 dim + 2 D) + …` each, as the public code has them."""
    unit = GRUUnit(82, 20, 50)
    hidden = (2 * 20 + 82) * 50 + 50
    expected = 3 * hidden + 2 * (50 * 20 + 20) + (50 * 40 + 40)
    assert sum(parameter.numel() for parameter in unit.parameters()) == expected


@pytest.mark.parametrize(
    "options",
    [{"step": 0.0}, {"gaps": "next"}, {"gaps": "public_code", "backward": True}],
    ids=str,
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ValueError, match="must"):
        small(**options)


def test_times_that_are_not_scaled_are_refused_before_they_take_forever():
    batch = random_batch()
    with pytest.raises(ValueError, match="scale its times"):
        small()(batch.times * 1e5, batch.values, batch.mask)


def test_an_unknown_dynamics_is_refused():
    with pytest.raises(ValueError, match="generalized_heavy_ball"):
        make_ode_rnn(2, dynamics="adam")


@pytest.mark.parametrize("method", ["midpoint", "rk4", "bosh3", "dopri5"])
def test_evaluations_are_those_that_were_made(method):
    calls = []

    def field(t, y):
        calls.append(y)
        return -y

    network = ODERNN(FirstOrder(field), features=2, size=3, method=method, step=0.5)
    batch = random_batch()
    network(batch.times, batch.values, batch.mask)
    assert network.stats.forward_evaluations == len(calls) > 0


@pytest.mark.parametrize("method", ["bosh3", "dopri5"])
def test_methods_with_a_stage_at_the_end_of_a_step_are_trained_by_hand_too(method):
    network, batch, found = small(method=method), random_batch(), []
    for by_hand in (True, False):
        if not by_hand:
            network._plain_layers = lambda: None
        states = network(batch.times, batch.values, batch.mask)
        loss = states.after.square().sum()
        found.append([loss, *torch.autograd.grad(loss, list(network.parameters()))])
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


class Twice(Autonomous):
    def forward(self, t, y):
        return 2 * super().forward(t, y)


class Slow(FirstOrder):
    def forward(self, t, y):
        return 0.5 * super().forward(t, y)


class Bent(nn.Tanh):
    def forward(self, input):
        return super().forward(input).square()


class Chain(nn.Sequential):
    def forward(self, input):
        return input - super().forward(input)


def _with_forward(module):
    forward = module.forward
    module.forward = lambda *inputs: 2 * forward(*inputs)


def _normed(layer):
    """The way of old norms of weights: a hook computes the weight again before each call."""
    nn.utils.spectral_norm(layer)
    layer.eval()
    layer.weight_orig.data.mul_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))


def _doubled(module):
    module.register_forward_hook(lambda _, __, result: 2 * result)


CHANGES = {
    "subclass of the field": lambda n: setattr(n, "dynamics", FirstOrder(Twice(_net(n)))),
    "subclass of the dynamics": lambda n: setattr(n, "dynamics", Slow(n.dynamics.field)),
    "subclass of the activation": lambda n: setattr(n.dynamics.field.network, "1", Bent()),
    "subclass of the network": lambda n: setattr(n.dynamics.field, "network", Chain(*_net(n))),
    "hook on the field": lambda n: _doubled(n.dynamics.field),
    "hook on the dynamics": lambda n: _doubled(n.dynamics),
    "hook on the network": lambda n: _doubled(_net(n)),
    "hook on a layer": lambda n: _doubled(_net(n)[0]),
    "norm of weights": lambda n: _normed(_net(n)[0]),
    "pass of a layer": lambda n: _with_forward(_net(n)[0]),
    "pass of the field": lambda n: _with_forward(n.dynamics.field),
    "pass of the dynamics": lambda n: _with_forward(n.dynamics),
}


def _net(network):
    return network.dynamics.field.network


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_field_that_is_more_than_a_tanh_network_is_called(change):
    network, batch = small(step=0.1), random_batch()
    usual = network(*batch)
    change(network)
    states = network(*batch)
    assert not torch.allclose(states.before, usual.before)
    before, after = plain_network(network, batch, *own_ways(batch.times, 0.1))
    torch.testing.assert_close(states.before, before, **EXACT)
    torch.testing.assert_close(torch.cat((states.after, states.spread), -1), after, **EXACT)


class Lazy(GRUUnit):
    """Goes half of the way only."""

    def forward(self, state, row, weights=None):
        return state.lerp(super().forward(state, row, weights), 0.5)


def _lazily(module, inputs, result):
    return inputs[0].lerp(result, 0.5)


def test_a_unit_of_ones_own_is_called(monkeypatch):
    network, batch, found = small(step=0.1), random_batch(), []
    lazy = Lazy(4, 3, 5)
    lazy.load_state_dict(network.unit.state_dict())
    usual, network.unit = network.unit, lazy
    found.append(network(*batch))
    network.unit = usual
    handle = usual.register_forward_hook(_lazily)
    found.append(network(*batch))
    handle.remove()
    forward = usual.forward
    usual.forward = lambda state, row, weights=None: state.lerp(forward(state, row, weights), 0.5)
    found.append(network(*batch))
    monkeypatch.setattr(ODERNN, "_plain_layers", lambda self: None)
    expected = network(*batch)
    del usual.forward
    assert not torch.allclose(network(*batch).after, expected.after)
    for states in found:
        torch.testing.assert_close(states, expected, **EXACT)


def test_dynamics_need_not_be_a_module():
    class Decay:
        components, interval = 1, (0.0, 1.0)

        def __call__(self, t, y):
            return -y

    batch, found = random_batch(), []
    choices: Any = (Decay(), FirstOrder(lambda t, y: -y))
    for dynamics in choices:
        torch.manual_seed(0)
        found.append(ODERNN(dynamics, 2, 3, 5, step=0.1)(*batch))
    torch.testing.assert_close(*found, rtol=0, atol=0)
