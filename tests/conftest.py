"""Fixtures of the whole suite: double precision, a fixed seed, the optional shared folder."""

from pathlib import Path

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[1]
# Files that take longest. They come first: a worker that meets one at the end works on alone.
_LONGEST = ("test_gradients", "test_ways", "test_kills", "test_processes", "test_resume")
_LONGEST += ("test_failures", "test_gallery", "test_convergence", "test_features", "test_detest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


@pytest.fixture(autouse=True)
def double_precision():
    """Mathematics is tested in float64, where rounding does not hide a wrong formula."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def fixed_seed():
    """Each test draws the same numbers whether it runs alone or among the others."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Tests keep decoded images and parsed tables to themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """The folder with the authors' weights and real data, which a plain clone does not have."""
    folder = REPOSITORY.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs ../shared beside the repository, which is not there")
    return folder
