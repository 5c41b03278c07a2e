"""Training is tested in the precision that users train in."""

import pytest
import torch


@pytest.fixture(autouse=True)
def double_precision():
    """Takes the place of the fixture that makes double precision the default elsewhere."""
    assert torch.get_default_dtype() == torch.float32
