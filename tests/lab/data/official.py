"""Writes small files in the official layouts, byte by byte and without the package's help."""

import gzip
import struct
from pathlib import Path

from bfno.lab.data import DATA_SETS

FASHION_OR_MNIST = ("train", "t10k")


def pixel(image: int, channel: int, row: int, column: int) -> int:
    """A value that changes if any two axes are swapped."""
    return (31 * image + 50 * channel + 3 * row + 7 * column) % 256


def plane(image: int, channel: int, height: int, width: int) -> bytes:
    return bytes(pixel(image, channel, r, q) for r in range(height) for q in range(width))


def idx_images(count: int, magic: int = 0x803) -> bytes:
    return struct.pack(">IIII", magic, count, 28, 28) + b"".join(
        plane(i, 0, 28, 28) for i in range(count)
    )


def idx_labels(count: int, magic: int = 0x801) -> bytes:
    return struct.pack(">II", magic, count) + bytes(i % 10 for i in range(count))


def write_mnist(folder: Path, train: int = 12, test: int = 5, packed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        for name, data in (
            (f"{part}-images-idx3-ubyte", idx_images(count)),
            (f"{part}-labels-idx1-ubyte", idx_labels(count)),
        ):
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(data, 1))
            else:
                (folder / name).write_bytes(data)
    return folder


def cifar_record(image: int, labels: tuple[int, ...]) -> bytes:
    return bytes(labels) + b"".join(plane(image, c, 32, 32) for c in range(3))


def cifar10_files(each: int = 2) -> dict[str, bytes]:
    names = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
    return {
        name: b"".join(cifar_record(i, (i % 10,)) for i in range(each * batch, each * (batch + 1)))
        for batch, name in enumerate(names)
    }


def cifar100_files(train: int = 4, test: int = 3) -> dict[str, bytes]:
    # The coarse label comes first; it must not be taken for the fine one.
    return {
        "train.bin": b"".join(cifar_record(i, (i % 20, 99 - i)) for i in range(train)),
        "test.bin": b"".join(cifar_record(i, (i % 20, 50 + i)) for i in range(test)),
    }


def stl10_files(train: int = 3, test: int = 2) -> dict[str, bytes]:
    def images(count: int) -> bytes:
        return bytes(
            pixel(i, c, row, column)
            for i in range(count)
            for c in range(3)
            for column in range(96)
            for row in range(96)
        )

    def labels(count: int) -> bytes:
        return bytes(1 + i % 10 for i in range(count))

    return {
        "train_X.bin": images(train),
        "train_y.bin": labels(train),
        "test_X.bin": images(test),
        "test_y.bin": labels(test),
    }


FILES = {"cifar10": cifar10_files, "cifar100": cifar100_files, "stl10": stl10_files}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def tar_entry(name: str, data: bytes = b"", kind: bytes = b"0", link: str = "") -> bytes:
    """One entry of a tar file, its header built from the format's table of fields."""
    fields = [
        name.encode().ljust(100, b"\0"),
        b"0000644\0" + 2 * b"0000000\0",
        b"%011o\0" % len(data),
        b"%011o\0" % 0,
        b" " * 8,
        kind,
        link.encode().ljust(100, b"\0"),
        b"ustar\0" + b"00",
    ]
    header = b"".join(fields).ljust(512, b"\0")
    header = header[:148] + b"%06o\0 " % sum(header) + header[156:]
    return header + data + bytes(-len(data) % 512)


def tar_gz(*entries: bytes) -> bytes:
    return gzip.compress(b"".join(entries) + bytes(1024), 1)


def official_archive(name: str) -> bytes:
    folder = DATA_SETS[name].archive_folder
    files = FILES[name]()
    return tar_gz(
        tar_entry(f"{folder}/", kind=b"5"),
        tar_entry(f"{folder}/readme.html", b"<p>not needed</p>"),
        *(tar_entry(f"{folder}/{file}", data) for file, data in files.items()),
    )
