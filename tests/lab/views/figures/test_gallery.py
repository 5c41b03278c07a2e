"""Every figure that runs can give, written as files."""

import re

import numpy as np
import pytest

from bfno.lab.errors import ConfigError, DataError
from bfno.lab.runs.archive import LARGEST_PICTURE
from bfno.lab.runs.folder import read_runs
from bfno.lab.views.figures.densities import image_columns
from bfno.lab.views.figures.gallery import check_gallery, draw_figures, write_figures
from bfno.lab.views.figures.series import reconstruction_figure
from bfno.lab.views.figures.style import PALETTE
from tests.lab.views.drawings import legend, texts
from tests.lab.views.exhibits import write_exhibit
from tests.lab.views.figures.test_series import example_series
from tests.lab.views.runs import record, result, write_files, write_run

OVER_EPOCHS = {"accuracy", "train-loss", "nfe-forward", "nfe-backward", "nfe-test"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    found = [
        write_run(root, data, method, seed)
        for data in ("digits", "mnist")
        for method in ("bfno-node", "node")
        for seed in (1, 2)
    ]
    write_exhibit(found[0])
    return found


def _density(root, method="ffjord", data="digits-density"):
    scores = {"test_bits_per_dim": 4.0, "validation_bits_per_dim": 4.1, "forward_nfe": 24.0}
    folder = write_run(root, data, method, result=scores, classes=[], confusion=[])
    (folder / "figures").mkdir()
    return folder


def test_runs_give_what_their_folders_hold(folders):
    names = set(draw_figures(read_runs(folders), folders))
    shown = {"tsne-digits", "spectra-digits", "flow-digits-bfno-node"}
    assert names == OVER_EPOCHS | {"accuracy-against-cost"} | shown


def test_figures_are_written_as_png_and_svg_with_the_same_bytes_in_any_order(folders, tmp_path):
    written = write_figures(folders[:4], tmp_path / "a" / "b")
    names = {file.stem for file in written}
    assert sorted(file.name for file in (tmp_path / "a" / "b").iterdir()) == sorted(
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    )
    again = write_figures(folders[3::-1], tmp_path / "again")
    assert [file.read_bytes() for file in written] == [file.read_bytes() for file in again]
    assert all(file.stat().st_size <= LARGEST_PICTURE for file in written)
    # No file tells where the runs were, when it was made or by which version.
    assert not any(str(tmp_path).encode() in file.read_bytes() for file in written)
    assert not any(b"<metadata" in file.read_bytes() for file in written)


def test_figures_that_are_there_are_kept_unless_forced(tmp_path):
    folder = write_run(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    (out / "accuracy.svg").write_text("mine")
    with pytest.raises(ConfigError, match="pass --force"):
        write_figures([folder], out)
    assert [file.name for file in out.iterdir()] == ["accuracy.svg"]
    assert (out / "accuracy.svg").read_text() == "mine"
    write_figures([folder], out, force=True)
    assert (out / "accuracy.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["file", "file/deeper"])
def test_a_file_is_no_folder_for_figures(tmp_path, name):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ConfigError, match="is not a folder"):
        check_gallery(tmp_path / name)


def test_runs_that_give_nothing_are_refused(tmp_path):
    folder = write_files(tmp_path / "run", record(), [])
    with pytest.raises(ConfigError, match="nothing that could be drawn"):
        write_figures([folder], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_run_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="none is named"):
        write_figures([], tmp_path / "out")


def test_ablations_have_figures_of_their_own(tmp_path):
    folders = [write_run(tmp_path, method="node"), write_run(tmp_path)]
    for branches in (1, 3):
        config = {"model": {"field_options": {"branches": branches}}}
        method = f"bfno-node-branches{branches}"
        folders.append(write_run(tmp_path, method=method, config=config))
    folders.append(write_run(tmp_path, method="fno-node"))
    figures = draw_figures(read_runs(folders), folders)
    assert {"branches-digits", "operators-digits"} <= set(figures)
    found = texts(figures["accuracy"])
    assert {"bfno-node", "node"} <= set(found)
    assert not {"fno-node", "bfno-node-branches1"} & set(found)


def test_a_method_looks_the_same_in_every_figure_regardless_of_others(tmp_path):
    methods = ["bfno-node", *(f"method-{place:02}" for place in range(17))]
    folders = []
    for place, method in enumerate(methods):
        measured = result(0.9, forward_nfe=10.0 + place, backward_nfe=10.0 + place)
        if place in (2, 5):  # these have no solver, as recurrent networks
            measured |= {"forward_nfe": 0.0, "backward_nfe": 0.0}
        if place == 7:
            del measured["test_nfe"]
        folders.append(write_run(tmp_path, method=method, result=measured))
    figures = draw_figures(read_runs(folders), folders)
    all_looks = legend(figures["accuracy"], methods)
    assert len(all_looks) == len(set(all_looks.values())) == 18
    for name, count in {"nfe-forward": 16, "nfe-backward": 16, "nfe-test": 17}.items():
        found = legend(figures[name], methods)
        assert len(found) == count and found.items() <= all_looks.items()


def test_operators_look_as_among_all_methods(tmp_path):
    methods = ["bfno-node", "afno-node", "fno-node", "node"]
    folders = [write_run(tmp_path, method=method) for method in methods]
    figures = draw_figures(read_runs(folders), folders)
    compared = legend(figures["accuracy"], methods)
    operators = legend(figures["operators-digits"], methods)
    assert set(compared) == {"bfno-node", "node"} and len(operators) == 3
    assert operators["bfno-node"] == compared["bfno-node"]
    assert compared["node"] not in operators.values()


def test_ours_has_the_first_look_of_each_kind(tmp_path):
    folders = [_density(tmp_path, method) for method in ("ffjord", "ffjord-bfno-rnode")]
    folders += [write_run(tmp_path, method=method) for method in ("bfno-node", "node")]
    figures = draw_figures(read_runs(folders), folders)
    images = legend(figures["train-loss"], ["bfno-node"])
    densities = legend(figures["density-bits-per-dim"], ["ffjord-bfno-rnode"])
    assert images["bfno-node"] == densities["ffjord-bfno-rnode"] == (PALETTE[0], None)


def test_two_variants_of_which_one_was_not_judged_keep_their_names_and_looks(tmp_path):
    folders = []
    for width, measured in {8: result(), 16: {"train_loss": 0.5}}.items():
        config = {**record()["config"], "width": width}
        content = {**record(), "config": config, "result": measured}
        folders.append(write_files(tmp_path / str(width), content))
    figures = draw_figures(read_runs(folders), folders)
    names = ["bfno-node (width=8)", "bfno-node (width=16)"]
    losses = legend(figures["train-loss"], names)
    judged = legend(figures["accuracy"], names)
    assert set(losses) == set(names) and list(judged) == names[:1]
    assert judged.items() <= losses.items()


def test_samples_of_densities_stand_side_by_side(tmp_path):
    folders = [_density(tmp_path, method) for method in ("ffjord", "glow")]
    images = np.random.default_rng(0).integers(0, 256, (16, 1, 8, 8), dtype=np.uint8)
    for folder in folders:
        picture = image_columns({"real": images, "drawn": images})
        (folder / "figures" / "samples.png").write_bytes(picture)
    figures = draw_figures(read_runs(folders), folders)
    assert {"ffjord", "glow"} <= set(texts(figures["samples-digits-density"]))
    names = {"density-bits-per-dim", "density-nfe-forward", "density-bits-per-dim-against-cost"}
    assert names <= set(figures)
    assert "test bits/dim (uniform)" in texts(figures["density-bits-per-dim"])


@pytest.mark.parametrize("content", [b"no picture", b"\x89PNG\r\n\x1a\n cut off"])
def test_a_damaged_picture_is_named(tmp_path, content):
    folder = _density(tmp_path)
    (folder / "figures" / "samples.png").write_bytes(content)
    with pytest.raises(DataError, match=r"samples\.png: is not a picture"):
        draw_figures(read_runs([folder]), [folder])


def test_reconstructed_series_are_taken_as_they_were_drawn(tmp_path):
    folder = write_run(tmp_path)
    (folder / "figures").mkdir()
    drawn = reconstruction_figure([example_series()])
    (folder / "figures" / "reconstruction.svg").write_bytes(drawn)
    figure = draw_figures(read_runs([folder]), [folder])["reconstruction-digits-bfno-node"]
    assert figure.svg.encode() == drawn and figure.png is None


def test_names_of_files_hold_only_letters_and_digits(tmp_path):
    hostile = {"data": "../up/<b>", "method": "/etc/passwd\0"}
    folders = [write_files(tmp_path / str(seed), {**record(seed=seed), **hostile}) for seed in (1,)]
    write_exhibit(folders[0])
    names = draw_figures(read_runs(folders), folders)
    assert "flow-up-b-etc-passwd" in names
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_two_variants_of_a_method_both_have_their_figure(tmp_path):
    folders = []
    for width in (8, 16):
        config = {**record()["config"], "model": {"width": width}}
        content = {**record(), "config": config, "result": result()}
        folders.append(write_files(tmp_path / str(width), content))
        write_exhibit(folders[-1])
    names = draw_figures(read_runs(folders), folders)
    assert {"flow-digits-bfno-node", "flow-digits-bfno-node-2"} <= set(names)


def test_a_reconstruction_kept_as_pixels_alone_is_a_figure_too(tmp_path):
    folder = write_run(tmp_path)
    (folder / "figures").mkdir()
    png = reconstruction_figure([example_series()], "png")
    (folder / "figures" / "reconstruction.png").write_bytes(png)
    figure = draw_figures(read_runs([folder]), [folder])["reconstruction-digits-bfno-node"]
    assert figure.png == png and "<image" in figure.svg


def test_of_several_seeds_one_with_an_exhibit_is_shown(tmp_path):
    folders = [write_run(tmp_path, seed=seed) for seed in (7, 8, 9)]
    assert "flow-digits-bfno-node" not in draw_figures(read_runs(folders), folders)
    write_exhibit(folders[1])
    assert "flow-digits-bfno-node" in draw_figures(read_runs(folders), folders)
