"""What `import bfno` offers: its names, to programs and to editors, without loading anything."""

import ast
import importlib
import inspect
import json
import re
import subprocess
import sys

import pytest

import bfno
from tests.conftest import REPOSITORY

NAMES: list[str] = vars(bfno)["__all__"]
PARTS = {"layers", "fields", "dynamics", "ode", "models", "sklearn"}
EXTRAS = ("pydantic", "yaml", "accelerate", "safetensors", "sklearn", "typer", "pooch", "PIL")


def run(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_look_around_shows_the_public_names_and_loads_nothing():
    shown = json.loads(
        run(
            "import json, sys, bfno\n"
            "names = dir(bfno)\n"
            "assert not {'torch', 'numpy'} & {*sys.modules}, 'loaded'\n"
            "print(json.dumps(names))"
        )
    )
    names = [name for name in shown if not name.startswith("__")]
    assert set(names) == {*NAMES, *PARTS}
    assert not {"Any", "importlib", "TYPE_CHECKING", "annotations", "public", "program"} & {*names}


def test_looking_again_shows_the_same_once_everything_is_loaded():
    for name in NAMES:
        assert getattr(bfno, name) is not None
    names = {name for name in dir(bfno) if not name.startswith("__")}
    assert names == {*NAMES, *PARTS}


def test_parts_are_there_at_once():
    run("import bfno; assert bfno.ode.solve is bfno.solve")
    run("import bfno; assert bfno.models.flows.Flow is bfno.Flow")
    run("from bfno import *; solve, BFNO, train")


def test_the_solver_alone_loads_no_model():
    assert run("import sys, bfno; bfno.solve; print('bfno.models' in sys.modules)") == "False"


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="module 'bfno' has no attribute 'nothing'"):
        bfno.nothing  # pyright: ignore  # noqa: B018
    with pytest.raises(ImportError):
        from bfno import nothing  # pyright: ignore  # noqa: F401


def test_old_names_work_and_tell_the_new_one():
    with pytest.warns(DeprecationWarning, match=r"bfno.Generator is now called bfno.LatentGen"):
        assert bfno.Generator is bfno.LatentGenerator  # pyright: ignore


def test_editors_see_the_same_names_as_programs():
    tree = ast.parse((REPOSITORY / "src" / "bfno" / "__init__.py").read_text())
    typed = {
        alias.asname: f"{node.module}.{alias.name}"
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    loaded = {name: f"{home}.{name}" for name, home in vars(bfno)["_HOMES"].items()}
    assert typed == loaded | {part: f"bfno.{part}" for part in PARTS}


def test_type_checkers_know_signatures_and_refuse_unknown_names(tmp_path):
    pytest.importorskip("pyright")
    (tmp_path / "use.py").write_text(
        "import bfno\n"
        "reveal_type(bfno.solve)\n"
        "reveal_type(bfno.ode.solve)\n"
        "reveal_type(bfno.load('run', bfno.ImageClassifier))\n"
        "bfno.nothing\n"
    )
    words = ["-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "use.py"]
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(REPOSITORY / "src")]})
    )
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    said = [
        (one["severity"], one["message"]) for one in json.loads(done.stdout)["generalDiagnostics"]
    ]
    assert [severity for severity, _ in said] == ["information"] * 3 + ["error"]
    assert '"bfno.solve" is "(field: (...) -> Any' in said[0][1]
    assert "-> Solution[Any]" in said[1][1]
    assert said[2][1].endswith('is "ImageClassifier"')
    assert said[3][1] == '"nothing" is not a known attribute of module "bfno"'


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_public_name_has_a_docstring_with_an_example(name):
    thing = getattr(bfno, name)
    if not callable(thing) or thing.__module__.startswith("bfno.ode"):
        return  # data have no docstring
    if isinstance(thing, type) and issubclass(thing, BaseException):
        return  # errors are not made by users
    assert ">>>" in (inspect.getdoc(thing) or "")


@pytest.mark.parametrize(
    "call", ["bfno.train('digits/node')", "bfno.load('runs/x')", "bfno.resume('runs/x')"]
)
def test_without_the_extras_the_error_says_what_to_install(call):
    name = call.partition("(")[0]
    said = run(
        "import sys, bfno\n"
        f"for name in {EXTRAS}: sys.modules[name] = None\n"
        "try:\n"
        f"    {call}\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    assert said.startswith(f"{name} needs ")
    assert said.endswith("which is not installed; pip install 'bfno[train]'")


def test_without_the_extras_estimators_say_what_to_install():
    said = run(
        "import sys, bfno\n"
        f"for name in {EXTRAS}: sys.modules[name] = None\n"
        "try:\n"
        "    bfno.sklearn.ImageClassifier\n"
        "except ImportError as error:\n"
        "    print(error)"
    )
    assert re.fullmatch(r"bfno.sklearn needs \w+, which is .*; pip install 'bfno\[train\]'", said)


def test_an_estimator_and_the_model_of_the_same_name_are_two():
    assert bfno.sklearn.ImageClassifier is not bfno.ImageClassifier


def test_the_library_needs_none_of_the_extras():
    run(
        "import sys, bfno, torch\n"
        f"for name in {EXTRAS}: sys.modules[name] = None\n"
        "for name in bfno.__all__: getattr(bfno, name)\n"
        "bfno.solve(lambda t, y: -y, torch.ones(1), torch.tensor([0.0, 1.0]))"
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [("data", "data"), ("cli.main", "cli"), ("train.loop", "runs"), ("presets", "experiments")],
)
def test_modules_of_the_last_release_say_where_they_are_now(old, new):
    with pytest.raises(ModuleNotFoundError, match=rf"^bfno\.\w+ is now bfno\.lab\.{new};"):
        importlib.import_module(f"bfno.{old}")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'bfno\.nothing'"):
        importlib.import_module("bfno.nothing")
