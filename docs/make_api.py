"""Write `api.md` from the docstrings of the public names: `python docs/make_api.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bfno

PAGE = Path(__file__).with_name("api.md")
PARTS = {
    "layers": "Layers: tensor to tensor",
    "fields": "Fields: time and state to the state's derivative",
    "dynamics": "Dynamics: how a field moves a state",
    "ode": "The ODE engine",
    "models": "Models",
    "program": "Training, and trained models",
}
TOP = """# API

Every public name of `import bfno`, from its docstring; `make docs` writes this page. What the
program reads and writes is told in [Runs](runs.md), how parts fit together in
[Concepts](concepts.md).
"""
_DIRECTIVE = re.compile(r"  # doctest: .*$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Attributes|Raises|Returns|Shape|Note|References|Example):$")


def part_of(thing: Any) -> str:
    """The part of the package that defines a name; tables of methods belong to the solvers."""
    return getattr(thing, "__module__", "bfno.ode").split(".")[1]


def signature(name: str, thing: Any) -> str:
    """How a class or function is called, without the types, which the docstring tells."""
    if getattr(thing, "_is_protocol", False):
        name, thing = "field", thing.__call__  # nobody makes one; this is how it is called
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in found.parameters.values()
        if one.name != "self"
    ]
    bare = found.replace(parameters=parameters, return_annotation=inspect.Signature.empty)
    # A function that is a default would be printed with its address, a class with its quotes.
    called = re.sub(r"<function (\w+) at 0x\w+>", r"\1", f"{name}{bare}")
    return re.sub(r"<class '([\w.]*\.)?(\w+)'>", r"\2", called)


def sections(docstring: str) -> Iterator[tuple[str, list[str]]]:
    """Title and lines of each section of a docstring; the first has no title."""
    title, lines = "", []
    for line in docstring.splitlines():
        if found := _SECTION.match(line):
            yield title, lines
            title, lines = found[1], []
        else:
            lines.append(line)
    yield title, lines


def items(lines: list[str]) -> Iterator[str]:
    """The entries of a list of arguments, each as one line."""
    entry = ""
    for line in inspect.cleandoc("\n".join(lines)).splitlines():
        if line.startswith(" ") or not line:
            entry = f"{entry} {line.strip()}".strip()
        else:
            if entry:
                yield entry
            entry = line
    if entry:
        yield entry


def formatted(docstring: str) -> Iterator[str]:
    """A docstring as Markdown."""
    for title, lines in sections(docstring):
        body = inspect.cleandoc("\n".join(lines))
        if title in ("Args", "Attributes", "Raises"):
            yield f"**{title}**\n"
            for item in items(lines):
                name, _, text = item.partition(": ")
                yield f"- `{name}`: {text}"
            yield ""
        elif title == "Example":
            yield f"```pycon\n{_DIRECTIVE.sub('', body)}\n```\n"
        elif title:
            yield f"**{title}.** {body}\n"
        elif body:
            yield f"{body}\n"


def entry(name: str, thing: Any) -> Iterator[str]:
    """One name: its call, its docstring, its public methods."""
    yield f"### {name}\n"
    if not inspect.isclass(thing) and not callable(thing):
        yield f"Names: {', '.join(f'`{key}`' for key in thing)}.\n"
        return
    yield f"```\n{signature(name, thing)}\n```\n"
    yield from formatted(inspect.getdoc(thing) or "")
    if inspect.isclass(thing):
        for method, function in vars(thing).items():
            text = inspect.getdoc(function) if inspect.isfunction(function) else None
            if text and not method.startswith("_") and method not in ("forward", "extra_repr"):
                call = signature(f"{name}.{method}", function)
                yield f"`{call}`: {text.splitlines()[0]}\n"


def page() -> str:
    """The whole page."""
    names = {name: getattr(bfno, name) for name in sorted(bfno.__all__)}
    lines = [TOP]
    for part, title in PARTS.items():
        lines.append(f"## {title}\n")
        for name, thing in names.items():
            if part_of(thing) == part:
                lines += entry(name, thing)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"{PAGE} written")
