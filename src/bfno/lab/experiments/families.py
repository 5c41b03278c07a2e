"""Which families of experiments there are."""

from __future__ import annotations

import difflib

from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density import DensityFamily
from bfno.lab.experiments.family import Family
from bfno.lab.experiments.images import ImageFamily
from bfno.lab.experiments.series import SeriesFamily

__all__ = ["FAMILIES", "family_of"]

FAMILIES: tuple[Family, ...] = (ImageFamily(), SeriesFamily(), DensityFamily())


def family_of(experiment: str) -> Family:
    """Return the family of an experiment, by the data before its slash.

    Raises:
        ConfigError: If nobody knows these data.

    Example:
        >>> family_of("mnist/node").config.__name__
        'ImageConfig'
    """
    data = experiment.partition("/")[0]
    for family in FAMILIES:
        if data in family.data:
            return family
    known = [name for family in FAMILIES for name in family.data]
    near = difflib.get_close_matches(data, known, n=3, cutoff=0.0)
    raise ConfigError(
        experiment,
        "is neither an experiment nor a YAML file",
        f"write data/method; the nearest data are {', '.join(near)}",
    )
