"""The known sets of irregular series, and where the official files come from.

This module imports no torch, so that a program can list the data sets at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bfno.lab.data.catalogue import Download

__all__ = ["SERIES_SETS", "SeriesSet"]


@dataclass(frozen=True)
class SeriesSet:
    """A data set of irregular series.

    Attributes:
        name: Name on the command line, and of its folder.
        title: Name in prose.
        features: Number of features.
        classes: Number of classes.
        by_row: Whether every row has a label; otherwise every series has one.
        amount: The amount of data, in words.
        homepage: Address of its authors' description.
        licence: Their terms of use.
        files: The files to download.
    """

    name: str
    title: str
    features: int
    classes: int
    by_row: bool
    amount: str
    homepage: str
    licence: str
    files: tuple[Download, ...]


_PHYSIONET = "https://physionet.org/files/challenge-2012/1.0.0/"
_PHYSIONET_FILES = ("set-a.tar.gz", "Outcomes-a.txt", "set-b.tar.gz", "Outcomes-b.txt")
_ACTIVITY = "https://archive.ics.uci.edu/ml/machine-learning-databases/00196/ConfLongDemo_JSI.txt"

SERIES_SETS: Mapping[str, SeriesSet] = {
    data_set.name: data_set
    for data_set in (
        SeriesSet(
            "physionet",
            "PhysioNet/CinC challenge 2012, sets a and b",
            features=41,
            classes=2,
            by_row=False,
            amount="4,000 + 4,000",
            homepage="https://physionet.org/content/challenge-2012/1.0.0/",
            licence="ODC-BY 1.0",
            files=tuple(
                Download(name, f"{_PHYSIONET}{name}", None, None) for name in _PHYSIONET_FILES
            ),
        ),
        SeriesSet(
            "activity",
            "UCI's localisation data for person activity",
            features=12,
            classes=7,
            by_row=True,
            amount="164,860 rows",
            homepage="https://archive.ics.uci.edu/dataset/196",
            licence="CC BY 4.0",
            files=(
                Download(
                    "ConfLongDemo_JSI.txt",
                    _ACTIVITY,
                    "md5:280a677ae0d673ec9a50ada480d8a529",
                    None,
                ),
            ),
        ),
    )
}
"""Every set of series by its name."""
