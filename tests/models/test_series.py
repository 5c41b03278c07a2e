"""What every model of series is built from."""

import pytest
import torch
from torch import nn

from bfno.models.ode_rnn import ODERNNClassifier, make_ode_rnn
from bfno.models.recurrent import RecurrentClassifier
from bfno.models.recurrent_vae import RecurrentVAE
from bfno.models.series import (
    ObservedRows,
    SeriesModel,
    SeriesOutput,
    as_clock,
    dense,
    network,
    tanh_network,
)
from tests.models.irregular import irregular_batch, observed_rows
from tests.models.latent_models import make_latent


class Echo(SeriesModel):
    """Gives back what it was given."""

    def _run(self, times, values, mask):
        return SeriesOutput(self._scores(values.sum(1)[None, :, : self.outputs]), values[None])


@pytest.mark.parametrize("backward", [False, True])
def test_observed_rows_are_moved_together_in_order(backward):
    times, values, mask = irregular_batch()
    rows = ObservedRows(times, values, mask, backward=backward)
    assert rows.times.shape == rows.present.shape == (6, 7)
    for series in range(6):
        kept = observed_rows(mask[series])[:: -1 if backward else 1]
        assert rows.present[series].tolist() == [True] * len(kept) + [False] * (7 - len(kept))
        assert torch.equal(rows.times[series, : len(kept)], times[series, kept])
        assert torch.equal(rows.values[series, : len(kept)], values[series, kept])
        assert torch.equal(rows.mask[series, : len(kept)], mask[series, kept])
        assert rows.values[series, len(kept) :].eq(0).all()
        assert not rows.mask[series, len(kept) :].any()
        last = times[series, kept[-1]] if kept else times[series, 0]
        assert rows.times[series, len(kept) :].eq(last).all()


def test_there_are_as_many_rows_as_the_fullest_series_observes():
    times, values, mask = (part[[2, 3, 5]] for part in irregular_batch())
    rows = ObservedRows(times, values, mask)
    assert rows.times.shape[1] == max(len(observed_rows(one)) for one in mask)
    nothing = ObservedRows(times[1:2], values[1:2], mask[1:2])
    assert nothing.times.shape == (1, 1) and not nothing.present.any()


def test_states_hold_from_one_observation_to_the_next():
    times, values, mask = irregular_batch()
    rows = ObservedRows(times, values, mask)
    states = torch.randn(6, 8, 2)
    after, before = rows.after_each(states), rows.before_each(states)
    assert after.shape == before.shape == (6, 7, 2)
    for series in range(6):
        kept = observed_rows(mask[series])
        for row in range(7):
            seen = sum(other <= row for other in kept)
            assert torch.equal(after[series, row], states[series, seen])
            assert torch.equal(before[series, row], states[series, seen - (row in kept)])


def test_gradients_reach_the_values_that_were_observed():
    times, values, mask = irregular_batch()
    values.requires_grad_()
    ObservedRows(times, values, mask, backward=True).values.sum().backward()
    assert values.grad is not None
    assert torch.equal(values.grad, mask.any(-1, keepdim=True).expand(mask.shape).double())


def test_a_model_never_sees_what_was_not_observed():
    times, values, mask = irregular_batch()
    output = Echo(3, 3, by_row=False)(times, values.where(mask, torch.nan), mask.double())
    assert torch.equal(output.prediction[0], values)


def test_a_single_logit_is_that_of_the_second_class():
    times, values, mask = irregular_batch()
    model = Echo(3, 2, by_row=False)
    assert model.outputs == 1
    scores = model(times, values, mask).scores
    assert torch.equal(scores[0, :, 1], values.sum(1)[:, 0]) and scores[..., 0].eq(0).all()
    assert Echo(3, 2, by_row=True).outputs == 2 and Echo(3, 5, by_row=False).outputs == 5


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_shapes_that_do_not_fit_are_refused(wrong):
    batch = list(irregular_batch())
    batch[wrong] = batch[wrong][:, :-1]
    with pytest.raises(ValueError, match=r"\(batch, time\)"):
        Echo(3, 2, by_row=False)(*batch)


def test_dense_layers_start_small():
    layer = dense(200, 300)
    assert layer.bias.eq(0).all()
    # Ten standard errors of the deviation of 60000 weights.
    assert abs(layer.weight.std().item() - 0.1) < 10 * 0.1 / 120_000**0.5


def test_networks_have_an_activation_between_two_maps_and_none_at_the_end():
    kinds = [type(layer) for layer in network(3, 5, 4, 2, activation=nn.ReLU)]
    assert kinds == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in network(3, 2)] == [nn.Linear]


def test_a_tanh_network_has_its_hidden_maps_between_two_outer_ones():
    layers = [layer for layer in tanh_network(3, 2, 4, 7) if isinstance(layer, nn.Linear)]
    sizes = [(layer.in_features, layer.out_features) for layer in layers]
    assert sizes == [(3, 7), *[(7, 7)] * 4, (7, 2)]


FORECASTERS = {
    "recurrent": lambda: RecurrentClassifier(3, 2, by_row=True, hidden=4, units=5, head=()),
    "ode_rnn": lambda: ODERNNClassifier(3, 2, make_ode_rnn(3, 4, step=0.5), by_row=True, head=()),
}


@pytest.mark.parametrize("kind", FORECASTERS)
def test_values_at_rows_are_expected_from_the_rows_before(kind):
    torch.manual_seed(0)
    times, values, mask = irregular_batch()
    model = FORECASTERS[kind]().to(values.dtype)
    found = model.reconstruct(times, values, mask, times)
    expected = model(times, values, mask).prediction
    assert torch.allclose(found[..., mask.any(-1), :], expected[..., mask.any(-1), :], atol=1e-6)
    later = values.clone()
    later[:, 4:] += 1
    changed = model.reconstruct(times, later, mask, times)
    assert torch.allclose(changed[:, :, :5], found[:, :, :5])  # row 4 says nothing of itself


@pytest.mark.parametrize("kind", FORECASTERS)
def test_wanted_times_may_come_in_any_order(kind):
    torch.manual_seed(0)
    times, values, mask = irregular_batch()
    model = FORECASTERS[kind]().to(values.dtype)
    at = times[:, :1] + torch.tensor([2.0, 0.3, 1.1], dtype=times.dtype)
    found = model.reconstruct(times, values, mask, at)
    assert found.shape == (1, 6, 3, 3)
    turned = model.reconstruct(times, values, mask, at.flip(1)).flip(2)
    assert torch.allclose(found, turned)
    with pytest.raises(ValueError, match="before the series' first time"):
        model.reconstruct(times, values, mask, times[:, :1] - 1)


def test_a_model_that_looks_ahead_expects_values_with_the_row_at_that_time():
    torch.manual_seed(0)
    times, values, mask = irregular_batch()
    model = RecurrentVAE(3, 2, by_row=False, latents=4, encoder=5, units=6, head=())
    model = model.to(values.dtype).eval()
    found = model.reconstruct(times, values, mask, times)
    assert torch.allclose(found, model(times, values, mask).prediction, atol=1e-6)


EVERY = FORECASTERS | {
    "vae": lambda: RecurrentVAE(3, 2, by_row=False, latents=4, encoder=5, units=6, head=()),
    "latent": lambda: make_latent(features=3),
    "ace": lambda: make_latent("ace", features=3),
}


@pytest.mark.parametrize("kind", EVERY)
def test_seconds_since_1970_are_as_good_as_those_since_the_first_row(kind):
    """Single precision cannot tell 1.7e9 from 1.7e9 + 60."""
    times, values, mask = irregular_batch()
    times = (64 * (times - times.min())).round() / 64  # which double precision has beside 1.7e9 too
    at = times[:, -1:] + torch.tensor([0.25, 0.5])
    model = EVERY[kind]().float().eval()
    rows = values.float(), mask
    for found, late in (
        (model(times, *rows).scores, model(times + 1.7e9, *rows).scores),
        (model(times, *rows).prediction, model(times + 1.7e9, *rows).prediction),
        (model.reconstruct(times, *rows, at), model.reconstruct(times + 1.7e9, *rows, at + 1.7e9)),
    ):
        assert torch.equal(found, late)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ordinary_times_mean_the_same_beside_any_other_series(dtype):
    """A field may depend on time, so that of a series must not depend on its batch."""
    times, values = torch.tensor([[20.0, 21.5], [8.0, 9.0]], dtype=dtype), torch.zeros(2, 2, 3)
    assert as_clock(times[:1], values).tolist() == as_clock(times, values)[:1].tolist()
    assert as_clock(times, values).tolist() == times.tolist()


def test_whole_seconds_since_1970_lose_no_gap():
    times, values, mask = irregular_batch()
    whole = (64 * (times - times.min())).long()
    model = FORECASTERS["ode_rnn"]().float()
    model.recurrent.step = 64.0
    rows, since = (values.float(), mask), 1_700_000_000
    assert torch.equal(model(whole, *rows).scores, model(whole + since, *rows).scores)
    at = whole[:, -1:] + 0.5
    found = model.reconstruct(whole, *rows, at)
    assert torch.equal(found, model.reconstruct(whole + since, *rows, at + since))
    assert torch.equal(found, model.reconstruct(whole.double(), *rows, at))


@pytest.mark.parametrize("kind", EVERY)
def test_counts_are_as_good_as_the_same_numbers_with_a_point(kind):
    """Whole numbers have no room for times between them."""
    times, values, mask = irregular_batch()
    times, counts, at = times.float(), (10 * values).long(), times[:, -1:].float() + 0.5
    model = EVERY[kind]().float().eval()
    for found, expected in (
        (model(times, counts, mask).scores, model(times, counts.float(), mask).scores),
        (
            model.reconstruct(times, counts, mask, at),
            model.reconstruct(times, counts.float(), mask, at),
        ),
    ):
        assert torch.equal(found, expected)


def test_times_of_the_precision_of_the_values_stay_as_they_are():
    """A field may depend on them."""
    seen = []

    class Watch(Echo):
        def _run(self, times, values, mask):
            seen.append(times)
            return super()._run(times, values, mask)

    times, values, mask = irregular_batch()
    Watch(3, 2, by_row=False)(times + 5, values, mask)
    assert torch.equal(seen[0], times + 5)


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), -1.0])
def test_no_series_is_followed_through_times_that_are_no_clock(kind, spoil):
    times, values, mask = irregular_batch()
    model, at = EVERY[kind](), times[:, -1:]
    with pytest.raises(ValueError, match="none before the series' first time"):
        model.reconstruct(times, values, mask, at * float("nan"))
    times[4, 2] = spoil
    with pytest.raises(ValueError, match="times must be finite and ascend within each series"):
        model(times, values, mask)
    if kind in ("latent", "ace"):  # the others sort rows among the wanted times
        with pytest.raises(ValueError, match="times must be finite"):
            model.reconstruct(times, values, mask, at)


@pytest.mark.parametrize("kind", EVERY)
def test_no_series_give_no_scores(kind):
    times, values, mask = (part[:0] for part in irregular_batch())
    model = EVERY[kind]().eval()
    found = model(times, values, mask)
    rows = (7,) if model.by_row else ()
    assert found.scores.shape == (model.samples, 0, *rows, model.classes)
    assert found.prediction.shape == (model.samples, 0, 7, 3)
    assert model.reconstruct(times, values, mask, times).shape == (model.samples, 0, 7, 3)


def test_series_without_a_row_are_refused_in_one_line():
    times, values = torch.zeros(2, 0), torch.zeros(2, 0, 2)
    for model in (Echo(2, 2, by_row=True), make_latent()):
        with pytest.raises(ValueError, match="at least one row"):
            model(times, values, values > 0)
    for shape in ((2, 0), (0, 3)):
        with pytest.raises(ValueError, match=r"needs a series and a row, got times of shape \("):
            make_ode_rnn(2)(torch.zeros(shape), torch.zeros(*shape, 2), torch.ones(*shape, 2) > 0)
