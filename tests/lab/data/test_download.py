import hashlib
import shutil
import subprocess

import pytest

from bfno.lab.data import DATA_SETS, RemoteFile, get, load, store
from bfno.lab.data.download import Patience, download
from bfno.lab.errors import DataError
from tests.lab.data import official
from tests.lab.data.faulty_server import Behaviour, serving

pytest.importorskip("pooch")
PIECE = 1 << 14  # what is read at once; less than that is lost when a connection breaks
DATA = bytes(range(256)) * 400
# A busy machine lets a good server wait, too: only with one that stalls is there no patience.
PATIENT = Patience(connect=60, stall=60, attempts=3, pause=0.01)
HASTY = Patience(connect=60, stall=0.3, attempts=3, pause=0.01)


def remote(data: bytes = DATA, name: str = "file.bin") -> RemoteFile:
    return RemoteFile(
        name, "https://official/file.bin", f"md5:{hashlib.md5(data).hexdigest()}", len(data)
    )


def try_download(folder, behaviour, file=None, **options):
    with serving(behaviour) as url:
        patience = HASTY if behaviour.stalls else PATIENT
        return download(file or remote(), folder, url=url, patience=patience, **options)


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_alone(tmp_path):
    told = []
    path = try_download(tmp_path, Behaviour(DATA), progress=lambda *news: told.append(news))
    assert path == tmp_path / "file.bin" and path.read_bytes() == DATA
    assert names(tmp_path) == ["file.bin"]
    assert told[-1] == ("file.bin", len(DATA), len(DATA))


def test_a_right_file_is_not_downloaded_again(tmp_path):
    (tmp_path / "file.bin").write_bytes(DATA)
    behaviour = Behaviour(DATA)
    try_download(tmp_path, behaviour)
    assert behaviour.asked == []


def test_a_wrong_file_is_replaced(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"old")
    assert try_download(tmp_path, Behaviour(DATA)).read_bytes() == DATA


def test_a_broken_download_continues_where_it_stopped(tmp_path):
    behaviour = Behaviour(DATA, cuts=[2 * PIECE, PIECE])
    assert try_download(tmp_path, behaviour).read_bytes() == DATA
    assert behaviour.sent == [2 * PIECE, PIECE, len(DATA) - 3 * PIECE]
    assert behaviour.asked == [None, f"bytes={2 * PIECE}-", f"bytes={3 * PIECE}-"]


def test_a_later_program_continues_with_the_part(tmp_path):
    with pytest.raises(DataError):
        try_download(tmp_path, Behaviour(DATA, cuts=[PIECE, PIECE, PIECE]))
    assert names(tmp_path) == ["file.bin.part"]
    behaviour = Behaviour(DATA)
    assert try_download(tmp_path, behaviour).read_bytes() == DATA
    assert behaviour.sent == [len(DATA) - 3 * PIECE] and names(tmp_path) == ["file.bin"]


def test_a_part_that_is_already_whole_needs_no_server(tmp_path):
    (tmp_path / "file.bin.part").write_bytes(DATA)
    behaviour = Behaviour(DATA)
    assert try_download(tmp_path, behaviour).read_bytes() == DATA
    assert behaviour.asked == []


def test_a_server_without_ranges_starts_over(tmp_path):
    behaviour = Behaviour(DATA, cuts=[40_000], ranges=False)
    assert try_download(tmp_path, behaviour).read_bytes() == DATA
    assert behaviour.sent == [40_000, len(DATA)]


@pytest.mark.parametrize("stale", [b"not this file", DATA[:-1] + b"?", DATA + b"more"])
def test_a_stale_part_is_thrown_away(tmp_path, stale):
    (tmp_path / "file.bin.part").write_bytes(stale)
    assert try_download(tmp_path, Behaviour(DATA)).read_bytes() == DATA


def test_a_server_that_answers_with_another_range_is_not_believed(tmp_path):
    (tmp_path / "file.bin.part").write_bytes(DATA[:1000])
    behaviour = Behaviour(DATA, wrong_range=True)
    assert try_download(tmp_path, behaviour).read_bytes() == DATA
    assert behaviour.asked == ["bytes=1000-", None]


FAULTS = {
    "cuts it off": (Behaviour(DATA, cuts=[9] * 9), "the connection broke off"),
    "stalls": (Behaviour(DATA, cuts=[9] * 9, stalls=True), "no connection|does not answer"),
    "sends a web page": (Behaviour(b"<html>", content_type="text/html; charset=utf-8"), "web page"),
    "has it no longer": (Behaviour(b"", status=404), "answers 404"),
    "is overloaded": (Behaviour(b"", status=503), "answers 503"),
    "sends other bytes": (Behaviour(DATA[::-1]), "does not have the published checksum"),
    "sends more": (Behaviour(DATA, extra=b"!"), "sends more than the file"),
    "sends nothing": (Behaviour(b""), "it ended after 0"),
    "redirects to a file": (Behaviour(DATA, redirect="file:///etc/passwd"), "not encrypted"),
    "redirects to itself": (Behaviour(DATA, redirect="/file"), "redirects without end"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_appears_under_the_final_name_if_the_server(tmp_path, fault):
    behaviour, message = FAULTS[fault]
    with pytest.raises(DataError, match=message) as caught:
        try_download(tmp_path, behaviour, fix="put it there by hand")
    assert not (tmp_path / "file.bin").exists()
    assert str(caught.value).endswith("Fix: put it there by hand")
    assert "\n" not in str(caught.value)


def test_a_wrong_file_stays_until_the_right_one_is_there(tmp_path):
    (tmp_path / "file.bin").write_bytes(b"old")
    with pytest.raises(DataError):
        try_download(tmp_path, Behaviour(DATA[::-1]))
    assert (tmp_path / "file.bin").read_bytes() == b"old"


def test_a_redirect_is_followed(tmp_path):
    assert try_download(tmp_path, Behaviour(DATA, redirect="/moved")).read_bytes() == DATA


def test_an_encrypted_address_never_leads_to_an_open_one(tmp_path, monkeypatch):
    certificate = self_signed(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    folder = tmp_path / "data"
    with serving(Behaviour(DATA)) as open_url:
        redirecting = Behaviour(DATA, redirect=open_url)
        with serving(redirecting, certificate) as url, pytest.raises(DataError, match="encrypted"):
            download(remote(), folder, url=url, patience=PATIENT)
    assert redirecting.asked == [None] and not (folder / "file.bin").exists()
    with serving(Behaviour(DATA), certificate) as url:  # the same server is fine without it
        assert download(remote(), folder, url=url, patience=PATIENT).read_bytes() == DATA


def test_without_network_one_line_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "download", impatient(download))
    addresses = {file.name: "http://127.0.0.1:9/" for file in DATA_SETS["mnist"].files}
    with pytest.raises(DataError) as caught:
        get("mnist", tmp_path, sources=addresses)
    text = str(caught.value)
    assert "no connection to 127.0.0.1:9" in text and "\n" not in text
    assert all(file.name in text for file in DATA_SETS["mnist"].files)
    assert f"into {tmp_path / 'mnist'} by hand" in text
    assert list((tmp_path / "mnist").iterdir()) == []


def test_get_fetches_only_what_is_missing_or_wrong(tmp_path, shared_folder):
    folder = tmp_path / "mnist"
    shutil.copytree(shared_folder / "data" / "mnist", folder)
    folder.chmod(0o755)
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    data = labels.read_bytes()
    labels.unlink()
    labels.write_bytes(data[:100])
    behaviour = Behaviour(data)
    with serving(behaviour) as url:
        assert get("mnist", tmp_path, sources={labels.name: url}) == folder
    assert behaviour.sent == [len(data)] and labels.read_bytes() == data


def test_get_unpacks_an_archive_and_removes_it(tmp_path, monkeypatch):
    data = official.official_archive("cifar100")
    use_as_official(monkeypatch, "cifar100", data)
    behaviour = Behaviour(data)
    with serving(behaviour) as url:
        folder = get("cifar100", tmp_path, sources={"cifar-100-binary.tar.gz": url})
        get("cifar100", tmp_path, sources={"cifar-100-binary.tar.gz": url})
    assert names(folder) == ["test.bin", "train.bin"] and len(behaviour.asked) == 1
    assert load("cifar100", tmp_path).train.labels.tolist() == [99, 98, 97, 96]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"mnist: cannot be written .*--data-dir"):
        get("mnist", tmp_path)


def test_a_second_download_of_the_same_file_waits_its_turn(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with open(tmp_path / "file.bin.part", "ab") as part:
        fcntl.flock(part, fcntl.LOCK_EX)
        with pytest.raises(DataError, match="is being downloaded by another process"):
            try_download(tmp_path, Behaviour(DATA))


def impatient(function):
    return lambda *given, **options: function(*given, **options, patience=PATIENT)


def use_as_official(monkeypatch, name: str, archive: bytes) -> None:
    """Let the small archive be the official one."""
    from dataclasses import replace

    data_set = DATA_SETS[name]
    files = (remote(archive, data_set.files[0].name),)
    sizes = {file: len(data) for file, data in official.FILES[name]().items()}
    contents = tuple(
        replace(file, size=sizes[file.name], digest=None) for file in data_set.contents
    )
    small = replace(data_set, files=files, contents=contents)
    monkeypatch.setitem(DATA_SETS, name, small)


def self_signed(folder):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", folder / "key", "-out", folder / "certificate"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    both = folder / "both.pem"
    both.write_text((folder / "key").read_text() + (folder / "certificate").read_text())
    return both
