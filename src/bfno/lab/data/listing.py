"""Lists the image files of a folder by class, and what is left out."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bfno.lab.data.pixels import SUFFIXES
from bfno.lab.data.reading import refusing_damage
from bfno.lab.errors import DataError, first_names

__all__ = ["ImageFile", "LeftOut", "Listing", "files_below", "images_below", "list_images"]

_logger = logging.getLogger(__name__)
_OTHER_NAMES_FOR_TEST = ("val", "valid", "validation")
_HIDDEN = ("hidden file or folder", "hidden files or folders")
_LINKED = ("linked folder", "linked folders")
_OUTSIDE = ("image outside of the ", "images outside of the ")
_EMPTY = ("class folder without images", "class folders without images")
_OTHER = ("file of another kind", "files of other kinds")
_UNREADABLE = ("unreadable image", "unreadable images")


class ImageFile(NamedTuple):
    """An image file.

    Attributes:
        name: Its path below the listed folder.
        label: Its class.
        size: Its size in bytes.
        modified: When it was written, renamed or touched, in nanoseconds.
    """

    name: str
    label: int
    size: int
    modified: int


@dataclass
class LeftOut:
    """The things left out of a folder, for a note.

    Attributes:
        names: Names of the things left out, by the singular and plural of their kind.
    """

    names: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: tuple[str, str], *names: str) -> None:
        """Note things of a kind."""
        if names:
            self.names.setdefault(kind, []).extend(names)

    def add_unreadable(self, names: list[str]) -> None:
        """Note images that cannot be decoded."""
        self.add(_UNREADABLE, *names)

    def say(self, folder: Path) -> None:
        """Report in one line if anything was left out."""
        if self.names:
            parts = [
                f"{len(found):,} {kind[len(found) > 1]} ({first_names(sorted(found), 3)})"
                for kind, found in self.names.items()
            ]
            _logger.warning("%s: left out %s", folder, ", ".join(parts))


@dataclass(frozen=True)
class Listing:
    """The images of a folder, not yet read.

    Attributes:
        folder: The folder.
        classes: Name of each class, by its label.
        train: Those for training, in the order of their names.
        test: Those for testing; None if the folder has no such part.
        left_out: Everything else in the folder.
    """

    folder: Path
    classes: tuple[str, ...]
    train: tuple[ImageFile, ...]
    test: tuple[ImageFile, ...] | None
    left_out: LeftOut

    @property
    def files(self) -> tuple[ImageFile, ...]:
        """All of them."""
        return self.train + (self.test or ())


def list_images(folder: Path, *, labelled: bool = True, nested: bool = True) -> Listing:
    """List the images of a folder.

    They are in `folder/train` and `folder/test`, or in one of `folder/train` and `folder`.

    Args:
        folder: The folder.
        labelled: Whether each of those holds a folder for each class.
        nested: Whether images of a class may be in subfolders.

    Raises:
        DataError: If the folder is not as described, or cannot be read.
    """
    if not os.path.isdir(folder):
        raise DataError(folder, "is not a folder", "name a folder of images")
    walk = _Walk(folder, nested or not labelled)
    find = walk.classes if labelled else walk.unlabelled
    if not os.path.isdir(folder / "train"):
        classes, train = find("")
        return Listing(folder, classes, train, None, walk.left_out)
    if not os.path.isdir(folder / "test"):
        for name in _OTHER_NAMES_FOR_TEST:
            if os.path.isdir(folder / name):
                raise DataError(folder, f"has train and {name}, but no test", f"rename {name}")
    parts = [name for name in ("train", "test") if os.path.isdir(folder / name)]
    walk.look_outside("", parts, "folders train and test" if parts[1:] else "folder train")
    classes, train = find("train")
    test = None
    if "test" in parts:
        others, test = find("test")
        if odd := sorted(set(classes) ^ set(others)):
            why = f"train and test differ in the classes {', '.join(odd)}"
            raise DataError(folder, why, "give both parts the same class folders")
    return Listing(folder, classes, train, test, walk.left_out)


def images_below(folder: Path) -> list[Path]:
    """All images in a folder and below it, in the order of their names; says what else is there.

    Raises:
        DataError: If there are none, or it cannot be read.
    """
    files, left_out = files_below(folder, SUFFIXES, ("image", "images"))
    left_out.say(folder)
    return files


def files_below(
    folder: Path, suffixes: Collection[str], words: tuple[str, str], *, nested: bool = True
) -> tuple[list[Path], LeftOut]:
    """All files of a kind in a folder, in the order of their names, and what else is there.

    Args:
        folder: The folder.
        suffixes: Their suffixes.
        words: What one of them is called, and what several are.
        nested: Whether to look into its folders.

    Raises:
        DataError: If there are none, or it cannot be read.
    """
    walk = _Walk(folder, nested, suffixes, words)
    _, files = walk.unlabelled("")
    return [folder / file.name for file in files], walk.left_out


class _Walk:
    """Searches a folder, and notes what it leaves out.

    Args:
        folder: The folder.
        nested: Whether to look into the folders of a class folder.
        suffixes: How the names of wanted files end.
        words: What one of them is called, and what several are.
    """

    def __init__(
        self,
        folder: Path,
        nested: bool,
        suffixes: Collection[str] = SUFFIXES,
        words: tuple[str, str] = ("image", "images"),
    ) -> None:
        self.folder, self.nested = folder, nested
        self.suffixes, self.words = tuple(suffixes), words
        self.left_out = LeftOut()
        self._seen: set[str] = set()

    def classes(self, part: str) -> tuple[tuple[str, ...], tuple[ImageFile, ...]]:
        """Names of the classes in a part of the folder, and all their images."""
        fix = "put the images of each class into its own folder"
        place = self.folder / part
        with refusing_damage(place, fix):
            names = [entry.name for entry in self._visible(part) if self._is_class(entry)]
            self.look_outside(part, names, "class folders")
            found = {name: _in_order(self._below(_joined(part, name))) for name in names}
        empty = [name for name in names if not found[name]]
        self.left_out.add(_EMPTY, *(_joined(part, name) for name in empty))
        kept = [name for name in names if found[name]]
        if len(kept) < 2:
            self.left_out.say(self.folder)
            why = f"has {len(names) or 'no'} class folder{'s' * (len(names) != 1)}"
            if empty:
                why += f", {len(empty)} without images ({first_names(empty, 3)})"
            raise DataError(place, why, f"{fix}; at least two classes")
        files = [
            file._replace(label=label) for label, name in enumerate(kept) for file in found[name]
        ]
        return tuple(kept), tuple(files)

    def unlabelled(self, part: str) -> tuple[tuple[str, ...], tuple[ImageFile, ...]]:
        """No classes, and all images in a part of the folder and below it."""
        fix = f"name a folder with {self.words[1]} in it ({', '.join(sorted(self.suffixes))})"
        with refusing_damage(self.folder / part, fix):
            files = _in_order(self._below(part))
            if not files:
                self.left_out.say(self.folder)
                raise DataError(self.folder / part, f"holds no {self.words[1]}", fix)
        return (), files

    def look_outside(self, part: str, folders: Collection[str], of: str) -> None:
        """Note the images and other things beside some folders."""
        for entry in self._visible(part):
            name, is_folder = _joined(part, entry.name), _is_folder(entry)
            if is_folder and entry.name not in folders and not entry.is_symlink():
                outside = [file.name for file in self._below(name)]
            elif is_folder:
                if entry.name not in folders:
                    self.left_out.add(_LINKED, name)
                continue
            else:
                outside = [file.name for file in self._file(entry, name)]
            self.left_out.add((_OUTSIDE[0] + of, _OUTSIDE[1] + of), *outside)

    def _is_class(self, entry: os.DirEntry[str]) -> bool:
        if not _is_folder(entry):
            return False
        # A link to a folder above this one would be a class of all the others' images.
        real = os.path.realpath(entry.path)
        return not f"{os.path.realpath(self.folder)}{os.sep}".startswith(f"{real}{os.sep}")

    def _below(self, name: str) -> Iterator[ImageFile]:
        """The images in a folder and, if requested, below it; links to folders are not followed."""
        for entry in self._visible(name):
            inner = _joined(name, entry.name)
            if not _is_folder(entry):
                yield from self._file(entry, inner)
            elif entry.is_symlink():
                self.left_out.add(_LINKED, inner)
            elif self.nested:
                yield from self._below(inner)
            else:
                deeper = _Walk(self.folder, True, self.suffixes, self.words)._below(inner)
                one, several = self.words
                kind = f"{one} in a nested folder", f"{several} in nested folders"
                self.left_out.add(kind, *(file.name for file in deeper))

    def _file(self, entry: os.DirEntry[str], name: str) -> Iterator[ImageFile]:
        """A file, if its name is of the requested kind."""
        if name.lower().endswith(self.suffixes) and os.path.isfile(entry.path):
            about = entry.stat()
            # A file that was renamed, or given its old time back, has a new time of status.
            changed = max(about.st_mtime_ns, about.st_ctime_ns)
            yield ImageFile(name, 0, about.st_size, changed)
        else:
            self.left_out.add(_OTHER, name)

    def _visible(self, name: str) -> list[os.DirEntry[str]]:
        """List a folder in the order of names, without hidden entries."""
        with os.scandir(self.folder / name) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        if name not in self._seen:  # a folder may be looked at twice
            self._seen.add(name)
            hidden = (one.name for one in entries if one.name.startswith("."))
            self.left_out.add(_HIDDEN, *(_joined(name, one) for one in hidden))
        return [entry for entry in entries if not entry.name.startswith(".")]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # Unlike the method of an entry, this answers also where a link leads in a circle.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _in_order(files: Iterable[ImageFile]) -> tuple[ImageFile, ...]:
    """A key that orders paths folder by folder."""
    return tuple(sorted(files, key=lambda file: file.name.split("/")))
