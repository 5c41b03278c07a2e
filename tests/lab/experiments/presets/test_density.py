"""The names of densities, and what their recipes may say."""

from bfno.lab.data import TOYS
from bfno.lab.experiments.family import read_recipes
from bfno.lab.experiments.presets import (
    DENSITY_DATA,
    DENSITY_METHODS,
    IMAGE_DATA,
    POINT_DATA,
    POINT_METHODS,
    density_group,
)

GROUPS = {"grey", "colour", "points"}


def test_every_shape_of_points_and_every_image_set_has_a_density():
    assert POINT_DATA == TOYS
    assert set(DENSITY_DATA.values()) == {*TOYS, *IMAGE_DATA, "folder"}
    assert set(POINT_METHODS) < set(DENSITY_METHODS)


def test_folders_are_read_as_they_are_asked_for():
    assert (density_group("folder"), density_group("folder", colour=False)) == ("colour", "grey")
    assert density_group("digits", colour=True) == "grey"


def test_no_part_of_the_recipes_is_idle():
    """A misspelt name of data or methods would silently change nothing."""
    recipes = read_recipes("density.yaml")
    names = {*DENSITY_DATA.values()}
    assert set(recipes["groups"]) == GROUPS
    assert set(recipes["data"]) <= names
    assert set(recipes["methods"]) == set(DENSITY_METHODS)
    pairs = {f"{one}/{method}" for one in GROUPS | names for method in DENSITY_METHODS}
    assert set(recipes["pairs"]) <= pairs
    for scale in recipes["scales"].values():
        assert set(scale) <= pairs | GROUPS | names | set(DENSITY_METHODS) | {"all"}
