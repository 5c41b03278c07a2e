"""One description of an experiment: its choices are those of the registries, its models as ever."""

import pytest
import torch
from torch import nn

from bfno.fields import operator
from bfno.fields.convolution import ConvField
from bfno.lab.data import DATA_SETS, TOYS
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.images.models import DYNAMICS, FIELDS
from bfno.lab.experiments.resolve import EXPERIMENTS, resolve
from bfno.layers.activation import ACTIVATIONS
from bfno.models.ode_rnn import DYNAMICS as RECURRENT_DYNAMICS
from bfno.ode import GRADIENTS, METHODS

FIXED = [name for name, tableau in METHODS.items() if not (tableau.adaptive or tableau.implicit)]
IMAGES, SERIES, FLOWS = "mnist/hbnode", "physionet/ode-rnn", "mnist-density/ffjord-bfno-rnode"


@pytest.mark.parametrize(
    ("experiment", "section", "name", "choices"),
    [
        (IMAGES, "solver", "method", METHODS),
        (IMAGES, "solver", "gradient", GRADIENTS),
        (IMAGES, "data", "name", [*DATA_SETS, "folder"]),
        (IMAGES, "model", "dynamics", DYNAMICS),
        (IMAGES, "model", "field", [*FIELDS, *operator.LAYERS]),
        (SERIES, "model", "dynamics", RECURRENT_DYNAMICS),
        (SERIES, "model", "method", FIXED),
        ("physionet/latent-ode", "model", "encoder_method", FIXED),
        (FLOWS, "evaluation", "method", METHODS),
        (FLOWS, "data", "name", [*DATA_SETS, "folder"]),
        (FLOWS, "model", "field", ["conv", *operator.LAYERS, "mlp"]),
        (FLOWS, "model", "inner_activation", ACTIVATIONS),
    ],
)
def test_every_name_of_a_registry_is_a_choice_and_no_other(experiment, section, name, choices):
    for choice in choices:
        config = resolve(experiment, changes={section: {name: choice}})
        assert getattr(getattr(config, section), name) == choice
    for wrong in ("none such", 3, ["rk4"]):
        with pytest.raises(ConfigError, match=rf"^{section}\.{name}: ") as error:
            resolve(experiment, changes={section: {name: wrong}})
        assert all(repr(choice) in str(error.value) for choice in choices)
        assert "\n" not in str(error.value)


def test_points_are_a_choice_of_densities_alone():
    for shape in TOYS:
        assert resolve("moons/ffjord", changes={"data": {"name": shape}}).data.name == shape
    with pytest.raises(ConfigError, match=r"^data\.name: .*'mnist'"):
        resolve("mnist/node", changes={"data": {"name": "moons"}})


def test_what_is_added_to_a_registry_is_a_choice_at_once(monkeypatch):
    monkeypatch.setitem(METHODS, "mine", METHODS["rk4"])
    monkeypatch.setitem(operator.LAYERS, "plain", lambda width: nn.Conv2d(width, width, 1))
    monkeypatch.setitem(
        FIELDS, "narrow", lambda model, channels: ConvField(channels, 2, model.channels)
    )
    for field in ("plain", "narrow"):
        changes = {"model": {"field": field}, "solver": {"method": "mine", "step": 0.5}}
        config = resolve("digits/node", scale="smoke", changes=changes)
        model = config.build(config.known_facts())
        assert model(torch.rand(2, *config.data.shape)).shape == (2, 10)


# What the releases before this description of experiments built: the number of parameters that
# the model has, and a sum over all of them, which rounding of other processors hardly changes.
BEFORE = {
    "mnist/bfno-node": (1361, 3.6191173913756494),
    "mnist/hbnode": (3850, 2.7080187888105627),
    "physionet/latent-bfno-node": (4515, 0.739060322489685),
    "mnist-density/ffjord-bfno-rnode": (987, 2.3947907280807312),
}


@pytest.mark.parametrize("experiment", BEFORE)
def test_models_start_with_the_weights_that_they_always_had(experiment):
    config = resolve(experiment, scale="smoke")
    torch.manual_seed(0)
    model = config.build(config.known_facts())
    weights = torch.cat([part.detach().double().flatten() for part in model.parameters()])
    found = (weights * torch.arange(len(weights)).cos()).sum().item()
    assert (len(weights), found) == (BEFORE[experiment][0], pytest.approx(BEFORE[experiment][1]))


def test_the_names_of_data_are_those_of_one_kind_of_experiment():
    names = [name for kind in EXPERIMENTS for name in kind.data_names]
    assert len(names) == len(set(names))
