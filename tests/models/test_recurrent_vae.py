"""The recurrent variational autoencoder against loops over one series after the other."""

import pickle

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from bfno.models.recurrent_vae import RecurrentVAE
from bfno.models.series import latent_noise
from tests.models.irregular import (
    PROPERTIES,
    TOLERANCE,
    assert_same,
    gaps_of,
    irregular_batch,
    observed_rows,
    series_do_not_meet,
    tensors,
)


def small_model(by_row=True, **options):
    model = RecurrentVAE(
        3, 4, by_row=by_row, latents=3, encoder=4, units=5, head=(6,), **options
    ).eval()
    for one in model.parameters():
        one.data.normal_(std=0.5)
    return model


def posterior(model, times, values, mask):
    """Mean and deviation that one series gives if read in this order."""
    state = torch.zeros(4)
    for time, value, seen in zip(gaps_of(times), values, mask, strict=True):
        row = torch.cat((value, seen.double(), time.abs()[None]))
        state = model.encoder(row[None], state[None])[0]
    mean, deviation = model.posterior(state).chunk(2)
    return mean, deviation.abs()


def decode(model, state):
    return model.show(torch.tanh(model.hide(state)))


def unfolded(model, initial, times, mask):
    """State of one series at each row."""
    rows = observed_rows(mask)
    gaps = gaps_of(times[rows])
    state, states = initial, []
    for row in range(len(times)):
        if row in rows[1:]:
            gap = gaps[rows.index(row)]
            fed = torch.cat((decode(model, state), torch.ones(3), gap[None]))
            state = model.unfold(fed[None], state[None])[0]
        states.append(state)
    return torch.stack(states)


def reference(model, noise, times, values, mask):
    scores, predictions, divergences = [], [], []
    for series in range(len(times)):
        read = len(times) - 1 - series if model.couples_series else series
        rows = observed_rows(mask[read])
        order = rows if model.couples_series else rows[::-1]
        mean, deviation = posterior(model, *[part[read][order] for part in (times, values, mask)])
        states = torch.stack(
            [unfolded(model, mean + deviation * one, times[series], mask[series]) for one in noise]
        )
        predictions.append(decode(model, states))
        scores.append(model.classifier(states if model.by_row else mean.expand(len(noise), -1)))
        prior = Normal(torch.zeros(3), torch.ones(3))
        divergences.append(kl_divergence(Normal(mean, deviation), prior).mean())
    return [torch.stack(part) for part in (scores, predictions, divergences)]


def noise_of(model):
    """The noise of evaluation, as anybody can draw it."""
    generator = torch.Generator().manual_seed(1991)
    return torch.randn(model.samples, 1, 3, generator=generator, dtype=torch.float64)[:, 0]


@pytest.mark.parametrize("reverse_axis", ["time", "public_code"])
@pytest.mark.parametrize("by_row", [True, False], ids=["by row", "by series"])
def test_outputs_equal_those_of_a_loop_over_rows(by_row, reverse_axis):
    model = small_model(by_row, reverse_axis=reverse_axis)
    batch = irregular_batch()
    assert_same(tensors(model(*batch)), reference(model, noise_of(model), *batch))


@pytest.mark.parametrize("property_", PROPERTIES)
@pytest.mark.parametrize("by_row", [True, False], ids=["by row", "by series"])
def test_a_property_of_models_of_series_holds(by_row, property_):
    property_(small_model(by_row))


def test_only_the_published_mistake_couples_series_and_says_so():
    assert not small_model().couples_series
    model = small_model(reverse_axis="public_code")
    assert model.couples_series and not RecurrentVAE.couples_series
    with pytest.raises(AssertionError):
        series_do_not_meet(model)


def test_an_unknown_axis_is_refused():
    with pytest.raises(ValueError, match="time or public_code"):
        small_model(reverse_axis="batch")


def test_less_than_one_sample_is_refused():
    with pytest.raises(ValueError, match="samples must be at least 1, got 0"):
        small_model(samples=0)


def test_evaluation_repeats_itself_and_training_does_not():
    model = small_model()
    batch = irregular_batch()
    assert torch.equal(model(*batch).prediction, model(*batch).prediction)
    model.train()
    assert not torch.equal(model(*batch).prediction, model(*batch).prediction)


def test_training_draws_from_the_posterior():
    model = small_model().train()
    model.samples = 20_000
    times, values, mask = (part[:1, :1] for part in irregular_batch())
    mean, deviation = posterior(model, times[0], values[0], mask[0])
    noise = latent_noise(model.samples, torch.zeros(1, 3), training=True)
    assert noise.shape == (20_000, 1, 3)
    # Ten standard errors.
    assert noise.mean().abs() < 10 / 60_000**0.5 and (noise.var() - 1).abs() < 10 / 30_000**0.5
    expected = decode(model, mean + deviation * noise[:, 0]).mean(0)
    found = model(times, values, mask).prediction[:, 0, 0].mean(0)
    torch.testing.assert_close(found, expected, rtol=0, atol=0.05)


def test_the_number_of_samples_can_change():
    model = small_model(by_row=False, samples=4)
    for samples in (4, 5):
        model.samples = samples
        output = model(*irregular_batch())
        assert output.scores.shape == (samples, 6, 4)
        assert output.prediction.shape == (samples, 6, 7, 3)
        assert output.scores.eq(output.scores[:1]).all()


def test_a_new_model_is_finite_with_all_its_gradients():
    """Also where nothing is observed and a new network gives the deviation zero."""
    model = RecurrentVAE(3, 2, by_row=False)
    output = model(*irregular_batch())
    assert output.kl is not None and output.kl.isfinite().all()
    (output.scores.sum() + output.prediction.square().sum() + output.kl.sum()).backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


def test_the_first_row_is_predicted_from_the_initial_state():
    model = small_model()
    times, values, mask = irregular_batch()
    mean, deviation = posterior(model, times[2, :1], values[2, :1], mask[2, :1])
    expected = decode(model, mean + deviation * noise_of(model))
    found = model(times, values, mask).prediction[:, 2, 0]
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_a_model_that_was_pickled_when_it_had_no_choice_of_samples_says_what_it_said():
    model, batch = small_model(), irregular_batch()
    expected = tensors(model(*batch))
    delattr(model, "samples")
    loaded = pickle.loads(pickle.dumps(model))
    assert_same(tensors(loaded(*batch)), expected)
