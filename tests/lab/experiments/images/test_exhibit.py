"""What a classifier shows is what it computes."""

import base64
import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from bfno.dynamics import FirstOrder
from bfno.fields import OperatorField
from bfno.lab.experiments.images.calibration import temperature_of
from bfno.lab.experiments.images.exhibit import _spread, _test_images, exhibit_of
from bfno.lab.runs.folder import RunFolder, read_run
from bfno.lab.runs.load import keep_exhibit, open_run
from bfno.lab.runs.session import resume, start
from bfno.lab.views.exhibit import read_exhibit
from bfno.lab.views.report.page import render_report
from bfno.ode import NeuralODE
from tests.lab.experiments.density.runs import tiny as tiny_density
from tests.lab.runs.runs import tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "digits"
    start(tiny(), folder)
    assert keep_exhibit(folder)
    return folder


def _shown(folder):
    found = read_exhibit(folder)
    assert found is not None
    return found


def _flow_of(folder):
    flow = _shown(folder).flow
    assert flow is not None
    return flow


def _tests(run):
    split = _test_images(run, 1000)
    return split, split.images.float() / 255


def _said(run, images):
    """The probabilities that `bfno predict` gives."""
    return _scaled(run, run.model(images))


def _scaled(run, scores):
    return (scores / (temperature_of(run) or 1.0)).softmax(1)


def _pixels(text):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))


def test_points_have_the_labels_and_predictions_of_the_test_images(folder):
    run, shown = open_run(folder), _shown(folder).scatter
    split, images = _tests(run)
    assert len(shown.points) == len(split) == 30
    assert shown.labels == split.labels.tolist()
    assert shown.predicted == run.model(images).argmax(1).tolist()


def test_mistakes_are_wrong_and_the_surest_come_first(folder):
    run, mistakes = open_run(folder), _shown(folder).mistakes
    split, images = _tests(run)
    assert mistakes and all(one.label != one.predicted for one in mistakes)
    sure = [one.probability for one in mistakes]
    assert sure == sorted(sure, reverse=True)
    sureness, predicted = _said(run, images).max(1)
    assert sure[0] == pytest.approx(sureness[predicted != split.labels].max().item(), abs=1e-4)
    known = {image.numpy().tobytes() for image in split.images}
    assert all(_pixels(one.image).tobytes() in known for one in mistakes)


def test_at_the_last_time_the_head_says_what_the_model_says(folder):
    run, flow = open_run(folder), _flow_of(folder)
    split, images = _tests(run)
    for one in flow.images:
        place = split.labels.tolist().index(one.label)
        expected = _said(run, images[place : place + 1])[0].tolist()
        assert one.probabilities[-1] == pytest.approx(expected, abs=1e-4)


def test_the_first_frame_is_the_image_itself(folder):
    run, flow = open_run(folder), _flow_of(folder)
    split, _ = _tests(run)
    assert [one.label for one in flow.images] == sorted({one.label for one in flow.images})
    for one in flow.images:
        frames = _pixels(one.frames)
        assert frames.shape == (flow.height, flow.width * len(flow.times))
        image = split.images[split.labels.tolist().index(one.label)][0].numpy()
        # The first frame is the image up to contrast and rounding.
        assert np.corrcoef(frames[:, : flow.width].ravel(), image.ravel())[0, 1] > 0.99


def test_a_method_without_dense_output_shows_its_steps_alone(folder):
    flow = _flow_of(folder)
    assert flow.times == flow.steps == [0.0, 1.0]  # one step of the midpoint rule


def test_an_adaptive_method_shows_more_times_than_its_steps(tmp_path):
    solver = {"method": "dopri5", "rtol": 1e-3, "atol": 1e-3}
    start(tiny({"solver": solver}, "digits/gnesterovnode"), tmp_path / "run")
    keep_exhibit(tmp_path / "run")
    run, flow = open_run(tmp_path / "run"), _flow_of(tmp_path / "run")
    assert len(flow.times) == 41 and (flow.times[0], flow.times[-1]) == (1.0, 2.0)
    assert flow.steps[0] == 1.0 and flow.steps[-1] == 2.0
    split, images = _tests(run)
    places = [split.labels.tolist().index(one.label) for one in flow.images]
    # In one batch, as they were shown: the steps suit all of them.
    expected = _said(run, images[places])
    found = torch.tensor([one.probabilities[-1] for one in flow.images])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


def test_a_spectrum_starts_with_the_energy_of_the_mean(folder):
    run, spectra = open_run(folder), _shown(folder).spectra
    field = run.model.block.dynamics.field
    _, images = _tests(run)
    before = field.encoder(images, 0.0)
    after = field.layers[0](before)
    assert [one.layer for one in spectra] == [1]
    for hidden, found in ((before, spectra[0].before), (after, spectra[0].after)):
        means = hidden.mean((2, 3)).square() * hidden[0, 0].numel()
        assert found[0] == pytest.approx(means.mean().item(), rel=1e-5)


def test_a_field_of_convolutions_has_no_spectra(tmp_path):
    start(tiny(experiment="digits/node"), tmp_path / "run")
    keep_exhibit(tmp_path / "run")
    assert _shown(tmp_path / "run").spectra == []


def test_a_run_is_asked_once(folder, monkeypatch):
    monkeypatch.setattr(RunFolder, "write_exhibit", lambda *_: pytest.fail("asked again"))
    assert keep_exhibit(folder)


def test_a_run_that_went_on_is_asked_again(tmp_path):
    start(tiny({"data": {"validation": 0.0}}), tmp_path / "run")
    keep_exhibit(tmp_path / "run")
    before = _shown(tmp_path / "run").step
    resume(tmp_path / "run", {"train": {"epochs": 3}})
    keep_exhibit(tmp_path / "run")
    assert _shown(tmp_path / "run").step > before


@pytest.mark.parametrize("spoilt", ["", "[]", json.dumps({"format": 0, "step": 6})])
def test_a_spoilt_exhibit_is_made_again(folder, spoilt):
    (folder / "exhibit.json").write_text(spoilt)
    assert keep_exhibit(folder)
    assert _shown(folder).mistakes


def test_families_without_exhibits_write_nothing(tmp_path):
    start(tiny_density("moons/ffjord"), tmp_path / "run")
    assert not keep_exhibit(tmp_path / "run")
    assert not (tmp_path / "run" / "exhibit.json").exists()


class _Net(nn.Module):
    """A stem that halves the grid, ODEs behind it, and a head that pools."""

    def __init__(self, blocks: int):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        fields = [OperatorField("bfno", channels=6, width=4, depth=2) for _ in range(blocks)]
        self.blocks = nn.ModuleList(
            [NeuralODE(FirstOrder(field), method="rk4", step=0.5) for field in fields]
        )
        self.head = nn.Linear(6, 10)

    def features(self, x):
        hidden = self.stem(x)
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.mean((2, 3))

    def forward(self, x):
        return self.head(self.features(x))


def _exhibit_of_a_net(folder, blocks):
    torch.manual_seed(0)
    run = replace(open_run(folder), model=_Net(blocks).eval())
    content = exhibit_of(run)
    RunFolder(folder).write_exhibit(1, content)
    return run, _shown(folder)


def test_a_net_of_several_blocks_shows_the_states_of_the_last_and_all_layers(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    run, shown = _exhibit_of_a_net(tmp_path / "run", blocks=2)
    flow = _flow_of(tmp_path / "run")
    assert (flow.height, flow.width, flow.shown) == (2, 2, "strength")
    assert [one.layer for one in shown.spectra] == [1, 2, 3, 4]
    split, images = _tests(run)
    places = [split.labels.tolist().index(one.label) for one in flow.images]
    expected = _said(run, images[places])
    found = torch.tensor([one.probabilities[-1] for one in flow.images])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    # Before its first step, the last block has changed nothing.
    before = run.model.blocks[0](run.model.stem(images[places])).mean((2, 3))
    first = torch.tensor([one.probabilities[0] for one in flow.images])
    torch.testing.assert_close(first, _scaled(run, run.model.head(before)), rtol=0, atol=1e-4)


def test_a_net_without_an_ode_shows_points_and_mistakes_alone(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run")
    _, shown = _exhibit_of_a_net(tmp_path / "run", blocks=0)
    assert shown.flow is None and shown.spectra == []
    assert shown.mistakes and len(shown.scatter.points) == 30
    page = render_report([read_run(tmp_path / "run")], exhibits=[shown])
    assert "What went wrong" in page and "Hidden states" not in page and "Spectra" not in page


def test_images_to_look_at_are_spread_over_all_classes():
    labels = torch.arange(10).repeat_interleave(500)
    counts = torch.bincount(labels[_spread(len(labels), 1000)])
    assert counts.tolist() == [100] * 10
    assert _spread(3, 1000).tolist() == [0, 1, 2] and _spread(0, 5).tolist() == []
