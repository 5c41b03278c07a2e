"""What a run shows is read as it was written, and nothing else gets onto a page."""

import json

import pytest

from bfno.lab.errors import DataError
from bfno.lab.views.exhibit import read_exhibit
from tests.lab.views.exhibits import exhibit, write_exhibit


def test_everything_is_read_as_it_was_written(tmp_path):
    written = write_exhibit(tmp_path, classes=3)
    found = read_exhibit(tmp_path)
    assert found is not None and found.step == written["step"]
    assert [list(point) for point in found.scatter.points] == written["scatter"]["points"]
    assert found.scatter.labels == written["scatter"]["labels"]
    assert vars(found.mistakes[0]) == written["mistakes"][0]
    assert found.flow is not None and found.flow.times == written["flow"]["times"]
    assert vars(found.flow.images[1]) == written["flow"]["images"][1]
    assert vars(found.spectra[1]) == written["spectra"][1]


def test_a_run_without_an_exhibit_shows_nothing(tmp_path):
    assert read_exhibit(tmp_path) is None


def _changed(**changes):
    return {**exhibit(), **changes}


SPOILT = {
    "no JSON": "{",
    "no object": "[]",
    "another format": json.dumps(_changed(format=2)),
    "nothing inside": json.dumps({"format": 1}),
    "a point without a label": json.dumps(
        _changed(scatter={"points": [[0, 1]], "labels": [], "predicted": []})
    ),
    "a point in space": json.dumps(
        _changed(scatter={"points": [[0, 1, 2]], "labels": [0], "predicted": [0]})
    ),
    "text for a number": json.dumps(_changed(step="<b>")),
    "a step without end": json.dumps(_changed(step=float("inf"))),
    "a number that no float can hold": json.dumps(
        _changed(spectra=[{"layer": 1, "frequencies": [10**400], "before": [1], "after": [1]}])
    ),
    "curves of two lengths": json.dumps(
        _changed(spectra=[{"layer": 1, "frequencies": [0, 1], "before": [1], "after": [1, 2]}])
    ),
    "markup for a picture": json.dumps(
        _changed(mistakes=[{"image": '"><script>', "label": 0, "predicted": 1, "probability": 0.5}])
    ),
    "another file for a picture": json.dumps(
        _changed(mistakes=[{"image": "PHN2Zz4=", "label": 0, "predicted": 1, "probability": 0.5}])
    ),
    "too few probabilities": json.dumps(
        _changed(
            flow={
                **exhibit()["flow"],
                "images": [{**exhibit()["flow"]["images"][0], "probabilities": [[1.0]]}],
            }
        )
    ),
}


@pytest.mark.parametrize("text", SPOILT.values(), ids=SPOILT.keys())
def test_what_cannot_be_understood_is_named_with_its_remedy(tmp_path, text):
    (tmp_path / "exhibit.json").write_text(text)
    with pytest.raises(DataError, match=r"cannot be understood.*remove it"):
        read_exhibit(tmp_path)
