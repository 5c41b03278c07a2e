"""Losses of models of series against torch.distributions and sums by hand."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from bfno.models.likelihood import (
    classification_loss,
    evidence_loss,
    gaussian_log_likelihood,
    kl_to_standard_normal,
    kl_weight,
)
from tests.models.irregular import irregular_batch

TOLERANCE = 1e-10


def test_likelihood_is_a_mean_of_means_of_densities():
    _, values, mask = irregular_batch()
    prediction = torch.randn(3, *values.shape)
    densities = Normal(prediction, 0.3).log_prob(values)
    expected = torch.zeros(3)
    for sample, series, feature in torch.cartesian_prod(*map(torch.arange, (3, 6, 3))).tolist():
        seen = densities[sample, series, mask[series, :, feature], feature]
        if len(seen):
            expected[sample] += seen.mean() / 18
    found = gaussian_log_likelihood(prediction, values, mask, 0.3)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_what_was_not_observed_changes_neither_likelihood_nor_gradient():
    _, values, mask = irregular_batch()
    prediction = torch.randn(2, *values.shape, requires_grad=True)
    found = gaussian_log_likelihood(prediction, values.where(mask, math.nan), mask, 0.01)
    assert torch.equal(found, gaussian_log_likelihood(prediction, values, mask, 0.01))
    (gradient,) = torch.autograd.grad(found.sum(), prediction)
    assert gradient[:, ~mask].eq(0).all() and gradient[:, mask].ne(0).all()


def test_predictions_without_an_axis_of_samples_are_refused():
    _, values, mask = irregular_batch()
    with pytest.raises(ValueError, match=r"shape \(samples, 6, 7, 3\), got \(6, 7, 3\)"):
        gaussian_log_likelihood(values, values, mask, 0.5)


def test_likelihood_has_the_right_gradient():
    _, values, mask = irregular_batch()
    prediction = torch.randn(2, *values.shape, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x: gaussian_log_likelihood(x, values, mask, 0.5), prediction, fast_mode=True
    )


def test_divergence_is_that_of_the_distributions():
    mean, deviation = torch.randn(4, 5), torch.rand(4, 5) + 0.01
    prior = Normal(torch.zeros(5), torch.ones(5))
    expected = kl_divergence(Normal(mean, deviation), prior).mean(1)
    found = kl_to_standard_normal(mean, deviation)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_divergence_of_a_point_is_finite_and_has_a_gradient(dtype):
    mean = torch.ones(1, 2, dtype=dtype, requires_grad=True)
    deviation = torch.zeros(1, 2, dtype=dtype, requires_grad=True)
    found = kl_to_standard_normal(mean, deviation)
    found.sum().backward()
    assert found.isfinite().all() and found.item() > 10
    assert mean.grad is not None and mean.grad.tolist() == [[0.5, 0.5]]
    assert deviation.grad is not None and deviation.grad.isfinite().all()


def test_evidence_is_the_logarithm_of_a_sum_over_samples():
    likelihoods, kl = torch.tensor([-1.0, 0.5, 2.0]), torch.tensor(0.7)
    expected = -math.log(sum(math.exp(one - 0.3 * 0.7) for one in (-1.0, 0.5, 2.0)))
    assert evidence_loss(likelihoods, kl, 0.3).item() == pytest.approx(expected, abs=1e-12)
    large = torch.tensor([-1e5, -2e5])
    assert evidence_loss(large, kl, 0.0).item() == pytest.approx(1e5)


def test_without_a_posterior_the_loss_is_a_mean():
    assert evidence_loss(torch.tensor([-1.0, 0.5, 2.0])).item() == pytest.approx(-0.5)


def test_divergence_counts_nothing_for_ten_epochs_and_then_ever_more():
    assert [kl_weight(epoch) for epoch in range(11)] == [0.0] * 11
    for epoch in (11, 50, 200):
        assert kl_weight(epoch) == pytest.approx(1 - 0.99 ** (epoch - 10))


def test_classification_averages_over_samples_and_labelled_rows():
    scores, labels = torch.randn(3, 2, 4, 5), torch.tensor([[0, -1, 4, 2], [-1, -1, -1, 1]])
    expected = [
        -scores[sample, series, row].log_softmax(0)[labels[series, row]]
        for sample in range(3)
        for series, row in (labels >= 0).nonzero().tolist()
    ]
    found = classification_loss(scores, labels)
    torch.testing.assert_close(found, torch.stack(expected).mean(), rtol=0, atol=TOLERANCE)


def test_one_logit_of_two_classes_gives_the_binary_cross_entropy():
    logits, labels = torch.randn(3, 6), torch.tensor([0, 1, 1, 0, 1, 0])
    scores = torch.stack((torch.zeros_like(logits), logits), dim=-1)
    expected = F.binary_cross_entropy_with_logits(logits, labels.expand(3, 6).double())
    found = classification_loss(scores, labels)
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)


def test_no_labels_at_all_cost_nothing_and_teach_nothing():
    scores = torch.randn(3, 4, 2, requires_grad=True)
    loss = classification_loss(scores, torch.full((4,), -1))
    loss.backward()
    assert loss.item() == 0 and scores.grad is not None and scores.grad.eq(0).all()
