"""The documents are true: their code runs, their commands work, their links lead somewhere.

Every page is worked through in order, in a folder of its own that `tests/world.py` furnishes. The
commands are the printed ones, made short: training runs take the scale `smoke`, one thread, one
epoch and few samples, which is a matter of seconds and does not change which words are understood;
tables are planned, not trained, and runs of this repository are put where they would train some.
"""

import contextlib
import glob
import io
import itertools
import os
import re
import runpy
import shlex
import sys
import types
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import typer

import bfno
from bfno.lab.cli import main
from bfno.lab.cli.commands import app
from bfno.lab.data import TOYS
from bfno.lab.experiments.density.experiment import DENSITY_METHODS
from bfno.lab.experiments.resolve import EXPERIMENTS, resolve
from bfno.lab.experiments.series.experiment import SERIES_METHODS
from bfno.lab.experiments.settings import setting_names
from bfno.lab.experiments.trees import read_settings
from bfno.ode import METHODS
from tests import documents, world
from tests.conftest import REPOSITORY
from tests.documents import PAGES, Block

FEW = [*("--set", "data.train_limit=40"), *("--set", "data.test_limit=20")]
SHORT = {
    "train": ["--scale", "smoke", "--set", "threads=1"],
    "demo": ["--scale", "smoke"],
    "sweep": [*("--scale", "smoke", "--trials", "2", "--epochs", "1"), *FEW],
    "table": ["--plan"],
}
# Commands that no test can run, by their first words; their words are checked all the same.
NOT_RUN = {
    "make": "sets up an environment",
    "pip": "installs packages",
    "pre-commit": "changes the clone",
    "python": "has a test of its own: tests/test_examples.py and the tests below",
    "tensorboard": "is another program, which serves until it is stopped",
    "torchrun": "starts several processes; tests/lab/experiments/test_processes.py does that",
    "bfno data get": "needs the network; tests/lab/data/test_store.py has a server of its own",
    "bfno data check": "compares with official checksums; tests/lab/data/test_store.py",
    "bfno models": "builds all models; tests/lab/cli/test_commands.py",
    "bfno results": "needs whole runs of a table; tests/lab/cli/test_show.py",
    "bfno bench": "measures for minutes; tests/benchmarks/test_bench.py",
}
SECTIONS = ("data", "model", "solver", "train", "loss", "evaluation")
LARGEST_FIGURE = 200_000


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A folder with all that a reader is expected to have."""
    world.furnish(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BFNO_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.set_default_dtype(torch.float32)  # what a reader has
    with mock.patch.dict(bfno.METHODS):  # a page may add a method, which ends with the page
        yield


def _commands(page: str) -> list[tuple[Block, list[str]]]:
    return [(block, words) for block in documents.blocks(page) for words in block.commands()]


def _is_run(words: list[str]) -> bool:
    return not any(words[: len(name.split())] == name.split() for name in NOT_RUN)


def _expanded(words: list[str]) -> list[str]:
    """What a shell makes of the words: file names in place of patterns."""
    found = [sorted(glob.glob(word)) if "*" in word else [word] for word in words]
    return [word for names in found for word in names]


def _run(block: Block) -> None:
    if block.language == "python":
        # Blank lines in front make a traceback point at the line of the page.
        source = "\n" * (block.line - 1) + block.text
        with warnings.catch_warnings():
            if "import lightning" in source:  # which looks for packages in ways that have aged
                pytest.importorskip("lightning")
                warnings.simplefilter("ignore")
            # A module that can be found: what compiles a function looks there for its globals.
            program = types.ModuleType("__main__")
            # This name alone: what the block imports stays, as torch allows no second import.
            with pytest.MonkeyPatch.context() as patch:
                patch.setitem(sys.modules, "__main__", program)
                exec(compile(source, block.page, "exec"), program.__dict__)
    for words in filter(_is_run, block.commands()):
        given = [*_expanded(words[1:]), *SHORT.get(words[1], [])]
        if words[1] == "train":
            # In the word that the page has for it: a command takes one of the two.
            given += ["--epochs", "1"] if "--epochs" in words else ["--set", "train.epochs=1"]
        if words[1] == "train" and words[2].partition("/")[0] not in TOYS:
            given += FEW
        if words[1] == "train" and words[2].startswith("mnist-density/"):
            given += ["--set", "data.size=14"]  # as without --scale, for the classifier of its page
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(given) == 0, f"{block.page}:{block.line}: {shlex.join(words)}"
        if words[1] == "table" and "--plan" not in words:
            world.leave_runs(printed.getvalue())


def _trains(page: str) -> bool:
    programs = any(
        {*words[1:2]} & {"train", "demo", "resume", "sweep"} for _, words in _commands(page)
    )
    texts = [block.text for block in documents.blocks(page)]
    return programs or any("bfno.train(" in text or "bfno.sklearn" in text for text in texts)


# Pages that train models take long; of these, README is what everyone tries first.
WORKED_THROUGH = [
    pytest.param(page, marks=[pytest.mark.slow] if _trains(page) and page != "README.md" else [])
    for page in PAGES
]


@pytest.mark.parametrize("page", WORKED_THROUGH)
def test_every_block_of_a_page_works_in_the_order_printed(page, reader):
    for block in documents.blocks(page):
        _run(block)


def _command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that some words name, and the words behind its name."""
    found: Any = typer.main.get_command(app)
    while words and words[0] in getattr(found, "commands", {}):
        found, words = found.commands[words[0]], words[1:]
    return found, words


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_has_words_that_exist(page):
    for block, words in _commands(page):
        where = f"{block.page}:{block.line}: {shlex.join(words)}"
        if words[0] == "torchrun":
            words = words[words.index("bfno") :]
        if words[0] == "make":
            assert re.search(f"^{words[1]}:", _makefile(), re.MULTILINE), where
        if words[0] == "bfno":
            command, rest = _command(words[1:])
            assert not getattr(command, "commands", None), where
            command.make_context(words[1], rest)
        if words[:2] in (["bfno", "train"], ["bfno", "config"]) and ".yaml" not in words[2]:
            settings = [value for word, value in itertools.pairwise(words) if word == "--set"]
            resolve(words[2], changes=read_settings(settings))


def _makefile() -> str:
    return (REPOSITORY / "Makefile").read_text()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_in_a_sentence_exists(page):
    for code in documents.inline_code(page):
        if code.startswith("bfno ") and "…" not in code:
            command, rest = _command(shlex.split(code)[1:])
            assert not getattr(command, "commands", None) or rest in ([], ["--help"]), code
            known = {option for one in command.params for option in one.opts} | {"--help"}
            given = {word.partition("=")[0] for word in rest if word.startswith("-")}
            assert given <= known, code


@pytest.mark.parametrize("page", PAGES)
def test_every_setting_in_a_sentence_exists(page):
    known = set().union(*map(setting_names, EXPERIMENTS))
    for code in documents.inline_code(page):
        for name in re.findall(rf"(?<![\w./])((?:{'|'.join(SECTIONS)})\.[a-z_]+)=", code):
            assert name in known, f"{page}: `{code}`"


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    for link in documents.links(page):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = PAGES[page].parent / path if path else PAGES[page]
        assert target.exists(), f"{page} links to {link}"
        if anchor:
            assert anchor in documents.anchors(target), f"{page} links to {link}"


def test_every_page_can_be_reached_from_the_readme():
    seen, waiting = set(), ["README.md"]
    while waiting:
        page = waiting.pop()
        if page in PAGES and page not in seen:
            seen.add(page)
            paths = (link.partition("#")[0] for link in documents.links(page))
            folder = os.path.dirname(page)
            waiting += [os.path.normpath(os.path.join(folder, path)) for path in paths if path]
    assert seen == set(PAGES)


def test_every_figure_is_small_and_shown():
    shown = {
        (PAGES[page].parent / link).resolve() for page in PAGES for link in documents.links(page)
    }
    figures = [*(REPOSITORY / "docs" / "figures").iterdir()]
    assert figures
    for figure in figures:
        assert figure.stat().st_size < LARGEST_FIGURE, figure
        assert figure.resolve() in shown, figure


def test_the_reference_is_what_the_docstrings_say_today():
    script = runpy.run_path(str(REPOSITORY / "docs" / "make_api.py"))
    assert PAGES["docs/api.md"].read_text() == script["page"](), "run `make docs`"


@pytest.mark.slow
def test_the_figures_of_the_documents_are_drawn_by_a_script(tmp_path):
    torch.set_default_dtype(torch.float32)
    runpy.run_path(str(REPOSITORY / "examples" / "draw_figures.py"))["main"](tmp_path, steps=5)
    drawn, kept = (
        {figure.name for figure in folder.iterdir()}
        for folder in (tmp_path, REPOSITORY / "docs" / "figures")
    )
    assert drawn and drawn <= kept


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("docs/solvers.md", METHODS),
        ("docs/series.md", SERIES_METHODS),
        ("docs/density.md", DENSITY_METHODS),
    ],
)
def test_tables_of_methods_are_complete(page, names):
    assert set(names) <= set(documents.inline_code(page))


def _leaves(command, path: tuple[str, ...] = ("bfno",)):
    inner = getattr(command, "commands", {})
    if not inner:
        yield " ".join(path), command
    for name, one in inner.items():
        yield from _leaves(one, (*path, name))


@pytest.mark.parametrize("group", [[], ["data"]])
def test_the_help_of_a_group_ends_in_examples_that_exist(group):
    examples = re.findall(r"bfno .*", _command(group)[0].epilog)
    assert examples
    for example in examples:
        command, rest = _command(shlex.split(example)[1:])
        assert not hasattr(command, "commands"), example
        if rest != ["--help"]:
            command.make_context(example, rest)


@pytest.mark.parametrize("name", [name for name, _ in _leaves(typer.main.get_command(app))])
def test_the_help_of_every_command_has_an_example_that_exists(name):
    command, _ = _command(name.split()[1:])
    example = (command.help or "").rpartition("Example: ")[2].strip()
    assert example.startswith(name), f"{name} --help has no example"
    command.make_context(name, shlex.split(example)[len(name.split()) :])
