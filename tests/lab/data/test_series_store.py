"""The known sets of series on disk: checked by content, downloaded, replaced when wrong."""

import hashlib
from dataclasses import replace

import pytest

from bfno.lab.data import SERIES_SETS, check, find_data_set, get, series_store, store
from bfno.lab.data.download import Patience, download
from bfno.lab.errors import ConfigError, DataError
from tests.lab.data import test_activity, test_physionet
from tests.lab.data.faulty_server import Behaviour, serving

QUICK = Patience(connect=2, stall=0.3, attempts=3, pause=0.01)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def small(monkeypatch):
    """Let three records, one death, be the official set a, and there be no other."""
    monkeypatch.setattr(series_store, "_RECORDS", 3)
    monkeypatch.setattr(series_store, "_DEATHS", {"a": 1})
    whole = SERIES_SETS["physionet"]
    monkeypatch.setitem(SERIES_SETS, "physionet", replace(whole, files=whole.files[:2]))
    quick = lambda *given, **options: download(*given, **options, patience=QUICK)  # noqa: E731
    monkeypatch.setattr(series_store, "download", quick)


def states(name, folder) -> list[str]:
    return [file.state for file in check(name, folder)]


def test_every_set_comes_encrypted_from_its_home():
    assert list(SERIES_SETS) == ["physionet", "activity"]
    for data_set in SERIES_SETS.values():
        assert all(file.url.startswith("https://") for file in data_set.files)
    assert {file.name for file in SERIES_SETS["physionet"].files} == {
        *("set-a.tar.gz", "set-b.tar.gz", "Outcomes-a.txt", "Outcomes-b.txt")
    }


def test_a_set_of_series_is_no_set_of_images():
    with pytest.raises(ConfigError, match="is not a data set"):
        find_data_set("physionet")


def test_records_are_checked_by_their_content(tmp_path, small):
    folder = test_physionet.write(tmp_path / "physionet")
    assert states("physionet", tmp_path) == ["ok", "ok"]
    detail = check("physionet", tmp_path)[0].detail
    assert "3 records parse, 1 deaths" in detail and "no published checksum" in detail
    (folder / "Outcomes-a.txt").write_text(
        (folder / "Outcomes-a.txt").read_text().replace(",1\n", ",0\n")
    )
    assert states("physionet", tmp_path) == ["wrong content"] * 2
    (folder / "set-a.tar.gz").write_bytes(b"\x1f\x8b broken")
    assert states("physionet", tmp_path) == ["unreadable"] * 2
    (folder / "set-a.tar.gz").unlink()
    assert states("physionet", tmp_path) == ["missing", "unchecked"]
    (folder / "Outcomes-a.txt").unlink()
    assert states("physionet", tmp_path) == ["missing", "missing"]


def test_a_folder_of_records_is_as_good_as_the_archive(tmp_path, small):
    test_physionet.write(tmp_path, packed=False)
    assert states("physionet", tmp_path) == ["ok", "ok"]
    assert get("physionet", tmp_path) == tmp_path


def test_activity_is_checked_by_its_checksum(tmp_path, monkeypatch):
    assert states("activity", tmp_path) == ["missing"]
    path = test_activity.write(tmp_path, *test_activity.steady("A01", 4))
    (found,) = check("activity", tmp_path)
    assert found.state == "wrong checksum" and "parses to 4 rows" in found.detail
    (file,) = SERIES_SETS["activity"].files
    digest = f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
    right = replace(SERIES_SETS["activity"], files=(replace(file, digest=digest),))
    monkeypatch.setitem(SERIES_SETS, "activity", right)
    assert states("activity", tmp_path) == ["ok"]
    path.write_text("nonsense\n")
    assert states("activity", tmp_path) == ["unreadable"]


def serve_set(folder, target, wrong: bytes | None = None):
    """Download set a from two servers that hold the files of a folder."""
    archive = (folder / "set-a.tar.gz").read_bytes() if wrong is None else wrong
    outcomes = (folder / "Outcomes-a.txt").read_bytes()
    with serving(Behaviour(archive)) as first, serving(Behaviour(outcomes)) as second:
        sources = {"set-a.tar.gz": first, "Outcomes-a.txt": second}
        return get("physionet", target, sources=sources)


def test_a_set_without_checksums_arrives_whole(tmp_path, small):
    pytest.importorskip("pooch")
    source = test_physionet.write(tmp_path / "source")
    assert serve_set(source, tmp_path / "new") == tmp_path / "new" / "physionet"
    names = sorted(path.name for path in (tmp_path / "new" / "physionet").iterdir())
    assert names == ["Outcomes-a.txt", "set-a.tar.gz"]
    assert states("physionet", tmp_path / "new") == ["ok", "ok"]


def test_a_wrong_file_is_replaced_once_the_new_one_is_there(tmp_path, small):
    pytest.importorskip("pooch")
    source = test_physionet.write(tmp_path / "source")
    target = test_physionet.write(tmp_path / "target" / "physionet")
    (target / "set-a.tar.gz").write_bytes(b"wrong")
    with pytest.raises(DataError):
        dead = {"set-a.tar.gz": "http://127.0.0.1:9/", "Outcomes-a.txt": "http://127.0.0.1:9/"}
        get("physionet", tmp_path / "target", sources=dead)
    assert (target / "set-a.tar.gz").read_bytes() == b"wrong"
    serve_set(source, tmp_path / "target")
    assert states("physionet", tmp_path / "target") == ["ok", "ok"]


def test_a_server_that_sends_something_else_is_found_out(tmp_path, small):
    pytest.importorskip("pooch")
    source = test_physionet.write(tmp_path / "source")
    with pytest.raises(DataError, match=r"is unreadable.*by hand"):
        serve_set(source, tmp_path / "new", wrong=b"something else")


def test_a_broken_download_of_unknown_size_continues_where_it_stopped(tmp_path):
    pytest.importorskip("pooch")
    data = bytes(range(256)) * 400
    file = replace(SERIES_SETS["physionet"].files[0], name="file")
    behaviour = Behaviour(data, cuts=[1 << 15])
    with serving(behaviour) as url:
        path = download(file, tmp_path, url=url, patience=QUICK)
    assert path.read_bytes() == data
    assert behaviour.asked == [None, f"bytes={1 << 15}-"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        store.get("activity", tmp_path / "file" / "x")


def test_the_real_sets_pass_and_the_real_slice_does_not(shared_folder):
    folder = shared_folder / "data"
    if not (folder / "physionet2012").is_dir():
        pytest.skip("needs PhysioNet 2012 in ../shared/data, which is not there")
    assert states("physionet", folder) == ["ok"] * 4
    assert states("activity", folder) == ["wrong checksum"]
