"""What the public code of irregular series does differently, against numbers found by hand."""

from typing import Any

import pytest
import torch
from torch import nn

from bfno.dynamics import FirstOrder
from bfno.fields import Autonomous
from bfno.models.encoders import RNNEncoder
from bfno.models.ode_rnn import ODERNN, ODERNNClassifier, RecurrentStates, make_ode_rnn
from bfno.models.recurrent import RecurrentClassifier
from tests.models.series_batches import padded, random_batch
from tests.models.test_ode_rnn import plain_unit, small

# In 64ths of the duration, so that every quotient by a step of one 32nd is exact: rows after gaps
# of 0.5, 1, 2, 3, 3.5 and 22 steps.
ROWS = torch.tensor([[0.0, 1.0, 3.0, 7.0, 13.0, 20.0, 64.0]]) / 64
STEPS = [0, 1, 1, 1, 2, 2, 21]
OWN_STEPS = [0, 1, 1, 2, 3, 4, 22]


class Growth(nn.Module):
    """y' = 1 + y, which n steps of Euler's method take from 0 to (1 + h / n)ⁿ - 1."""

    def forward(self, y):
        return 1 + y


def _network(**options) -> ODERNN:
    dynamics = FirstOrder(Autonomous(Growth()))
    return ODERNN(dynamics, 1, 1, 2, method="euler", step=1 / 32, **options)


def _counts(network, times):
    schedule = network.schedule(times, torch.zeros_like(times).bool())
    return schedule.rows.bincount(minlength=times.numel()).tolist()


def test_a_gap_takes_fewer_steps_than_it_asks_for():
    assert _counts(_network(steps="public_code"), ROWS) == STEPS
    assert _counts(_network(), ROWS) == OWN_STEPS


def test_a_step_is_a_share_of_the_duration():
    network = _network(steps="public_code")
    assert _counts(network, 10 * ROWS) == _counts(network, ROWS / 8) == STEPS


def test_an_encoder_goes_the_same_steps_back_after_a_short_lead():
    network = _network(steps="public_code", backward=True)
    assert _counts(network, ROWS.flip(1)) == [1, *STEPS[:0:-1]]


def test_two_steps_of_euler_lead_over_a_gap_of_three():
    times = torch.tensor([[0.0, 6 / 64, 1.0]])
    nothing = torch.zeros(1, 3, 1)
    states = _network(steps="public_code")(times, nothing, nothing.bool())
    assert states.after[0, 1, 0].item() == 393 / 4096  # (1 + 3 / 64)² - 1


def test_series_without_a_duration_take_no_step():
    times, nothing = torch.zeros(2, 3), torch.zeros(2, 3, 1)
    for backward, steps in ((False, 0), (True, 1)):  # the lead
        network = _network(steps="public_code", backward=backward)
        network(times, nothing, nothing.bool())
        assert network.stats.accepted == steps


@pytest.mark.parametrize("options", [{}, {"backward": True}, {"gaps": "public_code"}], ids=str)
def test_padding_changes_no_state(options):
    network = make_ode_rnn(2, 3, method="euler", steps="public_code", **options)
    batch = random_batch()
    plain, more = network(*batch), network(*padded(batch))
    rows = batch.times.shape[1]
    for one, other in zip(plain, more, strict=True):
        torch.testing.assert_close(other[:, :rows], one, rtol=0, atol=1e-13)


def _as_published(network, times, values, mask):
    """States of one series after each row, by the published order of things."""
    y = s = torch.zeros(network.size)
    start, end = times[-1] + 0.01, times[-1]
    shortest = (times[-1] - times[0]) / 50
    states = {}
    rows = range(len(times))
    for row in reversed(rows) if network.backward else rows:
        points = max(2, int((start - end) / shortest))
        for _ in range(points - 1):
            y = y + network.dynamics.field(0.0, y) * (end - start) / (points - 1)
        if mask[row].any():
            y, s = plain_unit(network.unit, y, s, torch.cat((values[row], mask[row].double())))
        # Going forward this is the gap before the row before; at first the whole series.
        start, end = times[row], times[row - 1]
        states[row] = y
    return torch.stack([states[row] for row in rows])


@pytest.mark.parametrize("options", [{"backward": True}, {"gaps": "public_code"}], ids=str)
def test_an_ode_rnn_goes_the_way_of_the_public_code(options):
    network = small(method="euler", steps="public_code", **options)
    (times,), values, mask = random_batch((30,), share=0.3)
    times = torch.cat((times[:10], times[10:] + 0.4))  # with a gap of many steps
    states = network(times[None], values, mask).after[0]
    expected = _as_published(network, times, values[0], mask[0])
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-13)


def _reconstruction(mask, **options):
    """What a classifier expects whose states are 10, 20, 30 before rows and 1, 2, 3 after them."""
    network: Any = make_ode_rnn(1, 1)
    states = [torch.tensor(row).view(1, 3, 1) for row in ([10.0, 20.0, 30.0], [1.0, 2.0, 3.0])]
    network.forward = lambda *_: RecurrentStates(states[0], states[1], torch.zeros(1, 3, 1))
    model: Any = ODERNNClassifier(1, 2, network, by_row=True, **options)
    model.decoder = nn.Identity()
    values, mask = torch.tensor([5.0, 6.0, 7.0]), torch.tensor(mask)
    output = model(torch.tensor([[0.0, 0.5, 1.0]]), values.view(1, 3, 1), mask.view(1, 3, 1))
    return output.prediction.flatten().tolist()


def test_a_row_is_reconstructed_from_the_state_after_the_row_before():
    seen = [True, True, True]
    assert _reconstruction(seen, reconstruction="public_code") == [5, 1, 2]
    assert _reconstruction(seen) == [10, 20, 30]
    # Values that were not observed predict nothing; the state starts at zero.
    assert _reconstruction([False, True, True], reconstruction="public_code") == [0, 1, 2]


def _encoder(**options) -> Any:
    """One whose state becomes (state + tanh(gap)) / 2 with every row that it reads."""
    encoder: Any = RNNEncoder(1, 1, size=2, **options)
    with torch.no_grad():
        for parameter in encoder.recurrent.parameters():
            parameter.zero_()
        encoder.recurrent.weight_ih_l0[4:, 0] = 1.0
    encoder.posterior = nn.Identity()
    return encoder


TIMES = torch.tensor([[0.0, 0.25, 1.0]])
OBSERVED = torch.tensor([True, False, True]).view(1, 3, 1)


def _mean(encoder, times=TIMES, mask=OBSERVED):
    return encoder(times, mask.double(), mask).mean.item()


def test_an_encoder_reads_empty_rows_and_the_gap_to_the_next():
    # tanh(0.75), tanh(0.25) and 0, each half as much as the one after.
    assert _mean(_encoder(rows="public_code")) == pytest.approx(0.1406232846493382, rel=1e-14)
    # Nothing before the last row, then tanh(1).
    assert _mean(_encoder()) == pytest.approx(0.3807970779778824, rel=1e-14)


def test_padding_is_no_empty_row():
    encoder = _encoder(rows="public_code")
    longer = torch.cat((TIMES, TIMES[:, -1:].expand(1, 4)), dim=1)
    mask = torch.cat((OBSERVED, torch.zeros(1, 4, 1).bool()), dim=1)
    assert _mean(encoder, longer, mask) == _mean(encoder)


@pytest.mark.parametrize(
    ("gap", "expected"),
    [
        # tanh(0.25) and then 0, each half as much as the one after; the row between is empty.
        ("public_code", 0.06122966560092728),
        ("next", 0.1903985389889412),  # tanh(1) and then 0
        ("previous", 0.3807970779778824),  # 0 and then tanh(1)
    ],
)
def test_a_recurrent_network_sees_the_gap_to_the_next_row_even_if_it_is_empty(gap, expected):
    model: Any = RecurrentClassifier(1, 3, by_row=False, hidden=3, gap=gap)
    model.classifier = nn.Identity()
    with torch.no_grad():
        for parameter in model.gru.parameters():
            parameter.zero_()
        model.gru.weight_ih[6:, 2] = 1.0
    scores = model(TIMES, OBSERVED.double(), OBSERVED).scores
    assert scores.flatten().tolist() == pytest.approx([expected] * 3, rel=1e-14)


def test_a_state_decays_by_the_gaps_after_the_rows_since_the_last_observation():
    """Each row adds the gap behind it to those of the rows since: 0.25, 0.75, and 0.75 + 0."""
    model: Any = RecurrentClassifier(2, 3, by_row=False, decay=True, gap="public_code")
    mask = torch.tensor([[True, True], [False, False], [True, False]])[None]
    seen = []
    model.decay.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(TIMES, mask.double(), mask)
    assert seen[0].tolist() == [[[0.25, 0.25], [0.75, 0.75], [0.75, 0.75]]]


@pytest.mark.parametrize(
    "build",
    [
        lambda: make_ode_rnn(2, steps="fewer"),
        lambda: RNNEncoder(2, 3, rows="all"),
        lambda: ODERNNClassifier(2, 2, make_ode_rnn(2), by_row=True, reconstruction="after"),
    ],
)
def test_unknown_behaviours_are_refused(build):
    with pytest.raises(ValueError, match=r"must be (own|observed) or public_code, got '"):
        build()
