"""What a folder of runs shows of the paper, as one Markdown page with figures."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bfno.errors import ConfigError
from bfno.files import write_atomically
from bfno.results.archive import finished_runs
from bfno.results.claims import judge_claims
from bfno.results.gallery import draw_figures
from bfno.results.layout import as_markdown
from bfno.results.paper import paper_table, table_names
from bfno.results.paper_tables import paper_comparison
from bfno.results.record import RunResult, read_run
from bfno.results.standings import standing_here, standing_in_paper

__all__ = ["Section", "overview", "sections_of", "write_page"]

_MARK = "<!-- Made by `bfno results`; what is changed by hand will be lost. -->\n"
# Names of the figures that illustrate each table, as far as its runs can give them.
_CURVES = "accuracy|auroc|bits-per-dim|train-loss|nfe"
_FIGURES: Mapping[str, str] = {
    "1": f"{_CURVES}|tsne|spectra|flow-.*-bfno-node$",
    "2": f"series-({_CURVES})",
    "3": f"series-({_CURVES})|reconstruction-.*-latent-(bfno-node|ode)$",
    "4": f"density-({_CURVES})|samples",
    "ablation-operator": "operators|spectra",
    "ablation-branches": "branches",
}


@dataclass(frozen=True)
class Section:
    """One table of the paper for one data set at one scale.

    Attributes:
        table: Name of the table.
        data: Name of the data set.
        scale: Scale of the runs.
        runs: The runs that belong to it, with their folders.
    """

    table: str
    data: str
    scale: str
    runs: tuple[tuple[Path, RunResult], ...]

    @property
    def title(self) -> str:
        """What stands above it."""
        paper = paper_table(self.table)
        name = f"Table {self.table}" if self.table.isdigit() else f"`{self.table}`"
        return f"{name}: {paper.title}, {paper.titles[self.data]} ({self.scale} scale)"

    @property
    def command(self) -> str:
        """What trains it, or what is missing of it."""
        seeds = len({run.seed for _, run in self.runs})
        words = ["bfno", "table", self.table, "--data", self.data, "--scale", self.scale]
        return shlex.join([*words, "--seeds", str(seeds)])

    def figure(self, name: str) -> str:
        """The file of a figure."""
        short = re.sub("^(series|density)-", "", name).removesuffix(f"-{self.data}")
        return f"{self.scale}-{self.table}-{self.data}-{short}.png"


def write_page(folder: Path, out: Path) -> list[Path]:
    """Write a page with the paper's tables, its claims and figures from the runs of a folder.

    The figures go into `figures` of the folder. A page that this function wrote is replaced.

    Args:
        folder: Folder of finished runs, with or without their weights.
        out: The page.

    Returns:
        The files, the page first.

    Raises:
        ConfigError: If there is no run of a table, or the page is a file of somebody's own.
        DataError: If a run cannot be read, or a file not be written.
    """
    _check_own(out)
    runs = [(place, read_run(place)) for place in finished_runs(folder)]
    sections = list(sections_of(runs))
    if not sections:
        fix = "train some with `bfno table 1`"
        raise ConfigError(folder, "holds no run of the paper's tables", fix)
    pictures = folder / "figures"
    parts = [
        _MARK,
        _introduction(folder, out, runs),
        overview(sections),
        _claims(runs),
    ]
    written = [out]
    for section in sections:
        drawn = _draw(section, pictures)
        written += drawn
        parts.append(_text(section, [_relative(file, out.parent) for file in drawn]))
    write_atomically(out, "\n".join(parts).encode())
    return written


def _check_own(out: Path) -> None:
    if out.is_dir():
        raise ConfigError(out, "is a folder", f"name a file, such as {out / 'RESULTS.md'}")
    if out.exists() and not out.read_bytes().startswith(_MARK.encode()):
        raise ConfigError(out, "is there, and not from this command", "name another file with -o")


def sections_of(runs: Sequence[tuple[Path, RunResult]]) -> Iterator[Section]:
    """Tables that runs exist for: by table, then by scale and data set."""
    scales = sorted({run.scale for _, run in runs})
    for table in table_names():
        paper = paper_table(table)
        for scale in scales:
            for data in paper.titles:
                wanted = {row.experiment(data) for row in paper.rows} - {None}
                found = tuple(
                    (place, run)
                    for place, run in runs
                    if run.experiment in wanted and run.scale == scale and not run.changes
                )
                # One method alone, which another table shares, is no comparison.
                if len({run.method for _, run in found}) > 1:
                    yield Section(table, data, scale, found)


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


def _introduction(folder: Path, out: Path, runs: Sequence[tuple[Path, RunResult]]) -> str:
    command = shlex.join(["bfno", "results", str(folder), "-o", str(out)])
    hours = sum(run.seconds or 0 for _, run in runs) / 3600
    return (
        f"# Results\n\n{len(runs)} runs, {hours:.1f} hours of training. Every number here is "
        f"computed from the records in `{folder}`; none is typed in but the paper's own. "
        f"`{command}` makes this page again. The command of a table trains all of it, with "
        f"`--runs {folder}` only what is missing there.\n"
    )


def _claims(runs: Sequence[tuple[Path, RunResult]]) -> str:
    parts = ["## The paper's claims next to these runs\n"]
    for scale in sorted({run.scale for _, run in runs}):
        table = judge_claims([run for _, run in runs], scale)
        if table.rows:
            parts.append(as_markdown(table))
    return "\n".join(parts)


def _draw(section: Section, pictures: Path) -> list[Path]:
    figures = draw_figures([run for _, run in section.runs], [place for place, _ in section.runs])
    written = []
    for name, drawn in figures.items():
        if drawn.png and re.match(_FIGURES[section.table], name):
            file = pictures / section.figure(name)
            write_atomically(file, drawn.png)
            written.append(file)
    return written


def _text(section: Section, pictures: Sequence[str]) -> str:
    runs = [run for _, run in section.runs]
    table = paper_comparison(section.table, runs, section.scale, data=[section.data])
    # Half as wide as the page, which plain Markdown cannot say.
    images = [
        f'<img src="{file}" width="49%" alt="{Path(file).stem.replace("-", " ")}">'
        for file in pictures
    ]
    command = f"```console\n{section.command}\n```\n"
    return "\n".join([f"## {section.title}\n", command, as_markdown(table), *images, ""])


def _relative(file: Path, start: Path) -> str:
    return Path(os.path.relpath(file, start)).as_posix()
