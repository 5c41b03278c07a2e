"""The names of densities, and what their recipes may say."""

import pytest

from bfno.lab.data import DATA_SETS, TOYS
from bfno.lab.experiments.density.experiment import (
    DENSITY_DATA,
    DENSITY_METHODS,
    POINT_METHODS,
    DensityExperiment,
    _group,
)
from bfno.lab.experiments.images import presets
from bfno.lab.experiments.images.presets import IMAGE_DATA
from bfno.lab.experiments.presets import read_presets

GROUPS = {"grey", "colour", "points"}


def test_every_shape_of_points_and_every_image_set_has_a_density():
    assert set(DENSITY_DATA.values()) == {*TOYS, *IMAGE_DATA, "folder"}
    assert POINT_METHODS == ("ffjord", "ffjord-rnode", "ffjord-bfno-rnode")


def test_folders_are_read_as_they_are_asked_for():
    assert (_group("folder", True), _group("folder", False)) == ("colour", "grey")
    assert _group("digits", True) == "grey"


@pytest.mark.parametrize(("method", "other"), [("glow", "mnist"), ("ffjord", "cifar10")])
def test_a_data_set_like_another_has_its_densities(monkeypatch, method, other):
    monkeypatch.setitem(DATA_SETS, "invented", DATA_SETS[other])
    monkeypatch.setitem(DENSITY_DATA, "invented-density", "invented")
    monkeypatch.setitem(presets._LIKE, "invented", other)
    settings = DensityExperiment.preset("invented-density", method, {"scale": "cpu"})
    expected = DensityExperiment.preset(f"{other}-density", method, {"scale": "cpu"})
    # Whether flipped images are other images of the same kind depends on what they show.
    expected["data"].pop("flip", None)
    expected["data"]["name"] = "invented"
    assert settings == expected


def test_no_part_of_the_recipes_is_idle():
    """A misspelt name of data or methods would silently change nothing."""
    recipes = read_presets("density")
    names = {*DENSITY_DATA.values(), "memory"}  # points that an estimator was given
    assert set(recipes["groups"]) == GROUPS
    assert set(recipes["data"]) <= names
    assert set(recipes["methods"]) == set(DENSITY_METHODS)
    pairs = {f"{one}/{method}" for one in GROUPS | names for method in DENSITY_METHODS}
    assert set(recipes["pairs"]) <= pairs
    for scale in recipes["scales"].values():
        assert set(scale) <= pairs | GROUPS | names | set(DENSITY_METHODS) | {"all"}
