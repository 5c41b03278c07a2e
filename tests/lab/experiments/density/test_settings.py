"""Settings of densities: complete, closed, and explained where they are wrong."""

import pytest
import torch
import yaml

from bfno.lab.data import TOYS
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density import models
from bfno.lab.experiments.density.experiment import DENSITY_DATA, DENSITY_METHODS, POINT_METHODS
from bfno.lab.experiments.resolve import SCALES, changed_settings, read_written, resolve
from bfno.lab.experiments.settings import Settings
from bfno.lab.experiments.trees import read_settings
from bfno.models import count_parameters
from tests.lab.experiments.density.runs import tiny


def _methods(data: str) -> tuple[str, ...]:
    return POINT_METHODS if data in TOYS else DENSITY_METHODS


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("data", ["mnist-density", "cifar10-density", "digits-density", "moons"])
def test_every_method_builds_at_every_scale(data, scale):
    for method in _methods(data):
        config = resolve(f"{data}/{method}", scale=scale)
        with torch.device("meta"):
            model = config.build(config.known_facts())
        assert count_parameters(model) > 0
        assert model.event_shape == config.data.shape


@pytest.mark.parametrize("data", DENSITY_DATA)
def test_every_experiment_resolves_to_itself(data, tmp_path):
    for method in _methods(data):
        config = resolve(f"{data}/{method}")
        file = tmp_path / "config.yaml"
        file.write_text(config.as_yaml())
        assert resolve(str(file)) == config
        assert changed_settings(config) == []


@pytest.mark.parametrize(
    ("experiment", "parameters"),
    [
        ("mnist-density/ffjord-rnode", 800_636),
        ("cifar10-density/ffjord-rnode", 1_358_868),
        ("mnist-density/ffjord-bfno-rnode", 6_336_638),
        ("cifar10-density/ffjord-bfno-rnode", 8_912_458),
        # As many again as there are intervals whose end is learned.
        ("mnist-density/ffjord", 800_636 + 10),
        ("cifar10-density/ffjord", 1_358_868 + 14),
    ],
)
def test_paper_scale_has_the_known_sizes(experiment, parameters):
    config = resolve(experiment, scale="paper")
    with torch.device("meta"):
        assert count_parameters(config.build(config.known_facts())) == parameters


def test_paper_scale_is_the_published_training():
    ffjord, rnode, bfno = (
        resolve(f"mnist-density/{name}", scale="paper")
        for name in ("ffjord", "ffjord-rnode", "ffjord-bfno-rnode")
    )
    for config in (ffjord, rnode, bfno):
        train = config.train
        assert (train.batch, train.lr, train.warmup, train.epochs) == (200, 1e-3, 1000, 100)
        assert (train.optimizer, train.decay, config.model.blocks) == ("adam", 1.0, 2)
        assert (config.evaluation.method, config.evaluation.rtol) == ("dopri5", 1e-5)
        assert config.model.alpha == 1e-5 and not config.data.flip
    assert (ffjord.solver.method, ffjord.solver.rtol) == ("dopri5", 1e-5)
    assert (ffjord.model.trace, ffjord.model.learn_end_time) == ("rademacher", True)
    assert (ffjord.loss.kinetic, ffjord.loss.jacobian) == (0, 0)
    assert (rnode.solver.method, rnode.solver.step) == ("rk4", 0.25)
    for config in (rnode, bfno):
        assert (config.model.trace, config.model.learn_end_time) == ("gaussian", False)
        assert (config.loss.kinetic, config.loss.jacobian) == (0.01, 0.01)
    assert (bfno.solver.method, bfno.solver.rtol) == ("dopri5", 1e-3)
    model = bfno.model
    assert (model.width, model.depth, model.branches) == (100, 3, 3)
    assert model.inner_activation == "relu"


def test_colour_images_have_their_own_bounds_flips_and_solver():
    config = resolve("cifar10-density/ffjord-rnode", scale="paper")
    assert config.model.alpha == 0.05 and config.data.flip
    assert (config.solver.method, config.solver.rtol) == ("dopri5", 1e-5)
    assert config.solver.step is None
    grey, colour = (
        resolve("folder-density/ffjord", scale="paper", changes={"data": {"colour": is_colour}})
        for is_colour in (False, True)
    )
    assert (grey.model.alpha, colour.model.alpha) == (1e-5, 0.05)
    assert not colour.data.flip  # whether the user's own images may be mirrored is unknown


def test_discrete_flows_have_their_published_recipes():
    found = {
        name: resolve(f"cifar10-density/{name}", scale="paper")
        for name in ("realnvp", "glow", "i-resnet")
    }
    assert {name: one.model.alpha for name, one in found.items()} == {
        "realnvp": 0.05,
        "glow": None,
        "i-resnet": None,
    }
    assert [one.train.batch for one in found.values()] == [64, 64, 128]
    assert found["realnvp"].train.weight_decay == 5e-5
    assert (found["i-resnet"].train.optimizer, found["i-resnet"].train.lr) == ("adamax", 3e-3)


@pytest.mark.parametrize("field", ["conv", "fno", "afno", "bfno"])
@pytest.mark.parametrize("method", ["ffjord-rnode", "ffjord-bfno-rnode"])
def test_any_field_of_images_goes_with_any_method(method, field):
    changes = {"model": {"field": field, "width": 8}}
    config = tiny(f"digits-density/{method}", changes)
    model = config.build(config.known_facts())
    assert model.encode(torch.rand(2, *config.data.shape)).log_prob.isfinite().all()
    again = tiny(f"digits-density/{method}", read_settings(["seed=3", *changed_settings(config)]))
    assert again == config


@pytest.mark.parametrize("field", ["mlp", "fno", "afno", "bfno"])
def test_any_field_of_points_goes_with_points(field):
    config = tiny("moons/ffjord-rnode", {"model": {"field": field, "width": 8}})
    model = config.build(config.known_facts())
    assert model.encode(torch.rand(3, 2)).log_prob.isfinite().all()


@pytest.mark.parametrize(
    ("experiment", "model", "message"),
    [
        ("moons/ffjord", {"alpha": 0.1}, r"^model\.alpha: belongs to images"),
        ("moons/ffjord", {"field": "conv"}, r"^model\.field: conv needs images.*mlp"),
        ("moons/ffjord", {"kind": "glow"}, r"^model\.kind: glow models images alone"),
        ("moons/ffjord", {"branches": 2}, r"^model\.branches: mlp has no such part"),
        ("digits-density/ffjord", {"field": "mlp"}, r"^model\.field: mlp is for points.*conv"),
        ("digits-density/ffjord", {"branches": 2}, r"^model\.branches: conv has no such part"),
        (
            "digits-density/ffjord",
            {"field_options": {"modes": 2}},
            r"^model\.field_options: conv has none",
        ),
        ("digits-density/ffjord", {"field": "afno", "width": 9}, r"^model: .*--set model\.NAME"),
        (
            "digits-density/ffjord-bfno-rnode",
            {"field_options": {"skip": "ring"}},
            r"^model: skip must be one of",
        ),
    ],
)
def test_settings_without_meaning_are_refused_by_name(experiment, model, message):
    config = tiny(experiment, {"model": model})
    with pytest.raises(ConfigError, match=message) as error:
        config.build(config.known_facts())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("experiment", "changes", "message"),
    [
        ("moons/glow", {}, r"^moons/glow: .*moons/ffjord.*moons/ffjord-rnode"),
        ("mnist-density/glov", {}, r"^mnist-density/glov: .*mnist-density/glow"),
        ("mnist-densty/glow", {}, r"nearest data are .*mnist-density"),
        ("mnist-density/glow", {"model": {"depth": 3}}, r"^model\.depth: has no meaning"),
        ("mnist-density/glow", {"model": {"alpha": 0.5}}, r"^model\.alpha: .*less than 0\.5"),
        ("mnist-density/glow", {"model": {"alpha": 0.0}}, r"^model\.alpha: .*greater than"),
        ("mnist-density/glow", {"loss": {"speed": 1}}, r"^loss\.speed: is not a setting"),
        ("moons/ffjord", {"data": {"size": 8}}, r"^data\.size: has no meaning"),
        ("moons/ffjord", {"data": {"points": 0}}, r"^data\.points: .*greater than or equal to 1"),
        ("moons/ffjord", {"train": {"average": 1.0}}, r"^train\.average: .*less than 1"),
        ("moons/ffjord", {"train": {"warmup": -1}}, r"^train\.warmup: "),
    ],
)
def test_unknown_names_and_values_out_of_range_are_refused(experiment, changes, message):
    with pytest.raises(ConfigError, match=message) as error:
        resolve(experiment, changes=changes)
    assert "\n" not in str(error.value)


def test_penalties_of_a_flow_without_a_path_are_refused():
    config = tiny("digits-density/glow", {"loss": {"kinetic": 0.1}})
    with pytest.raises(ConfigError, match=r"^loss\.kinetic: glow has no path"):
        config.build(config.known_facts())


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    def missing(*_, **__):
        raise ImportError("No module named 'normflows'")

    monkeypatch.setattr(models, "Glow", missing)
    config = tiny("digits-density/glow")
    with pytest.raises(ConfigError, match=r"^glow: .*pip install 'bfno\[flows\]'"):
        config.build(config.known_facts())


def test_a_setting_of_other_samples_is_not_offered_as_its_own_remedy():
    with pytest.raises(ConfigError) as error:
        resolve("moons/ffjord", changes={"data": {"dir": "somewhere"}})
    assert str(error.value).startswith("data.dir: has no meaning in this experiment")


def test_ones_own_images_get_scales_that_are_bounded_and_enough_steps():
    for scale in SCALES:
        glow = resolve("folder-density/glow", scale=scale)
        assert glow.model.bound == 1 and glow.data.validation == 0.2
    for method in DENSITY_METHODS:
        train = resolve(f"folder-density/{method}").train
        assert 100 <= train.epochs * train.least_steps <= 400
    for data in ("mnist", "cifar10", "digits"):  # as they were published or compared
        config = resolve(f"{data}-density/glow")
        assert config.model.bound is None and config.train.least_steps == 1


def test_a_run_that_is_older_than_bounds_and_least_steps_continues_without(tmp_path):
    settings = resolve("folder-density/glow").as_dict()
    del settings["model"]["bound"], settings["train"]["least_steps"]
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(settings))
    config = read_written(file)
    assert config.model.bound is None and config.train.least_steps == 1


def test_a_refusal_of_the_solver_names_its_setting():
    config = tiny(
        "moons/ffjord", {"solver": {"method": "dopri5", "first_step": "last", "step": None}}
    )
    with pytest.raises(
        ConfigError, match=r"solver\.first_step or evaluation\.first_step: .* Fix: .*--set"
    ):
        config.build(config.known_facts())


def test_a_flow_needs_no_width():
    class Plain(Settings):
        kind: str = "plain"

    config = resolve("digits-density/glow", scale="smoke")
    plain = config.model_copy(update={"model": Plain()})
    assert plain.numbers_per_layer * config.model.width == config.numbers_per_layer
