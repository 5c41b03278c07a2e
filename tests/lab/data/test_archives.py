"""Hostile and damaged archives, and that a real tar program's archives are read."""

import gzip
import io
import tarfile

import pytest

from bfno.lab.data.archives import read_members
from bfno.lab.errors import DataError
from tests.lab.data.official import tar_entry, tar_gz
from tests.lab.data.unpacking import counted

WANTED = {"set/a.bin": 1000, "set/b.bin": 1000}


def read(tmp_path, archive: bytes) -> dict[str, bytes]:
    path = tmp_path / "set.tar.gz"
    path.write_bytes(archive)
    try:
        found = {name: data.tobytes() for name, data in read_members(path, WANTED, "get it again")}
    finally:
        # Reading any archive leaves nothing behind.
        assert [left.name for left in tmp_path.iterdir()] == ["set.tar.gz"]
    return found


GOOD = tar_entry("set/a.bin", b"first") + tar_entry("set/b.bin", bytes(700))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_other_programs_are_read(tmp_path, form):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=form) as archive:
        archive.addfile(tarfile.TarInfo("long" * 20 + "/" + "name" * 20), io.BytesIO())
        for name, data in {
            "set/other": b"x",
            "set/a.bin": b"first",
            "set/b.bin": bytes(512),
        }.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(data), 1.5  # a fraction makes PAX add a header
            archive.addfile(info, io.BytesIO(data))
    assert read(tmp_path, buffer.getvalue()) == {"set/a.bin": b"first", "set/b.bin": bytes(512)}


def test_the_hand_made_archive_is_a_good_one(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(tar_gz(GOOD))) as archive:
        assert archive.getnames() == list(WANTED)
    assert read(tmp_path, tar_gz(GOOD)) == {"set/a.bin": b"first", "set/b.bin": bytes(700)}


IGNORED = [
    tar_entry("../../outside", b"evil"),
    tar_entry("/etc/passwd", b"evil"),
    tar_entry("set/../../outside", b"evil"),
    tar_entry("set/./a.bin", b"evil"),
    tar_entry("SET/A.BIN", b"evil"),
    tar_entry("set", kind=b"2", link="/etc"),
    tar_entry("set/link", kind=b"2", link="/etc/passwd"),
    tar_entry("set/hard", kind=b"1", link="/etc/passwd"),
    tar_entry("set/fifo", kind=b"6"),
    tar_entry("set/device", kind=b"3"),
    tar_entry("set/block", kind=b"4"),
    tar_entry("\x1b[2J\nname", b"evil"),
    b"".join(tar_entry(f"chain{k}", kind=b"2", link=f"chain{k + 1}") for k in range(100)),
    b"".join(tar_entry(f"many{k}") for k in range(3000)),
]


@pytest.mark.parametrize("entry", IGNORED, ids=range(len(IGNORED)))
def test_entries_that_were_not_requested_are_passed_over(tmp_path, entry):
    assert read(tmp_path, tar_gz(entry, GOOD, entry))["set/a.bin"] == b"first"


REFUSED = {
    "no regular file": [
        tar_entry("set/a.bin", kind=kind, link="/etc/passwd") for kind in (b"1", b"2")
    ]
    + [tar_entry("set/a.bin", kind=kind) for kind in (b"3", b"4", b"5", b"6", b"S", b"L", b"x")],
    "there twice": [GOOD + tar_entry("set/a.bin", b"second")],
    "too large": [tar_entry("set/a.bin", bytes(1001))],
    "wrong checksum": [b"\x01" + GOOD[1:]],
    "no octal number": [b"junk" * 300, GOOD[:148] + b"zzzzzzzz" + GOOD[156:]],
}


@pytest.mark.parametrize(
    ("why", "entry"), [(why, entry) for why, entries in REFUSED.items() for entry in entries]
)
def test_a_wanted_file_in_a_wrong_form_is_refused(tmp_path, why, entry):
    with pytest.raises(DataError, match=why):
        read(tmp_path, tar_gz(entry))


@pytest.mark.parametrize("keep", [0, 5, 20, 60, -20, -5])
def test_a_truncated_archive_is_refused(tmp_path, keep):
    archive = tar_gz(GOOD, tar_entry("set/other", bytes(range(256)) * 20))
    with pytest.raises(DataError, match=r"set\.tar\.gz: is damaged"):
        read(tmp_path, archive[:keep])


def test_a_negative_or_endless_size_is_refused(tmp_path):
    for field in (b"-0000000001\0", b"77777777777\0", b"\x80" + b"\xff" * 11):
        header = bytearray(tar_entry("set/other"))
        header[124:136] = field
        header[148:156] = b" " * 8
        header[148:156] = b"%06o\0 " % sum(header)
        with pytest.raises(DataError, match="damaged"):
            read(tmp_path, tar_gz(bytes(header), GOOD))


def test_a_bomb_is_left_before_most_of_it_is_unpacked(tmp_path):
    # 300 MB of zeros in an entry that was not requested, and after the end of the archive.
    zeros = gzip.compress(bytes(30_000_000), 9) * 10
    header = bytearray(tar_entry("set/other"))
    header[124:136] = b"%011o\0" % 300_000_000
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    for bomb in (gzip.compress(bytes(header)) + zeros, tar_gz(GOOD) + zeros):
        refused = pytest.raises(DataError, match="unpacks to far more than it should")
        with counted(gzip.GzipFile) as pieces, refused:
            read(tmp_path, bomb)
        assert 0 < sum(pieces) < 75_000_000
