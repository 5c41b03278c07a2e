"""Data sets on disk: find, download, check and load them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from bfno.lab.data.catalogue import DataSet, RemoteFile, find_data_set
from bfno.lab.data.checks import FileCheck
from bfno.lab.data.cifar import read_cifar
from bfno.lab.data.contents import (
    Content,
    again,
    file_matches,
    find_files,
    read_archive,
    read_file,
    read_files,
    state_of,
)
from bfno.lab.data.digits import read_digits
from bfno.lab.data.download import Progress, download
from bfno.lab.data.idx import read_idx
from bfno.lab.data.images import ImageSet, Split
from bfno.lab.data.labels import class_names
from bfno.lab.data.npz import read_npz
from bfno.lab.data.places import data_folder
from bfno.lab.data.reading import one_line
from bfno.lab.data.series_catalogue import SERIES_SETS
from bfno.lab.data.series_store import check_series, get_series
from bfno.lab.data.stl import read_stl
from bfno.lab.errors import ConfigError, DataError
from bfno.lab.files import write_atomically

__all__ = ["FileCheck", "check", "data_folder", "get", "load", "locate"]

_Reader = Callable[[Mapping[str, Content], DataSet], tuple[Split, Split]]
_READERS: Mapping[str, _Reader] = {"idx": read_idx, "cifar": read_cifar, "stl": read_stl}
_BUNDLED = {"digits": read_digits}  # sets that come with a library
_NPZ = {"cifar10", "cifar100"}
_logger = logging.getLogger(__name__)


def locate(name: str, data_dir: Path | None = None) -> Path:
    """Return the folder that holds a data set.

    It is searched for in `DIR/NAME`, in the folder of the official archive beside or inside it, and
    in `DIR` itself.

    Args:
        name: Name of the data set.
        data_dir: Folder with all data sets; see `data_folder`.

    Raises:
        ConfigError: If there is no data set of that name.
        DataError: If it is missing; the message says which files to put where.
    """
    data_set, root = find_data_set(name), data_folder(data_dir)
    if not data_set.files:
        return root
    folders, fetch = _folders(data_set, root), f"`bfno data get {name}`"
    for folder in folders:
        if _form(folder, data_set):
            return folder
    for folder in folders:
        found = find_files(folder, data_set)
        if found:
            lacking = [file.name for file in data_set.contents if file.name not in found]
            why = f"lacks {', '.join(lacking)} of {data_set.title}"
            raise DataError(folder, why, f"{fetch}, or {_by_hand(data_set, folder)}")
        pickled = [file for file in data_set.pickled if os.path.exists(folder / file)]
        if pickled:
            why = f"{pickled[0]} is {data_set.title} in pickles, which are never opened"
            raise DataError(folder, why, f"{fetch}, or {_by_hand(data_set, root / name)}")
    fix = f"{fetch}, or {_by_hand(data_set, root / name)}"
    raise DataError(root / name, f"{data_set.title} is missing", fix)


def get(
    name: str,
    data_dir: Path | None = None,
    *,
    progress: Progress | None = None,
    sources: Mapping[str, str] | None = None,
) -> Path:
    """Download missing or wrong files of a data set, and return its folder.

    Args:
        name: Name of the data set.
        data_dir: Folder with all data sets; see `data_folder`.
        progress: Called with the file's name, the bytes so far and the total bytes.
        sources: Other addresses of the official files, by their names.

    Raises:
        ConfigError: If there is no data set of that name, or pooch is missing.
        DataError: If a file cannot be downloaded or written.
    """
    if name in SERIES_SETS:
        return get_series(name, data_folder(data_dir), progress=progress, sources=sources)
    data_set, root = find_data_set(name), data_folder(data_dir)
    if not data_set.files:
        return root
    checks = check(name, data_dir)
    folder = checks[0].path.parent
    if all(found.state == "ok" for found in checks):
        return folder
    right = {
        file.name
        for file, found in zip(data_set.contents, checks, strict=False)
        if found.state == "ok"
    }
    fix = f"try again, or {_by_hand(data_set, folder)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in data_set.files:
            if file.name.removesuffix(".gz") in right:
                continue
            url = (sources or {}).get(file.name)
            path = download(file, folder, fix=fix, url=url, progress=progress)
            if data_set.archive:
                _unpack(path, data_set)
                path.unlink()
    except (OSError, ValueError) as error:  # the latter for a path with a zero byte
        fix = "make room or give yourself access, or choose another folder with --data-dir"
        raise DataError(folder, f"cannot be written ({one_line(error)})", fix) from error
    return folder


def check(name: str, data_dir: Path | None = None) -> list[FileCheck]:
    """Compare the files of a data set with the official ones.

    Args:
        name: Name of the data set.
        data_dir: Folder with all data sets; see `data_folder`.

    Returns:
        One entry for each file; empty for a data set that comes with a library.

    Raises:
        ConfigError: If there is no data set of that name.
    """
    if name in SERIES_SETS:
        return check_series(name, data_folder(data_dir))
    data_set, root = find_data_set(name), data_folder(data_dir)
    folders = _folders(data_set, root)
    whole = [folder for folder in folders if _form(folder, data_set)]
    partial = [folder for folder in folders if find_files(folder, data_set)]
    folder = [*whole, *partial, root / name][0]
    form = _form(folder, data_set)
    if data_set.archive and form == "archive":
        return [_check_archive(folder / data_set.archive.name, data_set.archive, data_set)]
    if form == "npz":
        path = folder / f"{name}.npz"
        detail = "there is no official file of this kind to compare with"
        return [FileCheck(path, "ok", path.stat().st_size, detail)]
    return _check_files(folder, data_set)


def load(name: str, data_dir: Path | None = None, *, official: bool | None = None) -> ImageSet:
    """Load a data set.

    Args:
        name: Name of the data set.
        data_dir: Folder with all data sets; see `data_folder`.
        official: Whether to accept only the official files, by size and checksum. By default, a
            folder in which no file has the official length is taken for the user's own data in that
            layout, with a note; if only some are shorter, they count as cut off.

    Raises:
        ConfigError: If there is no data set of that name, or nothing to read it from.
        DataError: If it is missing or a file is damaged.

    Example:
        >>> load("digits").train.images.shape
        torch.Size([1438, 1, 8, 8])
    """
    data_set, folder = find_data_set(name), locate(name, data_dir)
    if not data_set.files:
        if name not in _BUNDLED:
            why = "has neither files in the catalogue nor a reader that brings it along"
            raise ConfigError(name, why, "add its files to its entry in DATA_SETS")
        return ImageSet(*_BUNDLED[name](), data_set.class_names)
    if _form(folder, data_set) == "npz":
        train, test = read_npz(folder / f"{name}.npz", data_set)
        if official and (len(train), len(test)) != (
            data_set.train_count,
            data_set.test_count,
        ):
            why = f"holds {len(train):,} and {len(test):,} images, not as many as {data_set.title}"
            raise DataError(folder / f"{name}.npz", why, again(data_set))
    else:
        train, test = _READERS[data_set.format](_contents(folder, data_set, official), data_set)
    return ImageSet(train, test, class_names(folder, data_set))


def _contents(folder: Path, data_set: DataSet, official: bool | None) -> dict[str, Content]:
    if data_set.archive and _form(folder, data_set) == "archive":
        path, digest = folder / data_set.archive.name, data_set.archive.digest
        if official is not False and not file_matches(path, digest, again(data_set)):
            raise DataError(path, "does not have the published checksum", again(data_set))
        return read_archive(path, data_set)
    contents = read_files(find_files(folder, data_set), data_set)
    if official is not False:
        states = {file.name: state_of(contents[file.name].data, file) for file in data_set.contents}
        if official is None and set(states.values()) == {"truncated"}:
            _logger.warning("%s: no official file of %s, but of its layout", folder, data_set.title)
            return contents
        for name, state in states.items():
            if state != "ok":
                raise contents[name].wrong(f"is not the official file ({state})")
    return contents


def _folders(data_set: DataSet, root: Path) -> list[Path]:
    """Folders where the files may be, in order of preference."""
    folders = [root / data_set.name, root]
    if data_set.archive_folder:
        folders[1:1] = [root / data_set.name / data_set.archive_folder]
        folders[2:2] = [root / data_set.archive_folder]
    return folders


def _form(folder: Path, data_set: DataSet) -> str | None:
    """The form of the data set in the folder: files, archive or npz; `None` if it is not there."""
    if data_set.contents and len(find_files(folder, data_set)) == len(data_set.contents):
        return "files"
    if data_set.archive and os.path.isfile(folder / data_set.archive.name):
        return "archive"
    if data_set.name in _NPZ and os.path.isfile(folder / f"{data_set.name}.npz"):
        return "npz"
    return None


def _by_hand(data_set: DataSet, folder: Path) -> str:
    names = ", ".join(file.name for file in data_set.files)
    base = data_set.files[0].url.rpartition("/")[0]
    return f"put {names} from {base}/ into {folder} by hand"


def _check_archive(path: Path, archive: RemoteFile, data_set: DataSet) -> FileCheck:
    size = path.stat().st_size
    if size != archive.size:
        state = "truncated" if size < archive.size else "too long"
        return FileCheck(path, state, size, f"the official archive has {archive.size:,} bytes")
    right = file_matches(path, archive.digest, again(data_set))
    return FileCheck(path, "ok" if right else "wrong checksum", size, archive.digest)


def _check_files(folder: Path, data_set: DataSet) -> list[FileCheck]:
    found, checks = find_files(folder, data_set), []
    for file in data_set.contents:
        path = found.get(file.name)
        if path is None:
            checks.append(FileCheck(folder / file.spellings[0], "missing", None, "not there"))
            continue
        size = path.stat().st_size
        try:
            state = state_of(read_file(path, file, again(data_set)).data, file)
            detail = file.digest or "only the size; no checksum was published"
            if state in {"truncated", "too long"}:
                detail = f"the official file has {file.size:,} bytes, unpacked"
        except DataError as error:
            state, detail = "unreadable", error.why
        checks.append(FileCheck(path, state, size, detail))
    return checks


def _unpack(archive: Path, data_set: DataSet) -> None:
    """Write the needed files beside the archive; each gets its name only when it is complete."""
    for name, content in read_archive(archive, data_set).items():
        write_atomically(archive.parent / name, content.data.tobytes())
