import math
import subprocess
import sys

import pytest

from bfno.lab.data import DATA_SETS, find_data_set
from bfno.lab.errors import ConfigError


def test_the_data_sets_of_the_brief_are_there():
    assert {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "stl10"} <= set(DATA_SETS)


@pytest.mark.parametrize("data_set", DATA_SETS.values(), ids=lambda data_set: data_set.name)
def test_sizes_and_counts_agree(data_set):
    assert len(set(data_set.class_names)) == data_set.classes == len(data_set.class_names)
    pixels = math.prod(data_set.shape) * (data_set.train_count + data_set.test_count)
    if data_set.contents:
        # Labels and headers come on top of the pixels: at most two bytes an image and 48 in all.
        extra = sum(file.size for file in data_set.contents) - pixels
        assert 0 < extra <= 2 * (data_set.train_count + data_set.test_count) + 48


def test_every_download_is_encrypted_and_has_a_checksum():
    for data_set in DATA_SETS.values():
        for file in data_set.files:
            assert file.url.startswith("https://")
            assert file.digest.startswith("md5:") and len(file.digest) == 36


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"cifar-10: is not a data set.*nearest: cifar10$"):
        find_data_set("cifar-10")


def test_listing_loads_no_torch():
    program = (
        "import sys; sys.modules['torch'] = None\n"  # any import of torch now fails
        "import importlib.util as u\n"
        "import types; p = types.ModuleType('bfno'); p.__path__ = [sys.argv[1]]\n"
        "sys.modules['bfno'] = p\n"
        "from bfno.lab.data import DATA_SETS; print(len(DATA_SETS))"
    )
    import bfno

    done = subprocess.run(
        [sys.executable, "-c", program, *bfno.__path__], capture_output=True, text=True, timeout=300
    )
    assert done.stdout == f"{len(DATA_SETS)}\n", done.stderr
