"""A line for each table that runs exist for, on the page of results and in other documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from bfno.lab.errors import ConfigError
from bfno.lab.paper.numbers import paper_table
from bfno.lab.paper.sections import Section
from bfno.lab.paper.standings import standing_here, standing_in_paper

__all__ = ["around_overview", "overview"]

# Between these lines of a document somebody else has written, the overview is ours.
_BEGIN = "<!-- overview of results: made by `bfno results` -->\n"
_END = "<!-- end of the overview -->\n"


def overview(sections: Sequence[Section], page: str = "") -> str:
    """A line of a Markdown table for each section: its command, and who leads here and there.

    Args:
        sections: The sections.
        page: Where they are, for links to them; empty if they follow on the same page.
    """
    lines = ["| table | command | here | in the paper |", "| --- | --- | --- | --- |"]
    for section in sections:
        paper = paper_table(section.table)
        here = standing_here(paper, section.data, [run for _, run in section.runs])
        published = standing_in_paper(paper, section.data)
        link = f"[{section.title}]({page}#{_anchor(section.title)})"
        lines.append(f"| {link} | `{section.command}` | {here or '–'} | {published or '–'} |")
    return "".join(f"{line}\n" for line in lines)


def _anchor(title: str) -> str:
    """The name that a heading has in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def around_overview(document: Path) -> tuple[str, str]:
    """What stands before and after the overview in a document, with the lines that mark it.

    Raises:
        ConfigError: If the document cannot be read or does not mark a place for the overview once.
    """
    try:
        text = document.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(document, "cannot be read as text", "name a Markdown file") from error
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end) or _BEGIN in rest:
        fix = f"put `{_BEGIN.strip()}` and `{_END.strip()}` there, each once and on its own line"
        raise ConfigError(document, "marks no place for the overview", fix)
    return before + begin, end + after
