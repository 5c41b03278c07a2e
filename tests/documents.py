"""Reads the documents: their blocks, commands, links and headings.

A command is a line of a fenced block, marked `bash` or not at all, that starts with the name of a
program. A backslash at the end of a line continues it, `#` starts a comment.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import REPOSITORY

PAGES = {
    page.relative_to(REPOSITORY).as_posix(): page
    for page in (
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        *sorted((REPOSITORY / "docs").glob("*.md")),
    )
}
PROGRAMS = ("bfno", "make", "pip", "pre-commit", "python", "tensorboard", "torchrun")

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page.

    Attributes:
        page: Name of the page.
        line: Line of the page that its first line is.
        language: What it is marked as.
        text: What stands in it.
    """

    page: str
    line: int
    language: str
    text: str

    def commands(self) -> Iterator[list[str]]:
        """The words of each command."""
        if self.language not in ("", "bash"):
            return
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.split(" ")[0] in PROGRAMS:
                words = shlex.split(line, comments=True)
                while "&&" in words:
                    end = words.index("&&")
                    yield words[:end]
                    words = words[end + 1 :]
                yield words


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    text = PAGES[page].read_text()
    for found in _FENCE.finditer(text):
        line = text.count("\n", 0, found.start(2)) + 1
        yield Block(page, line, found[1], found[2])


def prose(page: str) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", PAGES[page].read_text())


def inline_code(page: str) -> list[str]:
    """What a page's sentences and tables quote as code."""
    return [" ".join(code.split()) for code in _CODE.findall(prose(page))]


def links(page: str) -> list[str]:
    """What a page links to and which pictures it shows."""
    return _LINK.findall(_CODE.sub("", prose(page)))


def anchors(file: Path) -> set[str]:
    """The headings of a file as GitHub's links name them."""
    headings = _HEADING.findall(_FENCE.sub("", file.read_text()))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}
