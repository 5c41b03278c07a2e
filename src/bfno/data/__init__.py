"""Images, irregular series and points as tensors: named data sets, one's own files, their division.

Each name is imported when it is first used, so that listing the data sets loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfno.data.catalogue import DATA_SETS, DataFile, DataSet, RemoteFile, find_data_set
    from bfno.data.checks import FileCheck
    from bfno.data.folders import load_folder, read_image
    from bfno.data.images import ImageSet, Split, Splits, divide, resized
    from bfno.data.ordering import length_batches
    from bfno.data.places import data_folder
    from bfno.data.protocols import SeriesSource, load_series
    from bfno.data.series import UNLABELLED, Scaling, Series, SeriesBatch, SeriesSplits
    from bfno.data.series_catalogue import SERIES_SETS, SeriesSet
    from bfno.data.series_files import SeriesTable, read_series
    from bfno.data.spirals import Motions, synthetic_series
    from bfno.data.stl import stl10_folds
    from bfno.data.store import check, get, load, locate
    from bfno.data.toys import TOYS, toy_points

__all__ = [
    "DATA_SETS",
    "SERIES_SETS",
    "TOYS",
    "UNLABELLED",
    "DataFile",
    "DataSet",
    "FileCheck",
    "ImageSet",
    "Motions",
    "RemoteFile",
    "Scaling",
    "Series",
    "SeriesBatch",
    "SeriesSet",
    "SeriesSource",
    "SeriesSplits",
    "SeriesTable",
    "Split",
    "Splits",
    "check",
    "data_folder",
    "divide",
    "find_data_set",
    "get",
    "length_batches",
    "load",
    "load_folder",
    "load_series",
    "locate",
    "read_image",
    "read_series",
    "resized",
    "stl10_folds",
    "synthetic_series",
    "toy_points",
]

_HOMES = {
    "bfno.data.catalogue": ("DATA_SETS", "DataFile", "DataSet", "RemoteFile", "find_data_set"),
    "bfno.data.checks": ("FileCheck",),
    "bfno.data.folders": ("load_folder", "read_image"),
    "bfno.data.images": ("ImageSet", "Split", "Splits", "divide", "resized"),
    "bfno.data.ordering": ("length_batches",),
    "bfno.data.places": ("data_folder",),
    "bfno.data.protocols": ("SeriesSource", "load_series"),
    "bfno.data.series": ("UNLABELLED", "Scaling", "Series", "SeriesBatch", "SeriesSplits"),
    "bfno.data.series_catalogue": ("SERIES_SETS", "SeriesSet"),
    "bfno.data.series_files": ("SeriesTable", "read_series"),
    "bfno.data.spirals": ("Motions", "synthetic_series"),
    "bfno.data.stl": ("stl10_folds",),
    "bfno.data.store": ("check", "get", "load", "locate"),
    "bfno.data.toys": ("TOYS", "toy_points"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
