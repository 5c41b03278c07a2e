"""What counts as a parameter."""

import torch
from torch import nn

from bfno.layers.afno import AFNO
from bfno.layers.fno import FNO
from bfno.models import count_parameters


def test_complex_pairs_of_fno_count_once_and_everything_else_in_full():
    assert count_parameters(FNO(channels=3, modes=(2, 4), skip="linear")) == 9 * 4 * 4 + 9 + 3
    assert count_parameters(AFNO(channels=6, blocks=2)) == 4 * 6 * 3 + 4 * 6
    shared = FNO(channels=3, modes=(2,))
    assert count_parameters(nn.Sequential(shared, nn.Linear(2, 2), shared)) == 18 + 6


def test_frozen_parameters_count():
    layer = nn.Linear(3, 2)
    layer.weight.requires_grad_(False)
    layer.register_parameter("native", nn.Parameter(torch.zeros(4, dtype=torch.complex128)))
    assert count_parameters(layer) == 12
