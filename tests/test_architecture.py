"""The design of the package holds, and every check that says so is able to fail."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import architecture
from tests.conftest import REPOSITORY

PACKAGE = REPOSITORY / "src" / "bfno"
HEAVY = ["scipy", "sklearn", "matplotlib", "accelerate", "torchdiffeq"]


def test_imports_follow_the_direction_of_the_design():
    assert architecture.wrong_directions(PACKAGE) == []


def test_no_module_imports_itself_through_others():
    assert architecture.cycles(PACKAGE) == []


def test_modules_are_named_after_their_content():
    assert architecture.forbidden_names(PACKAGE) == []


def test_every_public_name_is_documented():
    assert architecture.undocumented(PACKAGE) == []


def test_every_public_name_exists():
    for name in architecture.modules(PACKAGE):
        if name.endswith("__main__"):
            continue
        module = importlib.import_module(name)
        missing = [
            public for public in getattr(module, "__all__", []) if not hasattr(module, public)
        ]
        assert missing == [], name


def test_files_are_written_through_one_door():
    assert (
        architecture.writers(PACKAGE)
        == {
            "bfno.lab.files": "the door",
            "bfno.lab.data.download": "adds to a partial file, named once it is whole",
            "bfno.ode.native": "a library in the compiler's cache, named once it is whole",
        }.keys()
    )


def test_files_are_locked_in_one_place():
    assert architecture.calls(PACKAGE, {"flock", "lockf"}, of={"fcntl"}) == {"bfno.lab.files"}


def test_writer_check_finds(tmp_path):
    files = {
        "lab/runs/a.py": "def f(p):\n    open(p, 'wb')",
        "lab/runs/b.py": "path.write_text('x')",
        "lab/runs/c.py": "import torch\ntorch.save(x, 'y')",
        "lab/runs/d.py": "open(p, mode='a')",
        "lab/runs/e.py": "import os\nos.open(p, os.O_WRONLY | os.O_CREAT)",
        "lab/runs/reads.py": "open(p)\nopen(p, 'rb')",
    }
    found = architecture.writers(_sample(tmp_path, files))
    assert found == {f"bfno.lab.runs.{name}" for name in "abcde"}


def test_nothing_unpickles_but_the_import_of_released_weights():
    found = architecture.calls(PACKAGE, {"load"}, of={"torch", "pickle", "joblib"})
    assert found == {"bfno.lab.runs.released"}


def test_importing_the_package_loads_no_heavy_dependency():
    assert _heavy_modules_after("import bfno") == []


def test_version_is_the_same_everywhere():
    import bfno

    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    assert bfno.__version__ == _declared_version() == _newest_version(changelog)


def test_the_extra_all_leaves_out_only_what_the_project_itself_needs():
    text = (REPOSITORY / "pyproject.toml").read_text()
    extras = text.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    names = set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE))
    found = re.search(r'^all = \["bfno\[([\w,]+)\]"\]$', extras, re.MULTILINE)
    assert found and {*found[1].split(",")} == names - {"all", "peers", "dev"}


def test_pyright_includes_only_folders_that_exist():
    declared = re.search(r"\[tool\.pyright\]\ninclude = \[(.+)\]", _pyproject())
    assert declared is not None
    folders = re.findall(r'"(.+?)"', declared[1])
    assert folders and all((REPOSITORY / folder).is_dir() for folder in folders)


BAD_IMPORTS = [
    ("layers/a.py", "from bfno.ode import solve"),
    ("layers/a.py", "from ..ode import solve"),
    ("layers/a.py", "def f():\n    import bfno.ode.solve"),
    ("layers/a.py", "from bfno import ode"),
    ("layers/a.py", "from bfno import BFNO"),
    ("ode/a.py", "import importlib\nimportlib.import_module('bfno.layers')"),
    ("fields/a.py", "from bfno.dynamics import FirstOrder"),
    ("dynamics/a.py", "from bfno.layers import BFNO"),
    ("dynamics/a.py", "from bfno.fields import ConvField"),
    ("dynamics/a.py", "from bfno.fields.interface_of_others import x"),
    ("lab/views/report.py", "from bfno.models import ImageClassifier"),
    ("models/a.py", "from bfno.lab.errors import ConfigError"),
    ("lab/experiments/a.py", "from bfno.lab.runs import fit"),
    ("surprise/a.py", ""),
]


@pytest.mark.parametrize(("file", "source"), BAD_IMPORTS)
def test_import_check_finds(tmp_path, file, source):
    package = _sample(tmp_path, {file: source, "ode/solve.py": "", "ode/__init__.py": ""})
    assert len(architecture.wrong_directions(package)) == 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("layers/a.py", "from .spectral import x"),
        ("layers/a.py", "import torch, numpy"),
        ("fields/a.py", "from bfno.layers import BFNO"),
        ("dynamics/a.py", "from bfno.fields.interface import VectorField"),
        ("lab/runs/a.py", "from bfno.lab.experiments.tasks import Task"),
        ("__init__.py", "from bfno.lab.cli import main"),
    ],
)
def test_import_check_accepts(tmp_path, file, source):
    assert architecture.wrong_directions(_sample(tmp_path, {file: source})) == []


def test_cycle_check_finds_one_hidden_in_a_function(tmp_path):
    files = {
        "ode/a.py": "from bfno.ode.b import g",
        "ode/b.py": "def g():\n    from .c import h",
        "ode/c.py": "from bfno.ode import a",
        "ode/d.py": "from bfno.ode import a",
    }
    found = architecture.cycles(_sample(tmp_path, files))
    assert found == ["import cycle: bfno.ode.a, bfno.ode.b, bfno.ode.c"]


def test_cycle_check_finds_a_module_that_imports_its_own_package(tmp_path):
    files = {"ode/__init__.py": "from .a import f", "ode/a.py": "from bfno.ode import g"}
    assert architecture.cycles(_sample(tmp_path, files)) == ["import cycle: bfno.ode, bfno.ode.a"]


@pytest.mark.parametrize("file", ["ode/utils.py", "layers/_helpers.py", "core/solve.py"])
def test_name_check_finds(tmp_path, file):
    assert len(architecture.forbidden_names(_sample(tmp_path, {file: ""}))) == 1


def test_docstring_check_follows_re_exports(tmp_path):
    files = {
        "__init__.py": "from .ode import f, g, LIMIT\n__all__ = ['f', 'g', 'LIMIT']",
        "ode/__init__.py": "from .a import f, g, LIMIT",
        "ode/a.py": "LIMIT = 1\ndef f(): ...\ndef g():\n    'Documented.'",
    }
    assert architecture.undocumented(_sample(tmp_path, files)) == ["bfno.f has no docstring"]


def test_heavy_import_check_finds():
    assert _heavy_modules_after("import scipy") == ["scipy"]


def test_version_check_reads_the_newest_entry():
    changelog = "# Changelog\n\n## [0.2.0] - unreleased\n\n## [0.1.0] - 2020-01-01\n"
    assert _newest_version(changelog) == "0.2.0"


def _sample(folder: Path, files: dict[str, str]) -> Path:
    package = folder / "bfno"
    for name, source in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(source)
    return package


def _heavy_modules_after(statement: str) -> list[str]:
    program = f"{statement}\nimport sys\nprint(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.split()


def _pyproject() -> str:
    return (REPOSITORY / "pyproject.toml").read_text()


def _declared_version() -> str:
    # A regular expression, because Python 3.10 has no TOML reader.
    declared = re.search(r'^version = "(.+)"$', _pyproject(), re.MULTILINE)
    assert declared is not None
    return declared[1]


def _newest_version(changelog: str) -> str:
    newest = re.search(r"^## \[(.+?)\]", changelog, re.MULTILINE)
    assert newest is not None
    return newest[1]


def test_an_installed_package_has_every_file_that_it_reads():
    (declared,) = re.findall(r"^bfno = \[(.*)\]$", _pyproject(), re.MULTILINE)
    patterns = re.findall('"([^"]+)"', declared)
    others = [
        file.relative_to(PACKAGE)
        for file in PACKAGE.rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc")
    ]
    assert len(others) > 5
    assert [file for file in others if not any(file.match(pattern) for pattern in patterns)] == []
