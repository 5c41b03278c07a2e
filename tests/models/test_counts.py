"""Every model of the paper's tables has the size that the paper prints."""

import re

import torch
from torch import nn

from bfno.lab.experiments.presets import IMAGE_PRESETS
from bfno.lab.experiments.presets.build import preset_sizes
from bfno.layers.afno import AFNO
from bfno.layers.fno import FNO
from bfno.models import count_parameters

DATA_NAMES = {"MNIST": "mnist", "CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "STL-10": "stl10"}


def test_every_classifier_has_the_size_of_its_preset():
    sizes = {(row["data"], row["method"]): row["parameters"] for row in preset_sizes()}
    assert sizes == {name: preset.parameters for name, preset in IMAGE_PRESETS.items()}


def test_every_published_size_but_that_of_bfno_on_mnist_is_matched():
    different = {
        name: (preset.parameters, preset.published)
        for name, preset in IMAGE_PRESETS.items()
        if preset.published not in (None, preset.parameters)
    }
    assert different == {
        ("mnist", "bfno-node"): (61_901, 85_591),
        ("mnist", "bfno-node-budget"): (85_706, 85_591),
    }


def test_presets_quote_the_sizes_that_the_paper_prints(shared_folder):
    text = (shared_folder / "spec" / "paper_results.yaml").read_text()
    printed = {}
    for section, suffix in (("image_classification", ""), ("ablation_parameter_counts", "-small")):
        body = re.split(r"^\w", text.split(f"{section}:")[1], maxsplit=1, flags=re.MULTILINE)[0]
        rows = re.findall(r"method: ([\w-]+), dataset: ([\w-]+),.* params: (\d+)", body)
        for method, data, size in rows:
            printed[DATA_NAMES[data], method.lower() + suffix] = int(size)
    assert len(printed) == 9 * 4 + 3
    assert {name: IMAGE_PRESETS[name].published for name in printed} == printed


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
