"""Images in arrays: every layout that means the same is the same; what is unclear is refused."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.sparse import csr_matrix
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import bfno
from bfno.lab.cli import main
from bfno.lab.errors import NumericalError
from bfno.lab.estimators.images import image_bytes
from bfno.sklearn import ImageClassifier
from tests.lab.estimators.small import digits, small_images

GREY, LABELS = digits(60)


@pytest.fixture(scope="module")
def fitted():
    torch.set_default_dtype(torch.float32)
    return small_images(settings={"model.width": 4}, epochs=12).fit(GREY, LABELS)


def test_it_learns_to_tell_digits_apart(fitted):
    # Zeros and ones: chance is 50 %.
    others, labels = digits(200)
    assert fitted.score(others[100:], labels[100:]) > 0.8


def test_probabilities_are_those_of_the_model_at_its_temperature(fitted):
    found = fitted.predict_proba(GREY)
    assert found.shape == (60, 2) and np.array_equal(fitted.classes_, [0, 1])
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-12)
    pixels = torch.from_numpy(np.rint(GREY * 255) / 255).float()[:, None]
    with torch.no_grad():
        scores = fitted.model_.eval()(pixels) / fitted.history_[-1]["validation_temperature"]
    # Single precision, and another number of images at a time.
    np.testing.assert_allclose(found, scores.softmax(1).numpy(), atol=1e-5)
    assert np.array_equal(fitted.predict(GREY), found.argmax(1))


def test_a_copy_says_the_same(fitted):
    again = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(again.predict_proba(GREY), fitted.predict_proba(GREY))


def test_layouts_and_types_that_mean_the_same_images_are_the_same():
    grey = (GREY * 15).astype(np.uint8) * 17
    expected, _ = image_bytes(grey, "auto")
    assert expected.shape == (60, 1, 8, 8) and expected.dtype == torch.uint8
    for same in (grey[..., None], grey[:, None], grey / 255, (grey / 255).astype(np.float32)):
        assert torch.equal(image_bytes(same, "auto")[0], expected)
    assert torch.equal(image_bytes(torch.from_numpy(grey), "auto")[0], expected)
    colour = np.random.RandomState(0).randint(0, 256, (4, 5, 6, 3)).astype(np.uint8)
    last, _ = image_bytes(colour, "auto")
    first, _ = image_bytes(colour.transpose(0, 3, 1, 2), "auto")
    assert torch.equal(first, last) and first.shape == (4, 3, 5, 6)
    assert torch.equal(image_bytes(colour[:, :3], "last")[0], first[:, :, :3])


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (np.zeros((5, 64)), r"got an array of shape \(5, 64\); unflatten .*X.reshape\(len\(X\), 8"),
        (np.zeros((5, 60)), r"unflatten images: X.reshape\(len\(X\), height, width\)"),
        (np.zeros((5, 3, 8, 3)), "say channels='first' or channels='last'"),
        (np.zeros((5, 8, 8, 8)), "say channels='first' or channels='last'"),
        (np.full((5, 8, 8), 16.0), "must be between 0 and 1, got 16 to 16; divide by 16"),
        (np.full((5, 8, 8), -1.0), "must be between 0 and 1, got -1 to -1; bring them there"),
        (np.full((5, 8, 8), np.nan), "finite"),
        (np.zeros((5, 8, 8), int), r"got int64; X.astype\('uint8'\) if they are bytes"),
        (np.full((5, 8, 8), 999), "got int64$"),
        (np.zeros((5, 8, 8), complex), "got complex128"),
        (np.zeros((0, 8, 8)), "at least one image"),
        (np.array([np.zeros((2, 2)), None], object), "resized first"),
        ("photo.png", "got an array of shape"),
    ],
)
def test_what_is_no_image_or_unclear_is_refused(images, said):
    with pytest.raises(ValueError, match=said):
        small_images().fit(images, [0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "requires y"),
        ([0, 1], "one label for each of the 5 images, got 2"),
        ([3] * 5, "at least two classes, got 1 class: .*3"),
        ([0.5, 1.5, 2.5, 3.5, 4.5], "continuous"),
        ([0, 1, np.nan, 1, 0], "NaN"),
        (np.array(["a", None, "b", "a", "b"], object), "missing label"),
        (np.array(["a", 1, "b", 1, "b"], object), "mixture|Unknown label type"),
        (np.array(["2024-01-01", "2024-01-02", "NaT", "NaT", "NaT"], "M8[D]"), "missing label"),
        (np.array(["a", "b", "a", "b", "b"], "S1"), r"str instead of bytes; \[label.decode\(\)"),
        (np.array([b"a", b"b", b"a", b"b", b"b"], object), "str instead of bytes"),
    ],
)
def test_wrong_labels_are_refused(labels, said):
    with pytest.raises(ValueError, match=said):
        small_images().fit(GREY[:5], labels)


def test_what_pandas_calls_missing_is_no_label():
    pandas = pytest.importorskip("pandas", reason="needs pandas, which is not installed")
    labels = pandas.Series(["a", None, "b", "a", "b"], dtype="string")
    with pytest.raises(ValueError, match="missing label"):
        small_images().fit(GREY[:5], labels)


def test_a_sparse_matrix_is_refused():
    with pytest.raises(TypeError, match="Sparse input is not supported"):
        small_images().fit(csr_matrix(np.eye(5)), [0, 1, 0, 1, 0])


@pytest.mark.parametrize("labels", [["cat", "dog"], [7, -2], [True, False]])
def test_labels_are_of_any_kind(labels):
    given = np.array(labels)[LABELS[:20]]
    fitted = small_images().fit(GREY[:20], given)
    assert np.array_equal(fitted.classes_, np.unique(given))
    assert set(fitted.predict(GREY[:20])) <= set(given)


def test_images_need_not_be_square_nor_grey():
    images = np.random.RandomState(0).rand(20, 4, 9, 12)
    fitted = small_images().fit(images, LABELS[:20])
    assert fitted.image_shape_ == (4, 9, 12) and isinstance(fitted.model_, bfno.ConvNet)
    assert fitted.predict(images[:2]).shape == (2,)
    with pytest.raises(ValueError, match=r"4 channels on 9×12 pixels as in fit, got .*\(1, 8, 8\)"):
        fitted.predict(GREY)


def test_other_methods_are_a_word():
    fitted = small_images(method="node", settings={"solver.rtol": 0.1}).fit(GREY[:20], LABELS[:20])
    assert isinstance(fitted.model_, bfno.ImageClassifier)


def test_it_works_behind_other_steps_and_in_cross_validation():
    flat = GREY[:30].reshape(30, 64) * 16
    steps = make_pipeline(FunctionTransformer(lambda X: X.reshape(-1, 8, 8) / 16), small_images())
    assert np.isfinite(cross_val_score(steps, flat, LABELS[:30], cv=2)).all()


def test_the_program_knows_a_run_that_is_kept(tmp_path, capsys):
    small_images(checkpoints=tmp_path / "run").fit(
        GREY[:20], np.array(["nought", "one"])[LABELS[:20]]
    )
    Image.fromarray((GREY[0] * 255).astype(np.uint8)).save(tmp_path / "new.png")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "new.png")]) == 0
    assert "nought" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0


@pytest.mark.slow
def test_by_default_it_learns_the_digits_and_a_search_chooses():
    images, labels = digits(1797, classes=10)
    fitted = ImageClassifier(random_state=0).fit(images[:400], labels[:400])
    # Chance is 10 %; 88 % where this was written.
    assert fitted.score(images[400:800], labels[400:800]) > 0.75
    search = GridSearchCV(
        small_images(), {"epochs": [1, 20], "settings": [{"model.width": 4}]}, cv=2
    )
    assert search.fit(GREY, LABELS).best_params_["epochs"] == 20


def test_a_training_that_ends_in_no_number_is_no_success():
    lost = {"train.clip": None, "train.warmup": 0}
    with pytest.raises(NumericalError, match="the model's scores are not finite numbers"):
        small_images(method="cnn", lr=1e9, batch_size=100, settings=lost).fit(GREY, LABELS)


def test_weights_that_are_lost_make_no_prediction():
    fitted = small_images().fit(GREY, LABELS)
    torch.nn.init.constant_(fitted.model_.head.bias, np.nan)
    with pytest.raises(NumericalError, match="the model's scores are not finite numbers"):
        fitted.predict(GREY)
