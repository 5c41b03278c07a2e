"""The site of the documents builds without a network, and its links lead somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="zensical builds the site: pip install zensical")

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def make_site():
    found = importlib.util.spec_from_file_location("make_site", ROOT / "docs" / "make_site.py")
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(make_site, tmp_path_factory):
    return make_site.build(tmp_path_factory.mktemp("site"))


def test_that_links_of_the_site_lead_somewhere(make_site, site):
    assert list(make_site.broken_links(site)) == []


def test_that_a_broken_link_is_found(make_site, tmp_path):
    links = '<p id="here"><a href="gone.html">a</a><a href="#there">b</a><a href="#here">c</a>'
    (tmp_path / "page.html").write_text(links)
    broken = list(make_site.broken_links(tmp_path))
    assert sorted(broken) == [
        "page.html: #there has no such anchor",
        "page.html: gone.html leads nowhere",
    ]


def test_that_every_page_is_in_the_navigation():
    listed = set(re.findall(r"docs/[\w-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert listed == pages | {"docs/gallery.md"}  # that one is made with the site


def test_that_formulas_need_no_program_from_elsewhere(site):
    api = (site / "docs" / "api.html").read_text()
    assert "<math" in api
    assert "arithmatex" not in re.sub(r"<style.*?</style>", "", api, flags=re.DOTALL)


def test_that_pages_load_nothing_from_other_machines(site):
    loading = re.compile(r'<(?:script|img|link)[^>]*(?:src|href)="(?:https?:)?//[^"]*"')
    for page in site.rglob("*.html"):
        assert loading.findall(page.read_text()) == [], page.name
