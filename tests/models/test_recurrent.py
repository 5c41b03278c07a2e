"""Recurrent classifiers, and values for what was not observed."""

import pickle

import pytest
import torch
from torch.nn import functional as F

from bfno.models.recurrent import (
    DecayImputation,
    RecurrentClassifier,
    decay_factor,
    row_gaps,
    time_since_observed,
)
from tests.models.irregular import (
    PROPERTIES,
    TOLERANCE,
    assert_same,
    gaps_of,
    irregular_batch,
    observed_rows,
    tensors,
)

SETTINGS = {
    "RNN-Δt": {},
    "RNN-Impute": {"impute": True},
    "RNN-D": {"decay": True},
    "GRU-D": {"impute": True, "decay": True},
}


def small_model(settings, by_row=True, classes=4, **options):
    """A model none of whose parameters is zero: some decays are at work, some cut off."""
    model = RecurrentClassifier(
        3, classes, by_row=by_row, hidden=4, units=5, head=(6,), **SETTINGS[settings], **options
    )
    for one in model.parameters():
        one.data.normal_(std=0.5)
    if model.imputation is not None:
        model.imputation.weight.data = torch.tensor([1.5, -2.0, 0.7])
        model.imputation.bias.data = torch.tensor([0.1, 0.3, -0.05])
    if model.decay is not None:
        model.decay.weight.data = torch.tensor([[0.9, -0.6, 0.8]])
        model.decay.bias.data = torch.tensor([0.02])
    return model


def decayed(exponent):
    return torch.exp(-exponent.clamp(0, 1000))


def times_since(gaps, mask):
    since = []
    for row, gap in enumerate(gaps):
        since.append(gap.expand(mask.shape[-1]))
        if row > 1:
            since[-1] = since[-1] + since[-2] * ~mask[row - 1]
    return since


def imputed(model, values, mask, since):
    last, filled = torch.zeros(3), []
    mean = values.sum(0) / mask.sum(0).clamp(min=1)
    for value, seen, time in zip(values, mask, since, strict=True):
        last = torch.where(seen, value, last)
        kept = decayed(model.imputation.weight * time + model.imputation.bias)
        filled.append(torch.where(seen, value, kept * last + (1 - kept) * mean))
    return filled


def states_of(model, times, values, mask):
    """State of one series after each observed row."""
    gaps = gaps_of(times, model.gap)
    since = times_since(gaps, mask)
    inputs = values if model.imputation is None else imputed(model, values, mask, since)
    state, states = torch.zeros(4), [torch.zeros(4)]
    for value, seen, gap, time in zip(inputs, mask, gaps, since, strict=True):
        row = torch.cat((value, seen.double()))
        if model.decay is None:
            row = torch.cat((row, gap[None]))
        else:
            state = state * decayed(model.decay(time))
        state = model.gru(row[None], state[None])[0]
        states.append(state)
    return states


def reference(model, times, values, mask):
    scores, predictions = [], []
    for time, value, seen in zip(times, values, mask, strict=True):
        rows = observed_rows(seen)
        states = states_of(model, time[rows], value[rows], seen[rows])
        after = [states[sum(other <= row for other in rows)] for row in range(len(time))]
        before = [states[sum(other < row for other in rows)] for row in range(len(time))]
        predictions.append(model.decoder(torch.stack(before)))
        scores.append(model.classifier(torch.stack(after) if model.by_row else states[-1]))
    return [torch.stack(scores)[:, None], torch.stack(predictions)[:, None]]


@pytest.mark.parametrize("gap", ["previous", "next"])
@pytest.mark.parametrize("by_row", [True, False], ids=["by row", "by series"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_outputs_equal_those_of_a_loop_over_rows(settings, by_row, gap):
    model = small_model(settings, by_row, gap=gap)
    batch = irregular_batch()
    assert_same(tensors(model(*batch)), reference(model, *batch))


@pytest.mark.parametrize("property_", PROPERTIES)
@pytest.mark.parametrize("by_row", [True, False], ids=["by row", "by series"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_property_of_models_of_series_holds(settings, by_row, property_):
    property_(small_model(settings, by_row))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_new_model_is_finite_with_all_its_gradients(settings):
    model = RecurrentClassifier(3, 2, by_row=False, **SETTINGS[settings])
    output = model(*irregular_batch())
    (output.scores.sum() + output.prediction.square().sum()).backward()
    assert all(one.grad is not None and one.grad.isfinite().all() for one in model.parameters())


@pytest.mark.parametrize("settings", ["RNN-Δt", "RNN-D"])
def test_a_prediction_knows_only_the_rows_before(settings):
    times, values, mask = irregular_batch()
    model = small_model(settings)
    before = model(times, values, mask)
    changed = values.clone()
    changed[:, 3:] += 1.0
    after = model(times, changed, mask)
    assert torch.equal(before.prediction[:, :, :4], after.prediction[:, :, :4])
    assert torch.equal(before.scores[:, :, :3], after.scores[:, :, :3])
    assert not torch.equal(before.prediction[:, 0, 4], after.prediction[:, 0, 4])


def test_two_classes_of_series_share_one_logit():
    model = small_model("RNN-Δt", by_row=False, classes=2)
    scores = model(*irregular_batch()).scores
    assert scores.shape == (1, 6, 2) and scores[..., 0].eq(0).all()
    assert model.classifier[-1].out_features == 1


def test_a_head_without_hidden_layers_is_linear():
    model = RecurrentClassifier(3, 5, by_row=True, hidden=4, head=())
    assert [type(layer) for layer in model.classifier] == [torch.nn.Linear]
    assert model(*irregular_batch()).scores.shape == (1, 6, 7, 5)


def test_a_series_that_is_never_observed_keeps_the_zero_state():
    model = small_model("GRU-D")
    output = model(*irregular_batch())
    expected = model.classifier(torch.zeros(7, 4))
    torch.testing.assert_close(output.scores[0, 3], expected, rtol=0, atol=TOLERANCE)


def test_a_model_learns_to_tell_two_series_apart():
    times, values, mask = irregular_batch()
    times, values, mask = times[:2], values[:2], mask[:2]
    model = RecurrentClassifier(3, 2, by_row=False, impute=True, decay=True)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    labels = torch.tensor([1, 0])
    losses = []
    for _ in range(40):
        optimiser.zero_grad()
        losses.append(F.cross_entropy(model(times, values, mask).scores[0], labels))
        losses[-1].backward()
        optimiser.step()
    assert losses[-1].item() < 0.05 < losses[0].item()


EXACT = 1e-12


def since_by_scanning(gaps, mask):
    """The published recurrence: what is missing hands its time on to the next row."""
    since = gaps.unsqueeze(-1).repeat(1, 1, mask.shape[-1])
    for series, row, feature in (~mask).nonzero().tolist():
        if 0 < row < mask.shape[1] - 1:
            since[series, row + 1, feature] += since[series, row, feature]
    return since


@pytest.mark.parametrize("which", ["previous", "next"])
def test_gaps_belong_to_the_row_after_or_before(which):
    times, _, _ = irregular_batch()
    expected = torch.stack([torch.stack(gaps_of(one, which)) for one in times])
    assert torch.equal(row_gaps(times, which), expected)
    other = row_gaps(times, "next" if which == "previous" else "previous")
    assert torch.equal(row_gaps(times.flip(1), which), other.flip(1))


def test_an_unknown_gap_is_refused():
    with pytest.raises(ValueError, match="previous or next"):
        row_gaps(torch.zeros(1, 2), "both")
    with pytest.raises(ValueError, match="gap must be previous, next or public_code, got 'both'"):
        small_model("GRU-D", gap="both")


@pytest.mark.parametrize("which", ["previous", "next"])
def test_time_since_an_observation_is_that_of_the_published_scan(which):
    times, _, mask = irregular_batch()
    gaps = row_gaps(times, which)
    found = time_since_observed(gaps, mask)
    torch.testing.assert_close(found, since_by_scanning(gaps, mask), rtol=0, atol=EXACT)


def test_time_since_an_observation_is_a_difference_of_times():
    times, _, mask = irregular_batch()
    found = time_since_observed(row_gaps(times), mask)
    for series, row, feature in torch.cartesian_prod(*map(torch.arange, mask.shape)).tolist():
        earlier = [other for other in range(row) if mask[series, other, feature]]
        expected = times[series, row] - times[series, max(earlier, default=0)]
        torch.testing.assert_close(found[series, row, feature], expected, rtol=0, atol=EXACT)


def test_a_decay_neither_grows_nor_overflows():
    exponent = torch.tensor([-5.0, 0.0, 1.0, 1e30])
    expected = torch.tensor([1.0, 1.0, torch.e**-1, 0.0])
    torch.testing.assert_close(decay_factor(exponent), expected, rtol=0, atol=EXACT)


def test_imputed_values_fade_from_the_last_into_the_mean():
    _, values, mask = irregular_batch()
    since = torch.rand(values.shape)
    imputation = DecayImputation(3)
    imputation.weight.data = torch.tensor([0.7, -2.0, 1.5])
    imputation.bias.data = torch.tensor([0.1, 0.5, -0.2])
    found = imputation(values, mask, since)
    assert torch.equal(found[mask], values[mask])
    for series, row, feature in (~mask).nonzero().tolist():
        seen = values[series, mask[series, :, feature], feature]
        mean = seen.mean() if len(seen) else torch.zeros(())
        earlier = values[series, :row, feature][mask[series, :row, feature]]
        last = earlier[-1] if len(earlier) else torch.zeros(())
        exponent = imputation.weight[feature] * since[series, row, feature]
        kept = torch.exp(-(exponent + imputation.bias[feature]).clamp(0, 1000))
        expected = kept * last + (1 - kept) * mean
        torch.testing.assert_close(found[series, row, feature], expected, rtol=0, atol=EXACT)


def test_a_new_imputation_repeats_the_last_value_and_can_learn_to_fade():
    values = torch.tensor([[[2.0], [0.0], [4.0]]])
    mask = values > 0
    imputation = DecayImputation(1)
    found = imputation(values, mask, torch.ones(1, 3, 1))
    assert found.flatten().tolist() == [2.0, 2.0, 4.0]
    found.sum().backward()
    # The missing value moves from 2 towards the mean 3 as the exponent leaves 0.
    assert imputation.weight.grad is not None and imputation.bias.grad is not None
    assert imputation.weight.grad.tolist() == imputation.bias.grad.tolist() == [1.0]


def test_a_model_that_was_pickled_when_it_had_no_choice_of_gaps_says_what_it_said():
    model = small_model("RNN-Δt")
    batch = irregular_batch()
    expected = tensors(model(*batch))
    delattr(model, "gap")
    loaded = pickle.loads(pickle.dumps(model))
    assert_same(tensors(loaded(*batch)), expected)


@pytest.mark.parametrize("gap", ["previous", "next", "public_code"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_what_is_expected_at_a_time_does_not_depend_on_what_else_is_asked_for(settings, gap):
    torch.manual_seed(0)
    times, values, mask = irregular_batch()
    model = small_model(settings, gap=gap)
    at = times[:, :1] + torch.tensor([0.0, 0.1, 0.25, 0.4, 2.0])
    together = model.reconstruct(times, values, mask, at)
    for number, one in enumerate(at.split(1, dim=1)):
        alone = model.reconstruct(times, values, mask, one)[:, :, 0]
        torch.testing.assert_close(together[:, :, number], alone, rtol=0, atol=TOLERANCE)
    # No other row is at the very time of a row here, but for padding, which says nothing.
    at_rows = model.reconstruct(times, values, mask, times)
    expected = model(times, values, mask).prediction
    first = torch.cat((mask.new_ones(6, 1), times.diff(dim=1) > 0), dim=1)
    torch.testing.assert_close(at_rows[:, first], expected[:, first], rtol=0, atol=TOLERANCE)
