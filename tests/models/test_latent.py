"""Latent equations of irregular series."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torchdiffeq import odeint

from bfno.fields import LatentOperatorField
from bfno.models.encoders import ODERNNEncoder, Posterior, RNNEncoder
from bfno.models.generators import CoupledGenerator, LatentGenerator
from bfno.models.latent import LatentODE
from bfno.models.ode_rnn import make_ode_rnn
from tests.models.latent_models import (
    COUPLED,
    EVERY,
    INDEPENDENT,
    LATENTS,
    make_encoder,
    make_generator,
    make_latent,
)
from tests.models.series_batches import (
    Batch,
    changed_series,
    on_union_of_times,
    one_series,
    padded,
    random_batch,
    with_rubbish_where_nothing_was_observed,
)

EXACT: dict[str, Any] = {"rtol": 0, "atol": 1e-12}
TIGHT: dict[str, Any] = {"method": "dopri5", "rtol": 1e-7, "atol": 1e-7}
# Errors of a solve at the tolerance above, which networks around it make a little larger.
SOLVED: dict[str, Any] = {"rtol": 0, "atol": 1e-5}


def outputs(output):
    return output.scores, output.prediction, output.kl[None]


@pytest.mark.parametrize("generator", INDEPENDENT)
def test_trajectories_solve_their_equation(generator):
    made = make_generator(generator, **TIGHT)
    z0, times = torch.randn(2, 3, LATENTS), random_batch().times
    path = made(z0, times)
    start = nn.functional.pad(z0, (0, made.augment))
    for series, row in enumerate(times):
        distinct, place = row.unique(return_inverse=True)
        exact = odeint(made.field, start[:, series], distinct, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(path[:, series], exact[place].transpose(0, 1), **SOLVED)


def test_every_trajectory_sees_the_time_of_its_own_series():
    made = LatentGenerator(lambda t, y: t[:, None] * y, **TIGHT)
    times = random_batch((4, 4, 4)).times + torch.tensor([[0.0], [1.0], [2.0]])
    z0 = torch.randn(2, 3, 1)
    growth = ((times.square() - times[:, :1].square()) / 2).exp()
    torch.testing.assert_close(made(z0, times)[..., 0], z0 * growth, **SOLVED)


@pytest.mark.parametrize("settings", [TIGHT, {"method": "rk4", "step": 0.01}], ids=["own", "fixed"])
def test_coupled_trajectories_solve_their_equation_together(settings):
    made = make_generator("batch", **settings)
    z0, times = (
        torch.randn(2, 3, LATENTS),
        random_batch().times + torch.tensor([[0.0], [0.2], [0.1]]),
    )
    path = made(z0, times)
    union, place = times.unique(return_inverse=True)
    exact = torch.as_tensor(odeint(made.field, z0, union, rtol=1e-8, atol=1e-8))
    for series in range(3):
        expected = exact[place[series], :, series].transpose(0, 1)
        torch.testing.assert_close(path[:, series], expected, **SOLVED)


@pytest.mark.parametrize("encoder", ["rnn", "ode"])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("generator", INDEPENDENT)
def test_another_series_changes_nothing(generator, by_row, encoder):
    model, batch = make_latent(generator, encoder, by_row=by_row), random_batch()
    assert not model.couples_series
    for old, new in zip(
        outputs(model(*batch)), outputs(model(*changed_series(batch, 1))), strict=True
    ):
        torch.testing.assert_close(old[:, [0, 2]], new[:, [0, 2]], **EXACT)
        assert not torch.allclose(old[:, 1], new[:, 1])


@pytest.mark.parametrize("generator", COUPLED)
def test_models_that_couple_series_say_so(generator):
    model, batch = make_latent(generator), random_batch()
    assert model.couples_series
    old, new = model(*batch), model(*changed_series(batch, 1))
    assert not torch.allclose(old.prediction[:, 0], new.prediction[:, 0], rtol=0, atol=1e-6)
    torch.testing.assert_close(old.kl[[0, 2]], new.kl[[0, 2]], **EXACT)


@pytest.mark.parametrize("generator", INDEPENDENT)
def test_a_series_alone_says_what_it_says_in_a_batch(generator):
    model, batch = make_latent(generator), random_batch()
    together = model(*batch)
    for series, length in enumerate((5, 3, 7)):
        alone = model(*one_series(batch, series, length))
        expected = together.prediction[:, series : series + 1, :length]
        torch.testing.assert_close(alone.prediction, expected, **EXACT)


@pytest.mark.parametrize("generator", [kind for kind in EVERY if kind != "batch"])
def test_series_in_another_order_give_the_same_in_that_order(generator):
    model, batch = make_latent(generator), random_batch()
    order = torch.tensor([2, 0, 1])
    turned = model(*(part[order] for part in batch))
    for one, other in zip(outputs(turned), outputs(model(*batch)), strict=True):
        torch.testing.assert_close(one, other[:, order], **EXACT)


def test_the_batch_grid_depends_even_on_the_order_of_the_series():
    model, batch = make_latent("batch"), random_batch()
    order = torch.tensor([1, 0, 2])
    turned, plain = model(*(part[order] for part in batch)), model(*batch)
    assert not torch.allclose(turned.prediction, plain.prediction[:, order], rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", [padded, with_rubbish_where_nothing_was_observed])
@pytest.mark.parametrize("encoder", ["rnn", "ode"])
@pytest.mark.parametrize("generator", EVERY)
def test_padding_and_masked_values_change_nothing(generator, encoder, change):
    model, batch = make_latent(generator, encoder), random_batch()
    rows = batch.times.shape[1]
    plain, changed = model(*batch), model(*change(batch))
    torch.testing.assert_close(changed.scores[:, :, :rows], plain.scores, **EXACT)
    torch.testing.assert_close(changed.prediction[:, :, :rows], plain.prediction, **EXACT)
    torch.testing.assert_close(changed.kl, plain.kl, **EXACT)


@pytest.mark.parametrize("generator", ["plain", "batch", "ace"])
def test_the_union_of_all_times_gives_the_same_up_to_the_error_of_the_steps(generator):
    model, batch = make_latent(generator, **TIGHT), random_batch((6, 6, 6))
    model.encoder.recurrent.step = 4e-3
    # The encoder starts behind the last time and ends at the first, which all have to share.
    batch = Batch(batch.times / batch.times[:, -1:], batch.values, batch.mask)
    union, place = on_union_of_times(batch)
    shared, own = model(*union), model(*batch)
    at = place[None, :, :, None].expand_as(own.prediction)
    # The encoder's Euler steps of 4e-3 are what differs.
    torch.testing.assert_close(shared.prediction.gather(2, at), own.prediction, rtol=0, atol=5e-3)
    torch.testing.assert_close(shared.kl, own.kl, rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("generator", EVERY)
def test_reconstruction_at_the_observed_times_is_the_prediction(generator):
    model, batch = make_latent(generator, **TIGHT), random_batch()
    prediction = model(*batch).prediction
    again = model.reconstruct(*batch, batch.times)
    torch.testing.assert_close(again, prediction, **SOLVED)
    turned = model.reconstruct(*batch, batch.times.flip(1))
    torch.testing.assert_close(turned.flip(2), prediction, **SOLVED)


def test_reconstruction_goes_between_the_rows_and_beyond_them():
    model, batch = make_latent(**TIGHT), random_batch()
    wanted = torch.tensor([[1.5, 0.05], [0.3, 0.3], [2.0, 0.0]])
    found = model.reconstruct(*batch, wanted)
    z0 = model._start(model.encoder(*batch))
    for series in range(3):
        for number in range(2):
            ts = torch.stack((torch.zeros(()), wanted[series, number]))
            end = z0[:, series]
            if ts[1] > 0:
                end = odeint(model.generator.field, end, ts, rtol=1e-8, atol=1e-8)[-1]
            torch.testing.assert_close(found[:, series, number], model.decoder(end), **SOLVED)
    assert model.reconstruct(*batch, wanted[:, :0]).shape == (2, 3, 0, 2)


def test_reconstruction_before_the_first_row_is_refused():
    model, batch = make_latent(), random_batch()
    with pytest.raises(ValueError, match="first time"):
        model.reconstruct(*batch, batch.times - 0.1)
    with pytest.raises(ValueError, match="one row of times per series"):
        model.reconstruct(*batch, torch.ones(2, 3))


@pytest.mark.parametrize(
    ("generator", "encoder"), [*((kind, "rnn") for kind in EVERY), ("plain", "ode")]
)
def test_gradients_agree_with_differences(generator, encoder):
    model, batch = make_latent(generator, encoder), random_batch((3, 2))

    def run(values, *_):
        output = model(batch.times, values, batch.mask)
        beyond = model.reconstruct(batch.times, values, batch.mask, batch.times + 0.5)
        return (*outputs(output), beyond)

    wanted = (batch.values.requires_grad_(), *model.parameters())
    assert torch.autograd.gradcheck(run, wanted, fast_mode=True)


def test_a_label_of_the_series_is_read_from_the_initial_state_alone():
    model, batch = make_latent(by_row=False), random_batch()
    scores = model(*batch).scores
    with torch.no_grad():
        for parameter in model.generator.parameters():
            parameter.mul_(2)
    assert torch.equal(model(*batch).scores, scores)
    z0 = model._start(model.encoder(*batch))
    torch.testing.assert_close(scores, model.head(z0), **EXACT)


def test_labels_of_rows_are_read_from_the_states_at_their_times():
    model, batch = make_latent("augmented"), random_batch()
    path = model.generator(model._start(model.encoder(*batch)), batch.times)
    assert path.shape[-1] == LATENTS + 2
    output = model(*batch)
    torch.testing.assert_close(output.scores, model.head(path), **EXACT)
    torch.testing.assert_close(output.prediction, model.decoder(path), **EXACT)


def test_the_divergence_is_that_of_normal_distributions():
    raw = torch.randn(3, 8)
    posterior = Posterior(raw)
    mean, spread = raw.chunk(2, dim=-1)
    expected = kl_divergence(Normal(mean, spread.abs()), Normal(0.0, 1.0)).mean(-1)
    # A deviation is larger by 1e-6 than the network says, so that none is zero.
    torch.testing.assert_close(posterior.divergence(), expected, rtol=0, atol=1e-4)
    assert torch.isfinite(Posterior(torch.zeros(1, 4)).divergence()).all()


def test_samples_are_random_in_training_and_fixed_in_evaluation():
    model, batch = make_latent(), random_batch()
    assert torch.equal(model(*batch).prediction, model(*batch).prediction)
    model.train()
    first, second = model(*batch), model(*batch)
    assert not torch.equal(first.prediction, second.prediction)
    assert torch.equal(first.kl, second.kl)
    assert "noise" not in model.state_dict()


def test_samples_have_the_mean_and_the_deviation_of_the_posterior():
    count = 20_000
    posterior = Posterior(torch.tensor([[1.0, -2.0, 0.5, -3.0]]))
    draws = posterior.sample(torch.randn(count, 1, 2))
    # Means and deviations of this number of draws are off by 1 / √20000 = 0.7 % of a deviation.
    deviation = torch.tensor([[0.5, 3.0]])
    assert ((draws.mean(0) - posterior.mean).abs() < 4 * deviation / math.sqrt(count)).all()
    torch.testing.assert_close(draws.std(0), deviation, rtol=0.02, atol=0)


@pytest.mark.parametrize("kind", ["rnn", "ode"])
def test_an_encoder_of_its_own_reads_no_masked_values(kind):
    encoder, batch = make_encoder(kind), random_batch()
    rubbish = encoder(*with_rubbish_where_nothing_was_observed(batch))
    assert torch.equal(rubbish.mean, encoder(*batch).mean)


def test_the_recurrent_encoder_reads_observed_rows_backwards():
    encoder, batch = make_encoder("rnn"), random_batch()
    posterior = encoder(*batch)
    for series in range(3):
        state, later = torch.zeros(1, 1, 3), None
        for row in reversed(range(7)):
            if not batch.mask[series, row].any():
                continue
            time = batch.times[series, row]
            gap = torch.zeros(()) if later is None else later - time
            assert gap >= 0
            x = torch.cat((gap[None], batch.values[series, row], batch.mask[series, row].double()))
            _, state = encoder.recurrent(x[None, None], state)
            later = time
        expected = encoder.posterior(state[0, 0])
        torch.testing.assert_close(posterior.mean[series], expected[:LATENTS], **EXACT)


def test_the_ode_encoder_reads_both_parts_of_the_state_at_the_first_time():
    encoder, batch = make_encoder("ode"), random_batch()
    states = encoder.recurrent(*batch)
    expected = encoder.posterior(torch.cat((states.after[:, 0], states.spread[:, 0]), -1))
    torch.testing.assert_close(encoder(*batch).mean, expected[:, :LATENTS], **EXACT)


@pytest.mark.parametrize("encoder", ["rnn", "ode"])
@pytest.mark.parametrize("settings", [TIGHT, {"method": "rk4"}], ids=["adaptive", "fixed"])
@pytest.mark.parametrize("generator", EVERY)
def test_series_without_length_or_observations_are_nothing_special(generator, settings, encoder):
    model = make_latent(generator, encoder, **settings)
    times, values, mask = random_batch((4, 4, 4))
    times[0], mask[1] = 0.3, False
    for batch in (Batch(times, values, mask), one_series(Batch(times, values, mask), 0, 1)):
        output = model(*batch)
        output.prediction.sum().backward()
        assert all(torch.isfinite(part).all() for part in outputs(output))
        alone = output.prediction[:, 0]
        torch.testing.assert_close(alone, alone[:, :1].expand_as(alone), **EXACT)
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)


@pytest.mark.parametrize("generator", EVERY)
def test_single_precision_stays_single(generator):
    model = make_latent(generator, method="dopri5").float()
    times, values, mask = random_batch()
    output = model(times, values.float(), mask)
    assert all(part.dtype == torch.float32 for part in outputs(output))
    double = model.double()(times, values, mask)
    torch.testing.assert_close(output.prediction.double(), double.prediction, rtol=0, atol=1e-4)


def test_the_solver_reports_what_it_did():
    model = make_latent(method="dopri5", memory=0)
    model(*random_batch()).prediction.sum().backward()
    assert model.stats.forward_evaluations > 0
    assert model.stats.backward_evaluations > 0


def test_outputs_in_training_have_kinetic_if_asked():
    encoder, generator = RNNEncoder(2, LATENTS), make_generator("plain")
    for asked in (False, True):
        model = LatentODE(2, 2, encoder, generator, by_row=True, measures_kinetic=asked)
        assert (model(*random_batch()).kinetic is not None) == asked
        assert model.eval()(*random_batch()).kinetic is None


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="CoupledGenerator"):
        LatentGenerator(LatentOperatorField(4, 6, grid="batch"))
    with pytest.raises(ValueError, match="backward=True"):
        ODERNNEncoder(make_ode_rnn(2, 3), 4)
    with pytest.raises(ValueError, match="samples"):
        LatentODE(2, 2, RNNEncoder(2, 4), make_generator("plain"), by_row=True, samples=0)
    with pytest.raises(ValueError, match=r"measures_kinetic needs .* got CoupledGenerator"):
        LatentODE(
            2, 2, RNNEncoder(2, 4), make_generator("batch"), by_row=True, measures_kinetic=True
        )
    assert isinstance(make_generator("batch"), CoupledGenerator)
