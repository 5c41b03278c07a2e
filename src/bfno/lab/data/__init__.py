"""Images, irregular series and points as tensors: named data sets, your own files, their splits.

Each name is imported when it is first used, so that listing the data sets loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bfno.lab.data.catalogue import DATA_SETS, DataFile, DataSet, RemoteFile, find_data_set
    from bfno.lab.data.checks import FileCheck
    from bfno.lab.data.folders import (
        FolderSource,
        load_folder,
        load_folder_splits,
        load_folder_test,
        read_image,
    )
    from bfno.lab.data.image_cache import telling
    from bfno.lab.data.images import ImageSet, Split, Splits, divide, divide_drawn, resized
    from bfno.lab.data.listing import files_below, images_below
    from bfno.lab.data.ordering import length_batches
    from bfno.lab.data.places import data_folder
    from bfno.lab.data.protocols import SeriesSource, divided_series, load_series, thinned
    from bfno.lab.data.series import UNLABELLED, Scaling, Series, SeriesBatch, SeriesSplits
    from bfno.lab.data.series_arrays import series_from_arrays
    from bfno.lab.data.series_catalogue import SERIES_SETS, SeriesSet
    from bfno.lab.data.series_files import SeriesTable, read_frame, read_series
    from bfno.lab.data.spirals import Motions, synthetic_series
    from bfno.lab.data.stl import stl10_folds
    from bfno.lab.data.store import check, get, load, locate
    from bfno.lab.data.table_file import FileFormat
    from bfno.lab.data.table_layout import TableLayout
    from bfno.lab.data.toys import TOYS, toy_points

__all__ = [
    "DATA_SETS",
    "SERIES_SETS",
    "TOYS",
    "UNLABELLED",
    "DataFile",
    "DataSet",
    "FileCheck",
    "FileFormat",
    "FolderSource",
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
    "TableLayout",
    "check",
    "data_folder",
    "divide",
    "divide_drawn",
    "divided_series",
    "files_below",
    "find_data_set",
    "get",
    "images_below",
    "length_batches",
    "load",
    "load_folder",
    "load_folder_splits",
    "load_folder_test",
    "load_series",
    "locate",
    "read_frame",
    "read_image",
    "read_series",
    "resized",
    "series_from_arrays",
    "stl10_folds",
    "synthetic_series",
    "telling",
    "thinned",
    "toy_points",
]

_HOMES = {
    "bfno.lab.data.catalogue": ("DATA_SETS", "DataFile", "DataSet", "RemoteFile", "find_data_set"),
    "bfno.lab.data.checks": ("FileCheck",),
    "bfno.lab.data.folders": (
        "FolderSource",
        "load_folder",
        "load_folder_splits",
        "load_folder_test",
        "read_image",
    ),
    "bfno.lab.data.image_cache": ("telling",),
    "bfno.lab.data.images": (
        "ImageSet",
        "Split",
        "Splits",
        "divide",
        "divide_drawn",
        "resized",
    ),
    "bfno.lab.data.listing": ("files_below", "images_below"),
    "bfno.lab.data.ordering": ("length_batches",),
    "bfno.lab.data.places": ("data_folder",),
    "bfno.lab.data.protocols": ("SeriesSource", "divided_series", "load_series", "thinned"),
    "bfno.lab.data.series": ("UNLABELLED", "Scaling", "Series", "SeriesBatch", "SeriesSplits"),
    "bfno.lab.data.series_catalogue": ("SERIES_SETS", "SeriesSet"),
    "bfno.lab.data.series_arrays": ("series_from_arrays",),
    "bfno.lab.data.series_files": ("SeriesTable", "read_frame", "read_series"),
    "bfno.lab.data.spirals": ("Motions", "synthetic_series"),
    "bfno.lab.data.stl": ("stl10_folds",),
    "bfno.lab.data.store": ("check", "get", "load", "locate"),
    "bfno.lab.data.table_file": ("FileFormat",),
    "bfno.lab.data.table_layout": ("TableLayout",),
    "bfno.lab.data.toys": ("TOYS", "toy_points"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
