"""From settings to objects: the samples and the flow."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bfno.lab.data import divide, toy_points
from bfno.lab.errors import ConfigError
from bfno.lab.experiments.density.settings import DensityConfig, PointsSettings
from bfno.lab.experiments.images.build import load_images
from bfno.lab.experiments.presets.build_density import Solving, build_flow
from bfno.lab.experiments.seeds import derive_seed
from bfno.models.flows import Flow

__all__ = ["DensityData", "build_model", "held_out_points", "load_data"]

# Every run is judged by the same points, whatever its seed.
_POINT_SEEDS = {"validation": 1, "test": 2}


@dataclass(frozen=True)
class DensityData:
    """Samples of a density, images as bytes or points as numbers, divided for training.

    Attributes:
        train: What the model learns from.
        validation: What decides between epochs, if anything does.
        test: What is looked at once, at the end.
    """

    train: Tensor
    validation: Tensor | None
    test: Tensor


def load_data(config: DensityConfig) -> DensityData:
    """Read or draw the samples of an experiment and divide them as its settings say.

    Raises:
        DataError: If files are missing or wrong.
        ConfigError: If the settings name no folder where they have to.
    """
    settings = config.data
    if isinstance(settings, PointsSettings):
        drawn = derive_seed(config.seed, "points") % 2**31
        return DensityData(
            toy_points(settings.name, settings.points, drawn),
            held_out_points(settings, "validation"),
            held_out_points(settings, "test"),
        )
    splits = divide(
        load_images(settings, config.seed, labelled=False),
        validation=settings.validation,
        seed=config.seed,
        train_limit=settings.train_limit,
        test_limit=settings.test_limit,
        size=settings.size,
        labelled=False,
    )
    validation = None if splits.validation is None else splits.validation.images
    return DensityData(splits.train.images, validation, splits.test.images)


def held_out_points(settings: PointsSettings, split: str) -> Tensor:
    """Points that no model is trained on, for `validation` or `test`."""
    return toy_points(settings.name, settings.held_out, _POINT_SEEDS[split])


def build_model(config: DensityConfig, event_shape: tuple[int, ...]) -> Flow:
    """Build the untrained flow of an experiment, in single precision.

    Raises:
        ConfigError: If its parts do not fit, or a package is missing.
    """
    weights = config.loss.model_dump()
    solving = Solving(
        config.solver.model_dump(),
        config.evaluation.model_dump(),
        tuple(name for name, weight in weights.items() if weight > 0),
    )
    if solving.penalties and config.model.kind != "continuous":
        what, why = f"loss.{solving.penalties[0]}", f"{config.model.kind} has no path to penalise"
        raise ConfigError(what, why, "leave it 0")
    try:
        return build_flow(config.model, event_shape, solving).float()
    except ImportError as error:
        why = "needs normflows, which is missing"
        raise ConfigError(config.method, why, "pip install 'bfno[flows]'") from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            "model", str(error).splitlines()[0], "change it with --set model.NAME=VALUE"
        ) from error
