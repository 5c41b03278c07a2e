"""The names of the image presets."""

import pytest
import torch

from bfno.dynamics import AdamODE, GeneralizedHeavyBall, GeneralizedNesterov
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.presets import IMAGE_DATA, IMAGE_PRESETS, find_image_preset
from bfno.lab.experiments.presets.build import build_classifier

METHODS = (
    *("node", "anode", "sonode", "hbnode", "ghbnode", "nesterovnode", "gnesterovnode", "adamnode"),
    *("bfno-node", "fno-node", "afno-node"),
)


def test_every_method_exists_for_every_data_set():
    for data in IMAGE_DATA:
        for method in METHODS:
            assert find_image_preset(data, method) is IMAGE_PRESETS[data, method]


def test_mnist_and_the_other_data_sets_use_their_own_script_settings():
    dynamics = build_classifier("mnist", "ghbnode").block.dynamics
    assert isinstance(dynamics, GeneralizedHeavyBall) and dynamics.restoring.logit is not None
    dynamics = build_classifier("cifar10", "ghbnode").block.dynamics
    assert isinstance(dynamics, GeneralizedHeavyBall) and dynamics.restoring.constant == 1.5
    dynamics = build_classifier("mnist", "gnesterovnode").block.dynamics
    assert isinstance(dynamics, GeneralizedNesterov)
    assert (dynamics.sign, dynamics.variant) == (-1, "public_code")
    assert torch.equal(
        dynamics(1.0, torch.full((1, 10, 4, 4), 9.0))[:, :5].unique(), torch.tensor([0.5])
    )
    dynamics = build_classifier("mnist", "adamnode").block.dynamics
    assert isinstance(dynamics, AdamODE)
    assert (dynamics.mean_logit.item(), dynamics.square_logit.item()) == (-5, 5)


@pytest.mark.parametrize(("data", "method"), [("cifar10", "bfno"), ("cifar", "bfno-node")])
def test_an_unknown_name_is_refused_with_the_nearest_ones(data, method):
    with pytest.raises(ConfigError, match=r"nearest are .*cifar100?/bfno-node"):
        find_image_preset(data, method)
