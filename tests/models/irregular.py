"""Irregular series, and what holds for every model of them.

Each property takes a model and raises if it does not hold.
"""

import itertools

import torch
from torch.func import functional_call

# The same float64 sums in other orders.
TOLERANCE = 1e-10


def irregular_batch(features=3):
    """Six series: whole; with empty rows; of one row; never observed; short; one late row."""
    lengths = torch.tensor([7, 7, 1, 7, 4, 7])
    number = torch.arange(7)
    times = torch.rand(6, 7).cumsum(1) / 7
    times = times.gather(1, torch.minimum(number, lengths[:, None] - 1))
    mask = torch.rand(6, 7, features) < 0.6
    mask[0, :, 0] = True
    mask[1, [0, 3, 4]] = False
    mask[1, [1, 2, 5]] = torch.eye(3, features, dtype=torch.bool)
    mask[2, 0, 0] = True
    mask[3] = False
    mask[5, :5] = False
    mask[5, 5, 0] = True
    mask &= (number < lengths[:, None])[:, :, None]
    return times, torch.randn(6, 7, features).where(mask, 0.0), mask


def tensors(output):
    """All tensors of an output, series first."""
    found = [output.scores.transpose(0, 1), output.prediction.transpose(0, 1)]
    return found if output.kl is None else [*found, output.kl]


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=TOLERANCE)


def outputs_have_an_axis_for_samples(model):
    output = model(*irregular_batch(model.features))
    rows = (7,) if model.by_row else ()
    assert output.scores.shape == (model.samples, 6, *rows, model.classes)
    assert output.prediction.shape == (model.samples, 6, 7, model.features)


def nothing_comes_from_masked_values(model):
    times, values, mask = irregular_batch(model.features)
    poisoned = values.where(mask, float("nan"))
    assert_same(tensors(model(times, poisoned, mask)), tensors(model(times, values, mask)))


def series_do_not_meet(model):
    times, values, mask = irregular_batch(model.features)
    whole = tensors(model(times, values, mask))
    for one in range(len(times)):
        alone = model(times[one, None], values[one, None], mask[one, None])
        assert_same(tensors(alone), [part[one, None] for part in whole])


def order_of_series_does_not_matter(model):
    batch = irregular_batch(model.features)
    order = torch.tensor([4, 0, 3, 5, 1, 2])
    whole = tensors(model(*batch))
    assert_same(tensors(model(*[part[order] for part in batch])), [part[order] for part in whole])


def rows_without_observation_do_not_matter(model):
    """Neither behind a series, as in padding, nor between its rows, as on the times of others."""
    times, values, mask = irregular_batch(model.features)
    middle = times[:, 2:4].mean(1, keepdim=True)
    padding = times[:, -1:].expand(-1, 2)
    longer = torch.cat((times[:, :3], middle, times[:, 3:], padding), dim=1)
    kept = [0, 1, 2, 4, 5, 6, 7]
    values_longer, mask_longer = values.new_zeros(2, 6, 10, model.features)
    values_longer[:, kept], mask_longer[:, kept] = values, mask.to(values)
    found = tensors(model(longer, values_longer, mask_longer))
    if model.by_row:
        found[0] = found[0][:, :, kept]
    found[1] = found[1][:, :, kept]
    assert_same(found, tensors(model(times, values, mask)))


def gradients_are_finite_differences(model):
    """Gradients of all outputs with respect to gaps, values and every parameter."""
    times, values, mask = irregular_batch(model.features)
    gaps = times.diff(dim=1, prepend=torch.zeros_like(times[:, :1]))
    can_move = gaps > 0  # where rows are at the same time, a difference would let time descend
    names = [name for name, _ in model.named_parameters()]

    def run(gaps, values, *parameters):
        times = gaps.where(can_move, 0.0).cumsum(1)
        given = dict(zip(names, parameters, strict=True))
        return tuple(tensors(functional_call(model, given, (times, values, mask))))

    inputs = [gaps, values, *[one.detach().clone() for one in model.parameters()]]
    for one in inputs:
        one.requires_grad_()
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


def every_value_is_finite_in_single_precision(model):
    times, values, mask = irregular_batch(model.features)
    output = model.float()(times.float(), values.float(), mask)
    assert all(part.dtype == torch.float32 for part in tensors(output))
    assert all(part.isfinite().all() for part in tensors(output))
    torch.stack([part.sum() for part in tensors(output)]).sum().backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    assert gradients and all(one.isfinite().all() for one in gradients)


PROPERTIES = [
    outputs_have_an_axis_for_samples,
    nothing_comes_from_masked_values,
    series_do_not_meet,
    order_of_series_does_not_matter,
    rows_without_observation_do_not_matter,
    gradients_are_finite_differences,
    every_value_is_finite_in_single_precision,
]


def observed_rows(mask):
    """Numbers of one series' rows in which something was observed."""
    return [number for number, row in enumerate(mask) if row.any()]


def gaps_of(times, which="previous"):
    """Gap beside each of one series' rows, in plain loops."""
    between = [later - earlier for earlier, later in itertools.pairwise(times)]
    zero = torch.zeros(())
    if not len(times):
        return []
    return [zero, *between] if which == "previous" else [*between, zero]
