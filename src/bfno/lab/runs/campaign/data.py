"""Whether the files are there that experiments would read."""

from __future__ import annotations

from pathlib import Path

from bfno.lab.data import DATA_SETS, data_folder, locate
from bfno.lab.data.activity import find_activity
from bfno.lab.data.physionet import find_physionet
from bfno.lab.errors import DataError
from bfno.lab.experiments.density.experiment import DENSITY_DATA
from bfno.lab.experiments.series.data import SeriesDataSettings

__all__ = ["missing_files"]


def missing_files(data: str, data_dir: Path | None = None) -> DataError | None:
    """Why experiments on these data could not start; None if nothing is missing.

    Args:
        data: What stands before the slash of an experiment.
        data_dir: Where the files of data sets are; see `bfno.lab.data.data_folder`.
    """
    root, images = data_folder(data_dir), DENSITY_DATA.get(data, data)
    try:
        if data == "activity":
            find_activity(root)
        elif data == "physionet":
            find_physionet(root, SeriesDataSettings(name="physionet").sets)
        elif images in DATA_SETS:
            locate(images, data_dir)
    except DataError as error:
        return error
    return None
