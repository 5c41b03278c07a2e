"""The page of a sweep in a real browser, on a screen and on a telephone.

Skipped without chromium and playwright.
"""

import pytest

from bfno.lab.runs.sweep.trials import SweepResult, Trial
from bfno.lab.views.report.sweep import render_sweep
from tests.lab.views.browser import MISSING, browser

pytestmark = pytest.mark.skipif(MISSING, reason="chromium or playwright is not installed")

LINES = """(() => {
  const cell = document.querySelector('tbody td');
  const text = document.createRange();
  text.selectNodeContents(cell);
  return new Set([...text.getClientRects()].map(one => Math.round(one.y))).size;
})()"""
DRAWING = "document.querySelector('.coordinates svg').getBoundingClientRect().width"
PAGE = "document.documentElement.scrollWidth"


@pytest.mark.parametrize("width", [390, 1280])
def test_names_stay_whole_and_the_page_does_not_move_sideways(tmp_path, width):
    values = {"train.lr": 0.0058548, "train.weight_decay": 0.0058548, "model.width": 8}
    trials = [Trial(number, values, "finished", 0.5 + number) for number in range(3)]
    ranges = dict.fromkeys(values, "log(0.001, 100.0)")
    logs = frozenset(ranges)
    found = SweepResult(
        "digits/node", "cpu", 7, "validation_loss", True, ranges, logs, trials, {"train.lr": 1.0}
    )
    file = tmp_path / "sweep.html"
    file.write_text(render_sweep(found), encoding="utf-8")
    with browser() as page:
        page.resize(width)
        page.open(file)
        assert page.find(LINES) == 1
        assert page.find(DRAWING) > 600  # narrower, its labels could not be read
        assert page.find(PAGE) <= width
        assert not page.problems
