"""The contract of every model of series, preset by preset, in double precision."""

import pytest
import torch
from torch import Tensor

from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.experiment import SERIES_METHODS
from bfno.lab.experiments.series.models import SeriesData
from bfno.models import SeriesModel, SeriesOutput

FEATURES, CLASSES, COUNT, ROWS = 3, 4, 5, 6
# What mixes the series of a batch, and says so; every other model keeps them apart.
COUPLED = {
    "ace-latent-ode": {},
    "latent-bfno-node/batch": {"grid": "batch"},
    "rnn-vae/public_code": {"reverse_axis": "public_code"},
}
VARIANTS = {
    "latent-bfno-node/point": {"grid": "point"},
    "rnn-delta-t/next": {"gap": "next"},
    "gru-d/public_code": {"gap": "public_code"},
    "ode-rnn/public_code": {
        **{"gaps": "public_code", "steps": "public_code"},
        "reconstruction": "public_code",
    },
    "latent-ode/euler": {"encoder_method": "euler", "encoder_steps": "public_code"},
    "latent-ode-rnn/public_code": {"encoder_rows": "public_code"},
}
APART = [*(name for name in SERIES_METHODS if name not in COUPLED), *VARIANTS]
# What reaches predictions of models that otherwise see the rows before alone.
GLIMPSES = {
    "rnn-impute": "the mean of each feature",
    "gru-d": "the mean of each feature",
    "gru-d/public_code": "the mean of each feature",
    "rnn-delta-t/next": "when the next row is",
    "ode-rnn/public_code": "the first row, from which it predicts that row itself",
}


@pytest.fixture(autouse=True)
def double_precision():
    """A contract is mathematics: rounding would hide a wrong formula."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def _model(name: str, by_row: bool) -> SeriesModel:
    method = name.partition("/")[0]
    options = {**COUPLED, **VARIANTS}.get(name, {})
    config = resolve(f"physionet/{method}", scale="smoke", changes={"model": options})
    # One step from row to row: adaptive ones would suit all series of the batch.
    solver = {"method": "rk4", "gradient": "checkpoint"}
    torch.manual_seed(0)
    return config.model.build(SeriesData(FEATURES, CLASSES, by_row), solver).eval()


def _batch(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Series of different lengths: the last rows of some are padding, one row observes nothing."""
    generator = torch.Generator().manual_seed(seed)
    times = torch.rand(COUNT, ROWS, generator=generator).sort(dim=1).values
    times = times - times[:, :1]
    mask = torch.rand(COUNT, ROWS, FEATURES, generator=generator) < 0.6
    mask[:, 0, 0] = True
    mask[2, 3] = False
    lengths = torch.tensor([6, 6, 6, 4, 2])
    within = torch.arange(ROWS) < lengths[:, None]
    last = times.gather(1, lengths[:, None] - 1)
    times = torch.where(within, times, last)
    values = torch.randn(COUNT, ROWS, FEATURES, generator=generator)
    return times, values, mask & within[:, :, None]


def _parts(output: SeriesOutput) -> list[Tensor]:
    """Scores, prediction and divergence with the series on the first axis."""
    parts = [output.scores.transpose(0, 1), output.prediction.transpose(0, 1)]
    return [*parts, output.kl] if output.kl is not None else parts


def _same(one: SeriesOutput, other: SeriesOutput, series: slice | list[int]) -> bool:
    pairs = zip(_parts(one), _parts(other), strict=True)
    # Another order of the sums in a product of matrices changes the last digits.
    return all(torch.allclose(a[series], b[series], atol=1e-11, rtol=0) for a, b in pairs)


both_labels = pytest.mark.parametrize("by_row", [False, True], ids=["by series", "by row"])


@both_labels
@pytest.mark.parametrize("name", APART)
def test_a_series_does_not_see_the_others(name, by_row):
    model = _model(name, by_row)
    assert not model.couples_series
    times, values, mask = _batch()
    before = model(times, values, mask)
    other_times, other_values, other_mask = _batch(seed=2)
    for whole, part in ((times, other_times), (values, other_values), (mask, other_mask)):
        whole[1] = part[1]
    after = model(times, values, mask)
    assert _same(before, after, [0, 2, 3, 4])
    assert not _same(before, after, [1])


@both_labels
@pytest.mark.parametrize("name", [*APART, *COUPLED])
def test_what_has_a_label_has_scores_of_all_classes(name, by_row):
    model = _model(name, by_row)
    output = model(*_batch())
    labelled = (COUNT, ROWS) if by_row else (COUNT,)
    assert output.scores.shape == (model.samples, *labelled, CLASSES)
    assert output.prediction.shape == (model.samples, COUNT, ROWS, FEATURES)


@both_labels
@pytest.mark.parametrize("name", [*APART, *COUPLED])
def test_models_that_look_ahead_say_so(name, by_row):
    """The others predict a row from those before it, regardless of later ones."""
    model = _model(name, by_row)
    with torch.no_grad():
        for parameter in model.parameters():  # no decay would let no mean through
            parameter += 0.2 * torch.rand_like(parameter)
    times, values, mask = _batch()

    def predictions(row: int) -> tuple[Tensor, Tensor]:
        """Up to a row before and after it, and those behind it, change."""
        changed, seen = values.clone(), mask.clone()
        changed[:, row:] += 1
        seen[:, row:] = ~seen[:, row:]
        found = []
        for batch in ((times, values, mask), (times, changed, seen)):
            torch.manual_seed(3)  # the noise of latent states
            found.append(model(*batch).prediction[:, :, : row + 1])
        return found[0], found[1]

    # Another order of the sums in a product of matrices changes the last digits.
    is_same = [torch.allclose(*predictions(row), atol=1e-11, rtol=0) for row in range(ROWS)]
    assert all(is_same) != (model.looks_ahead or name in GLIMPSES)


@both_labels
@pytest.mark.parametrize("name", COUPLED)
def test_models_that_mix_series_say_so_and_do_so(name, by_row):
    model = _model(name, by_row)
    assert model.couples_series
    times, values, mask = _batch()
    before = model(times, values, mask)
    values[1] = values[1] + 1
    assert not _same(before, model(times, values, mask), [0, 2, 3, 4])


@both_labels
@pytest.mark.parametrize("name", [*APART, "ace-latent-ode"])
def test_permuting_the_series_permutes_the_outputs(name, by_row):
    """A grid over the batch and a batch turned round depend on the order; no other model does."""
    model = _model(name, by_row)
    batch, order = _batch(), [3, 0, 4, 1, 2]
    straight = _parts(model(*batch))
    permuted = _parts(model(*(part[order] for part in batch)))
    for ours, theirs in zip(straight, permuted, strict=True):
        torch.testing.assert_close(theirs, ours[order], atol=1e-11, rtol=0)


@both_labels
@pytest.mark.parametrize("name", [*APART, *COUPLED])
def test_what_was_not_observed_cannot_change_any_output(name, by_row):
    model = _model(name, by_row)
    times, values, mask = _batch()
    before = model(times, values, mask)
    for hidden in (1e30, torch.nan, torch.inf):
        assert _same(before, model(times, values.masked_fill(~mask, hidden), mask), slice(None))


@both_labels
@pytest.mark.parametrize("name", [*APART, *COUPLED])
def test_padding_changes_no_output(name, by_row):
    model = _model(name, by_row)
    times, values, mask = _batch()
    padded = model(
        torch.cat((times, times[:, -1:].expand(-1, 3)), dim=1),
        torch.cat((values, torch.randn(COUNT, 3, FEATURES)), dim=1),
        torch.cat((mask, mask.new_zeros(COUNT, 3, FEATURES)), dim=1),
    )
    plain = model(times, values, mask)
    scores = padded.scores[:, :, :ROWS] if by_row else padded.scores
    shown = SeriesOutput(scores, padded.prediction[:, :, :ROWS], padded.kl)
    assert _same(plain, shown, slice(None))


@pytest.mark.parametrize("name", [*APART, *COUPLED])
def test_gradients_are_those_of_finite_differences(name):
    """In training, with the same noise at every call."""
    model = _model(name, by_row=True).train()
    times, values, mask = _batch()
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter in parameters:  # away from zeros, where activations have kinks
            parameter += 0.2 * torch.randn_like(parameter)

    def loss() -> Tensor:
        torch.manual_seed(3)
        output = model(times, values, mask)
        total = output.scores.square().mean() + output.prediction.sin().mean()
        return total if output.kl is None else total + output.kl.mean()

    gradients = torch.autograd.grad(loss(), parameters)
    directions = [torch.randn_like(parameter) for parameter in parameters]
    expected = sum((g * d).sum() for g, d in zip(gradients, directions, strict=True))

    @torch.no_grad()
    def shifted(by: float) -> Tensor:
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter += by * direction
        value = loss()
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter -= by * direction
        return value

    # Central differences of this step are good to the square of it and to 1e-16 over it.
    step = 1e-6
    slope = (shifted(step) - shifted(-step)) / (2 * step)
    torch.testing.assert_close(slope, expected, rtol=1e-5, atol=1e-8)


@both_labels
@pytest.mark.parametrize("name", [*APART, *COUPLED])
def test_the_shortest_and_the_emptiest_series_are_no_trouble(name, by_row):
    model = _model(name, by_row).train()
    for rows, observed in ((1, True), (1, False), (4, False)):
        times = torch.zeros(2, rows)
        values, mask = torch.ones(2, rows, FEATURES), torch.full((2, rows, FEATURES), observed)
        output = model(times, values, mask)
        assert all(part.isfinite().all() for part in _parts(output))
        torch.stack([part.sum() for part in _parts(output)]).sum().backward()
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        assert all(grad.isfinite().all() for grad in grads)
