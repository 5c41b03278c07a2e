"""Build the site of the documents into `build/site/`: `make site`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from latex2mathml.converter import convert

ROOT = Path(__file__).parents[1]
SHOWN = (
    "*.md",
    "LICENSE",
    "CITATION.cff",
    "docs/*.md",
    "docs/**/*.png",
    "docs/*.svg",
    "examples/*.py",
    "results/figures/*.png",
)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def main() -> None:
    """Build the site, and refuse links that lead nowhere."""
    site = build(ROOT / "build")
    broken = list(broken_links(site))
    print("\n".join(broken) or f"{site.relative_to(ROOT)}/index.html: all links lead somewhere")
    sys.exit(bool(broken))


def build(folder: Path) -> Path:
    """Build the site in a folder and return where it is."""
    pages, site = folder / "pages", folder / "site"
    for old in (pages, site):
        shutil.rmtree(old, ignore_errors=True)
    collect(pages)
    shutil.copyfile(ROOT / "mkdocs.yml", folder / "mkdocs.yml")
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"]
    subprocess.run(command, check=True, cwd=folder)
    for page in site.rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        page.write_text(FORMULA.sub(_as_mathml, html), encoding="utf-8")
    return site


def collect(target: Path) -> None:
    """Copy what the site shows, laid out as in the repository so that links stay right."""
    for pattern in SHOWN:
        for path in sorted(ROOT.glob(pattern)):
            place = target / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, place)
    (target / "docs" / "gallery.md").write_text(_gallery(), encoding="utf-8")


def broken_links(site: Path) -> Iterator[str]:
    """Every link of the built pages to a file or an anchor of the site that is not there."""
    pages = {path.resolve(): _Page(path) for path in site.rglob("*.html")}
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to wherever somebody got lost
            continue
        for link in page.links:
            place, anchor = urldefrag(link)
            target = (path.parent / unquote(place)).resolve() if place else path
            if not target.exists():
                yield f"{path.relative_to(site.resolve())}: {link} leads nowhere"
            elif anchor and target in pages and unquote(anchor) not in pages[target].anchors:
                yield f"{path.relative_to(site.resolve())}: {link} has no such anchor"


class _Page(HTMLParser):
    """The links and anchors of a page; links to other machines are left out."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.anchors |= {name for key in ("id", "name") if (name := given.get(key))}
        link = given.get("href") or given.get("src")
        if link and not re.match(r"[a-z]+:|//", link):
            self.links.add(link)


def _as_mathml(found: re.Match[str]) -> str:
    display = "inline" if found[2] == "(" else "block"
    return convert(unescape(found[3]), display=display)


def _gallery() -> str:
    """A page of all figures, each under the words of its file name."""
    lines = ["# Gallery", "", "Figures of the documents, and of the runs behind the results."]
    for folder in ("docs/figures", "results/figures"):
        for path in sorted((ROOT / folder).glob("*.png")):
            words = path.stem.removeprefix("cpu-").replace("-", " ")
            place = f"../{path.relative_to(ROOT).as_posix()}"
            lines += ["", f"## {words}", "", f"![{words}]({place})"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
