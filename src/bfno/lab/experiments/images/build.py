"""From settings to objects: the images and the model."""

from __future__ import annotations

from bfno.lab.data import ImageSet, Splits, divide, load, load_folder
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.images.settings import ImageConfig, ImageDataSettings
from bfno.lab.experiments.presets import ImageModel
from bfno.lab.experiments.presets.build import build_image_model
from bfno.models import ImageClassifier

__all__ = ["build_model", "load_data", "load_images"]


def load_data(config: ImageConfig) -> Splits:
    """Read the images of an experiment and divide them as its settings say.

    Raises:
        DataError: If files are missing or wrong.
        ConfigError: If the settings name no folder where they have to.
    """
    settings = config.data
    return divide(
        load_images(settings, config.seed),
        validation=settings.validation,
        seed=config.seed,
        train_limit=settings.train_limit,
        test_limit=settings.test_limit,
        size=settings.size,
    )


def load_images(settings: ImageDataSettings, seed: int, *, labelled: bool = True) -> ImageSet:
    """Read whole data sets, undivided.

    Args:
        settings: Which images.
        seed: Number that fixes the test part of a folder that has none.
        labelled: Whether a folder has to have classes.

    Raises:
        DataError: If files are missing or wrong.
        ConfigError: If the settings name no folder where they have to.
    """
    if settings.name != "folder":
        return load(settings.name, settings.dir)
    if settings.folder is None:
        raise ConfigError("data.folder", "is not set", "name your folder with --folder PATH")
    return load_folder(
        settings.folder,
        size=settings.shape[1],
        colour=settings.colour,
        test_fraction=settings.test_fraction,
        seed=seed,
        corrupt=settings.corrupt,
        labelled=labelled,
    )


def build_model(config: ImageConfig, classes: int) -> ImageClassifier:
    """Build the untrained model of an experiment, in single precision.

    Raises:
        ConfigError: If its parts do not fit.
    """
    solver = config.solver.model_dump()
    model = ImageModel(**config.model.model_dump())
    try:
        return build_image_model(model, config.data.shape, classes, **solver).float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "model", str(error).splitlines()[0], "change it with --set model.NAME=VALUE"
        ) from error
