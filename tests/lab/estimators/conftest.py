"""Estimators are tested in the precision that their users have."""

import pytest
import torch


@pytest.fixture(autouse=True)
def single_precision(double_precision):
    torch.set_default_dtype(torch.float32)
