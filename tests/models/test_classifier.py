"""Image classification by a neural ODE."""

import copy
import io

import pytest
import torch
from torch.nn import functional as F

from bfno.dynamics import FirstOrder, InitialVelocity, SecondOrder
from bfno.fields.convolution import ConvField
from bfno.lab.experiments.resolve import resolve
from bfno.models import ImageClassifier
from bfno.ode import NeuralODE


def small_classifier():
    field = ConvField(8, 5, 4)
    dynamics = SecondOrder(field, InitialVelocity(2, 5, 6))
    return ImageClassifier(NeuralODE(dynamics), (2, 5, 6), classes=3)


def test_scores_are_an_affine_map_of_the_read_out():
    classifier = small_classifier()
    x = torch.randn(4, 2, 5, 6)
    read_out = classifier.block(x)
    expected = read_out.flatten(1) @ classifier.head.weight.T + classifier.head.bias
    assert read_out.shape[1:] == (4, 5, 6)
    torch.testing.assert_close(classifier(x), expected, rtol=0, atol=1e-12)


def test_a_field_at_rest_hands_the_image_to_the_head():
    dynamics = FirstOrder(lambda t, y: torch.zeros_like(y), augment=1)
    classifier = ImageClassifier(NeuralODE(dynamics), (2, 3, 3), classes=4)
    x = torch.randn(2, 2, 3, 3)
    expected = x.flatten(1) @ classifier.head.weight[:, :18].T + classifier.head.bias
    torch.testing.assert_close(classifier(x), expected, rtol=0, atol=1e-12)


def test_a_classifier_learns_to_tell_two_images_apart():
    classifier = small_classifier()
    x, labels = torch.randn(2, 2, 5, 6), torch.tensor([0, 2])
    optimiser = torch.optim.Adam(classifier.parameters(), lr=0.01)
    for _ in range(20):
        optimiser.zero_grad()
        F.cross_entropy(classifier(x), labels).backward()
        optimiser.step()
    assert F.cross_entropy(classifier(x), labels).item() < 0.05


@pytest.mark.parametrize("method", ["node", "ghbnode", "gnesterovnode", "adamnode", "bfno-node"])
def test_copies_and_saved_weights_give_the_same_scores(method):
    config = resolve(f"mnist/{method}", scale="paper", changes={"solver": {"rtol": 1e-2}})
    classifier = config.build({"classes": range(10)}).double()
    x = torch.rand(1, 1, 28, 28)
    with torch.no_grad():
        scores = classifier(x)
        assert torch.equal(copy.deepcopy(classifier)(x), scores)
        file = io.BytesIO()
        torch.save(classifier.state_dict(), file)
        file.seek(0)
        other = config.build({"classes": range(10)}).double()
        assert not torch.equal(other(x), scores)
        other.load_state_dict(torch.load(file, weights_only=True))
        assert torch.equal(other(x), scores)


def test_images_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="shape"):
        small_classifier()(torch.zeros(1, 2, 6, 6))
