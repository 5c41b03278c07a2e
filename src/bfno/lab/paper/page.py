"""The results of a folder of runs beside the paper, as one Markdown page with figures."""

from __future__ import annotations

import functools
import html
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from bfno.lab.errors import ConfigError, bfno_command
from bfno.lab.files import read_plain, write_atomically
from bfno.lab.paper.claims import claims_table
from bfno.lab.paper.comparison import paper_comparison
from bfno.lab.paper.findings import (
    FullSize,
    Released,
    Verdicts,
    counts_text,
    explanation_text,
    findings_text,
    full_size_of,
    leads_figure,
    read_released,
    released_text,
    trained_text,
    verdicts_of,
)
from bfno.lab.paper.overview import agreement_text, around_overview, overview, put_overview
from bfno.lab.paper.sections import Section, sections_of
from bfno.lab.runs.archive import ended_runs, portable_record
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.record import Record, flat_config
from bfno.lab.views.figures.gallery import draw_figures
from bfno.lab.views.figures.style import Drawn
from bfno.lab.views.layout import as_markdown
from bfno.lab.views.metrics import counted
from bfno.lab.views.summary import listed

__all__ = ["Evidence", "claims_text", "figures_of", "introduction", "section_text"]
__all__ += ["left_out_text", "summary_text", "write_page"]

_MARK = "<!-- Made by `bfno results`; what is changed by hand will be lost. -->\n"
_LEADS = "claims.png"
_ABOUT_LEADS = (
    "How far the method that each claim praises is ahead of the best other method, in the paper "
    "(diamonds) and here (points). Lines are 95 % confidence intervals, corrected for the number "
    "of other methods where the praised one is behind; some extend beyond the frame. A hollow "
    "point has no interval: there is only one seed, or all seeds agree."
)
_GLOSSARY = """\
How to read this page:

- *cpu scale*: smaller models, less data on a coarser grid or fewer epochs; minutes on one core.
  *paper scale*: the published settings. `bfno config DATA/METHOD` prints all settings.
- *NFE*: evaluations of the ODE's field per solve, in the forward pass, backward pass and test.
- Protocol *sound* keeps patients and recordings apart; *published* splits and scores series as the
  paper does; *counted* uses the paper's solver, tolerance and gradients, to count evaluations.
- *L*: number of branches of a BFNO layer. ±: standard deviation over seeds.
- Seconds depend on what else the machine was doing; evaluations do not.
"""
# Curves of more methods than this are not legible at half the width of a page.
_MOST_METHODS_BESIDE = 9
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
class Evidence:
    """The ingredients of a page.

    Attributes:
        runs: The runs that have ended, with their folders.
        released: Scores of the authors' weights.
    """

    runs: Sequence[tuple[Path, Record]]
    released: Sequence[Released] = ()

    @classmethod
    def of(cls, folder: Path) -> Evidence:
        """All that a folder of runs holds; copies of a run count once."""
        found: dict[bytes, tuple[Path, Record]] = {}
        for place in ended_runs(folder):
            found.setdefault(portable_record(place), (place, RunFolder(place).ended()))
        return cls([*found.values()], read_released(folder))

    @functools.cached_property
    def records(self) -> list[Record]:
        """The runs without their folders."""
        return [run for _, run in self.runs]

    @functools.cached_property
    def sections(self) -> list[Section]:
        """The tables that the runs fill."""
        return list(sections_of(self.runs))

    @functools.cached_property
    def full_size(self) -> list[FullSize]:
        """The tables whose methods they train at the paper's size."""
        return full_size_of(self.records)

    @functools.cached_property
    def verdicts(self) -> list[Verdicts]:
        """Their verdicts on the paper's claims."""
        return verdicts_of(self.records)


def write_page(folder: Path, out: Path, overview_in: Path | None = None) -> list[Path]:
    """Write a page with the paper's tables, its claims and figures from the runs of a folder.

    The figures go into `figures` of the folder. A page that this function wrote is replaced.

    Args:
        folder: Folder of finished runs, with or without their weights.
        out: The page.
        overview_in: A document that marks a place for the overview, which is put there too.

    Returns:
        The files, the page first.

    Raises:
        ConfigError: If there is no run of a table, the page is a file of the user's own, or the
            other document marks no place.
        DataError: If a run cannot be read, or a file cannot be written.
    """
    _check_own(out)
    if overview_in:
        around_overview(overview_in)  # refused before anything is drawn
    found = Evidence.of(folder)
    if not found.sections:
        fix = "train some with `bfno table 1`"
        raise ConfigError(folder, "holds no run of the paper's tables", fix)
    leads = leads_figure(found.verdicts)
    picture = folder / "figures" / _LEADS if leads and leads.png else None
    drawn = {picture: leads} if picture and leads else {}
    link = picture and _relative(picture, out.parent)
    parts = [_MARK, "# Results\n", summary_text(found, link), introduction(folder, out, found.runs)]
    parts += [overview(found.sections), _GLOSSARY]
    parts += [left_out_text(folder, found), claims_text(found.verdicts)]
    for section in found.sections:
        pictures = _draw(section, folder / "figures")
        images = [
            _image(section, _relative(file, out.parent), one.alt) for file, one in pictures.items()
        ]
        parts.append("\n".join([section_text(section), *images, ""]))
        drawn |= pictures
    # Only when all of them could be drawn: until then the old page keeps its own.
    for file, one in drawn.items():
        write_atomically(file, one.png or b"")
    # A link stays one.
    write_atomically(out.resolve(), "\n".join(filter(None, parts)).encode())
    written = [out, *drawn]
    if overview_in:
        link = picture and _relative(picture, overview_in.parent)
        page = _relative(out, overview_in.parent)
        top = summary_text(found, link, page)
        put_overview(overview_in, f"{top}\n{overview(found.sections, page)}")
        written.append(overview_in)
    return written


def figures_of(page: Path, folder: Path) -> set[Path]:
    """The figures in a folder of runs that a page shows, by their absolute paths.

    Args:
        page: The page; one that is missing, or that `write_page` did not write, shows none.
        folder: The folder of runs that it was made from.
    """
    if not page.is_file() or not _is_own(page):
        return set()
    text = read_plain(page).decode("utf-8", errors="replace")
    names = re.findall(r'<img src="([^"]*)"|!\[[^]]*\]\(([^)]*)\)', text)
    files = (Path(os.path.abspath(page.parent / unquote("".join(name)))) for name in names)
    return {file for file in files if file.parent == Path(os.path.abspath(folder / "figures"))}


def _is_own(page: Path) -> bool:
    return read_plain(page, len(_MARK.encode())) == _MARK.encode()


def _check_own(out: Path) -> None:
    if out.is_dir():
        raise ConfigError(out, "is a folder", f"name a file, such as {out / 'RESULTS.md'}")
    if out.exists() and not _is_own(out):
        raise ConfigError(
            out, "exists and was not written by this command", "name another file with -o"
        )


def summary_text(found: Evidence, picture: str | None, page: str = "") -> str:
    """What was reproduced and what was not, with a picture of it.

    Args:
        found: The runs.
        picture: Where the picture is, seen from the text.
        page: Where the page with all claims is; empty if this is it.
    """
    verdicts = found.verdicts
    parts = [released_text(found.released), trained_text(found.full_size), counts_text(verdicts)]
    parts += [findings_text(verdicts)] if verdicts else []
    if picture is not None:
        parts.append(f"![Leads, one row per claim]({picture})\n\n{_ABOUT_LEADS}\n")
    parts += [explanation_text(verdicts, page)] if verdicts else []
    parts += [agreement_text(found.sections)]
    return "\n".join(filter(None, parts))


def introduction(folder: Path, out: Path, runs: Sequence[tuple[Path, Record]]) -> str:
    """How the page is made."""
    command, place = bfno_command("results", folder, "-o", out), shlex.quote(str(folder))
    number, hours = counted(len(runs), "run"), _seconds([run for _, run in runs]) / 3600
    failed = sum(run.has_failed for _, run in runs)
    number += f" ({failed} of them failed)" if failed else ""
    return (
        f"This page is made from {number} and {hours:.1f} hours of training. All numbers are "
        f"computed from the records in `{place}`; only the paper's are typed in. `{command}` "
        "makes the page again. The command above a table trains all of its runs; with "
        f"`--runs {place}`, only those that are missing there.\n"
    )


def _seconds(runs: Sequence[Record]) -> float:
    """Time of all trainings; one that went on counts once, though it left a run at each end."""

    def so_far(run: Record, epochs: int) -> tuple[object, ...]:
        return run.experiment, run.scale, run.seed, repr(run.epochs[:epochs])

    begun = {so_far(run, epochs) for run in runs for epochs in range(1, len(run.epochs))}
    whole = (run.seconds for run in runs if so_far(run, len(run.epochs)) not in begun)
    return sum(seconds for seconds in whole if seconds and math.isfinite(seconds))


def left_out_text(folder: Path, found: Evidence) -> str:
    """Which runs no table shows."""
    shown = {id(run) for section in found.sections for _, run in section.runs}
    shown |= {id(run) for one in found.full_size for run in one.runs}
    places = (place for place, run in found.runs if id(run) not in shown)
    folders = Counter(place.parent.relative_to(folder).as_posix() for place in places)
    if not folders:
        return ""
    missing = listed([f"{counted(many, 'run')} in `{name}`" for name, many in folders.items()])
    why = (
        "their settings belong to no table or were changed during the training, another run has "
        "the same seed, or there is nothing to compare them with"
    )
    return f"No table shows {missing}: {why}.\n"


def claims_text(verdicts: Sequence[Verdicts]) -> str:
    """The paper's claims next to the runs of each scale and variant; nothing without verdicts."""
    if not verdicts:
        return ""
    tables = (f"{of.title}:\n\n{as_markdown(claims_table(of.judgements))}" for of in verdicts)
    return "\n".join(["## The paper's claims next to these runs\n", *tables])


def section_text(section: Section) -> str:
    """The heading of a section, its command and its table, without figures."""
    runs = [run for _, run in section.runs]
    of, data, scale, variant = section.table, [section.data], section.scale, section.variant
    table = paper_comparison(of, runs, scale, data=data, variant=variant, has_heading=True)
    command = f"```console\n{section.command}\n```\n"
    return "\n".join([f"## {section.title}\n", command, as_markdown(table)])


def _draw(section: Section, pictures: Path) -> dict[Path, Drawn]:
    """The figures of a section, by their files."""
    places = {place: run for place, run in section.runs if not run.has_failed}
    runs = [*places.values()]
    figures = draw_figures(runs, [*places]) if runs else {}
    wanted = section.variant.measures or _FIGURES[section.table]
    # Only adjoint gradients take evaluations in the backward pass.
    adjoint = all(flat_config(run.config).get("solver.gradient") == "adjoint" for run in runs)
    return {
        pictures / section.figure(name): drawn
        for name, drawn in figures.items()
        if drawn.png and re.match(wanted, name) and (adjoint or "nfe-backward" not in name)
    }


def _image(section: Section, file: str, alt: str) -> str:
    """A figure at half or full width of the page, which plain Markdown cannot say."""
    width = "98%" if len({run.method for _, run in section.runs}) > _MOST_METHODS_BESIDE else "49%"
    return f'<img src="{file}" width="{width}" alt="{html.escape(alt)}">'


def _relative(file: Path, start: Path) -> str:
    """The path as a link has it."""
    return quote(Path(os.path.relpath(file, start)).as_posix())
