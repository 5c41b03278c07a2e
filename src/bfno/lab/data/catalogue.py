"""The data sets, the names of their files, and where the official files come from.

This module imports no torch, so that a program can list the data sets at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bfno.lab.errors import ConfigError, nearest_names

__all__ = ["DATA_SETS", "DataFile", "DataSet", "Download", "RemoteFile", "find_data_set"]


@dataclass(frozen=True)
class Download:
    """A file to download.

    Attributes:
        name: Name it gets on disk.
        url: Official address.
        digest: Published checksum, as `algorithm:hexadecimal`; `None` if there is none.
        size: Bytes; `None` if the size was not published.
    """

    name: str
    url: str
    digest: str | None
    size: int | None


@dataclass(frozen=True)
class RemoteFile(Download):
    """A file to download, with size and checksum known.

    Attributes:
        name: Name it gets on disk.
        url: Official address.
        digest: Published checksum, as `algorithm:hexadecimal`.
        size: Bytes.
    """

    digest: str
    size: int


@dataclass(frozen=True)
class DataFile:
    """A file that a reader needs, unpacked.

    The checksum is that of the content, so it also holds for a file that was unpacked or repacked.

    Attributes:
        name: Official name.
        size: Bytes of the official file.
        digest: Checksum, as `algorithm:hexadecimal`; `None` if none was published.
        spellings: Names under which the file is found, the preferred one first.
    """

    name: str
    size: int
    digest: str | None
    spellings: tuple[str, ...]


@dataclass(frozen=True)
class DataSet:
    """A data set for image classification.

    Attributes:
        name: Name on the command line, and of its folder.
        title: Name in prose.
        shape: Channels, height and width of an image.
        class_names: Name of each class, by its label.
        train_count: Images in the training part.
        test_count: Images in the test part.
        homepage: Address of its authors' description.
        licence: Their terms of use.
        format: Layout of its files; see `_READERS` of `bfno.lab.data.store`.
        files: The files to download; empty for a set that comes with a library.
        contents: The files that the reader needs; empty like `files`.
        archive_folder: Folder inside the official archive, for a set that comes as one.
        names_file: File with the class names, which may be missing.
        extras: Further small files of the archive, which may be missing.
        pickled: Files by which the official version in Python's pickle format is recognised.
    """

    name: str
    title: str
    shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train_count: int
    test_count: int
    homepage: str
    licence: str
    format: str = "bundled"
    files: tuple[RemoteFile, ...] = ()
    contents: tuple[DataFile, ...] = ()
    archive_folder: str | None = None
    names_file: str | None = None
    extras: tuple[str, ...] = ()
    pickled: tuple[str, ...] = ()

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def archive(self) -> RemoteFile | None:
        """The archive that holds every file, if the set comes as one."""
        return self.files[0] if self.archive_folder else None


_Checksums = tuple[int, str, str]  # size and md5 of the packed file, sha256 of the unpacked one


def _idx(
    base: str, checksums: tuple[_Checksums, _Checksums, _Checksums, _Checksums]
) -> tuple[tuple[RemoteFile, ...], tuple[DataFile, ...]]:
    """The four files of MNIST and of sets in its format."""
    remote, contents = [], []
    names = {
        "train-images-idx3-ubyte": 16 + 60_000 * 28 * 28,
        "train-labels-idx1-ubyte": 8 + 60_000,
        "t10k-images-idx3-ubyte": 16 + 10_000 * 28 * 28,
        "t10k-labels-idx1-ubyte": 8 + 10_000,
    }
    for (name, size), (packed, md5, sha256) in zip(names.items(), checksums, strict=True):
        dotted = name.replace("-idx", ".idx")
        spellings = (f"{name}.gz", name, f"{dotted}.gz", dotted)
        remote.append(RemoteFile(f"{name}.gz", f"{base}{name}.gz", f"md5:{md5}", packed))
        contents.append(DataFile(name, size, f"sha256:{sha256}", spellings))
    return tuple(remote), tuple(contents)


def _archive(url: str, md5: str, size: int) -> tuple[RemoteFile, ...]:
    return (RemoteFile(url.rpartition("/")[2], url, f"md5:{md5}", size),)


def _plain(name: str, size: int, digest: str | None) -> DataFile:
    return DataFile(name, size, digest, (name,))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_MNIST_FILES, _MNIST_CONTENTS = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    (
        (
            9_912_422,
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        ),
        (
            28_881,
            "d53e105ee54ea40749a09fcbcd1e9432",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        (
            1_648_877,
            "9fb629c4189551a2d022fa330f9573f3",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        ),
        (
            4_542,
            "ec29112dd5afa0611ce80d1b7f02629c",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    ),
)

_FASHION_FILES, _FASHION_CONTENTS = _idx(
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    (
        (
            26_421_880,
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        ),
        (
            29_515,
            "25c81989df183df01b3e8a0aad5dffbe",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        (
            4_422_102,
            "bef4ecab320f06d8554ea6380940ec79",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        ),
        (
            5_148,
            "bb300cfdad3c16e7a12a480ee83cd310",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
)

_CIFAR10_BATCHES = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

_CIFAR10_NAMES = _words("airplane automobile bird cat deer dog frog horse ship truck")
_STL10_NAMES = _words("airplane bird car cat deer dog horse monkey ship truck")
_CIFAR100_NAMES = _words("""
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup
dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange
orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum rabbit
raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip
turtle wardrobe whale willow_tree wolf woman worm
""")

_DIGITS = tuple("0123456789")
_TORONTO = "https://www.cs.toronto.edu/~kriz/"

DATA_SETS: Mapping[str, DataSet] = {
    data_set.name: data_set
    for data_set in (
        DataSet(
            "digits",
            "scikit-learn's handwritten digits",
            (1, 8, 8),
            _DIGITS,
            train_count=1438,
            test_count=359,
            homepage="https://archive.ics.uci.edu/dataset/80",
            licence="CC BY 4.0; part of scikit-learn",
        ),
        DataSet(
            "mnist",
            "MNIST",
            (1, 28, 28),
            _DIGITS,
            train_count=60_000,
            test_count=10_000,
            homepage="http://yann.lecun.com/exdb/mnist/",
            licence="none stated; made from NIST's public databases",
            format="idx",
            files=_MNIST_FILES,
            contents=_MNIST_CONTENTS,
        ),
        DataSet(
            "fashion-mnist",
            "Fashion-MNIST",
            (1, 28, 28),
            (
                "T-shirt/top",
                "Trouser",
                "Pullover",
                "Dress",
                "Coat",
                "Sandal",
                "Shirt",
                "Sneaker",
                "Bag",
                "Ankle boot",
            ),
            train_count=60_000,
            test_count=10_000,
            homepage="https://github.com/zalandoresearch/fashion-mnist",
            licence="MIT",
            format="idx",
            files=_FASHION_FILES,
            contents=_FASHION_CONTENTS,
        ),
        DataSet(
            "cifar10",
            "CIFAR-10",
            (3, 32, 32),
            _CIFAR10_NAMES,
            train_count=50_000,
            test_count=10_000,
            homepage=f"{_TORONTO}cifar.html",
            licence="none stated; its makers ask to be cited",
            format="cifar",
            files=_archive(
                f"{_TORONTO}cifar-10-binary.tar.gz",
                "c32a1d4ab5d03f1284b67883e8d87530",
                170_052_171,
            ),
            contents=tuple(
                _plain(name, 10_000 * 3073, f"sha256:{sha256}")
                for name, sha256 in _CIFAR10_BATCHES.items()
            ),
            archive_folder="cifar-10-batches-bin",
            names_file="batches.meta.txt",
            pickled=("cifar-10-batches-py", "cifar-10-python.tar.gz", "data_batch_1"),
        ),
        DataSet(
            "cifar100",
            "CIFAR-100, fine labels",
            (3, 32, 32),
            _CIFAR100_NAMES,
            train_count=50_000,
            test_count=10_000,
            homepage=f"{_TORONTO}cifar.html",
            licence="none stated; its makers ask to be cited",
            format="cifar",
            files=_archive(
                f"{_TORONTO}cifar-100-binary.tar.gz",
                "03b5dce01913d631647c71ecec9e9cb8",
                168_513_733,
            ),
            contents=(
                _plain("train.bin", 50_000 * 3074, None),
                _plain("test.bin", 10_000 * 3074, None),
            ),
            archive_folder="cifar-100-binary",
            names_file="fine_label_names.txt",
            pickled=("cifar-100-python", "cifar-100-python.tar.gz"),
        ),
        DataSet(
            "stl10",
            "STL-10",
            (3, 96, 96),
            _STL10_NAMES,
            train_count=5_000,
            test_count=8_000,
            homepage="https://cs.stanford.edu/~acoates/stl10/",
            licence="none stated; its makers ask to be cited",
            format="stl",
            files=_archive(
                "https://ai.stanford.edu/~acoates/stl10/stl10_binary.tar.gz",
                "91f7769df0f17e558f3565bffb0c7dfb",
                2_640_397_119,
            ),
            contents=(
                _plain("train_X.bin", 5_000 * 27_648, "md5:918c2871b30a85fa023e0c44e0bee87f"),
                _plain("train_y.bin", 5_000, "md5:5a34089d4802c674881badbb80307741"),
                _plain("test_X.bin", 8_000 * 27_648, "md5:7f263ba9f9e0b06b93213547f721ac82"),
                _plain("test_y.bin", 8_000, "md5:36f9794fa4beb8a2c72628de14fa638e"),
            ),
            archive_folder="stl10_binary",
            names_file="class_names.txt",
            extras=("fold_indices.txt",),
        ),
    )
}
"""Every data set by its name."""


def find_data_set(name: str) -> DataSet:
    """Return the data set of that name.

    Raises:
        ConfigError: If there is none; the message names the nearest ones.

    Example:
        >>> find_data_set("cifar10").shape
        (3, 32, 32)
    """
    if name in DATA_SETS:
        return DATA_SETS[name]
    nearest = nearest_names(name, DATA_SETS)
    raise ConfigError(
        name, "is not a data set", f"use one of {', '.join(DATA_SETS)}; nearest: {nearest[0]}"
    )
