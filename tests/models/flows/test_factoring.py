"""What all discrete flows share: shapes, copies, saved weights and what they refuse."""

import copy
import pickle
import sys

import pytest
import torch

from bfno.models.flows.factoring import ActNorm
from bfno.models.flows.glow import Glow
from bfno.models.flows.iresnet import IResNet
from bfno.models.flows.realnvp import RealNVP
from tests.models.flows.jacobians import disturb, parameters_without_gradient


def make_realnvp(shape=(1, 4, 4), **options):
    return RealNVP(shape, **{"width": 4, "residual_blocks": 1, **options})


def make_glow(shape=(1, 4, 4), **options):
    return Glow(shape, **{"steps": 2, "width": 4, **options})


def make_iresnet(shape=(1, 4, 4), **options):
    return IResNet(shape, **{"blocks": 2, "width": 4, **options})


MAKERS = [make_realnvp, make_glow, make_iresnet]
every_flow = pytest.mark.parametrize("make", MAKERS)


def trained(make, shape=(1, 4, 4), **options):
    """A flow that is neither at its start nor in training mode."""
    flow = make(shape, **options)
    x = torch.randn(4, *shape)
    flow.encode(x)
    disturb(flow)
    flow.encode(x)
    return flow.eval()


def seeded_log_prob(flow, x):
    torch.manual_seed(5)
    with torch.no_grad():
        return flow.log_prob(x)


@every_flow
@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (1, 14, 14), (1, 28, 28), (3, 32, 32), (2, 4, 4), (3, 4, 8), (1, 2, 2)]
)
def test_latents_have_the_size_of_images_and_lead_back_to_them(make, shape):
    flow, x = trained(make, shape), torch.randn(2, *shape)
    with torch.no_grad():
        latent = flow.encode(x).latent
        assert latent.shape == (2, flow.dimensions) and latent.isfinite().all()
        torch.testing.assert_close(flow.decode(latent), x, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("make", [make_realnvp, make_iresnet])
def test_images_with_odd_sides_stay_on_their_grid(make):
    flow, x = trained(make, (3, 5, 6)), torch.randn(2, 3, 5, 6)
    with torch.no_grad():
        torch.testing.assert_close(flow.decode(flow.encode(x).latent), x, rtol=1e-8, atol=1e-8)


@every_flow
def test_the_density_of_an_image_does_not_depend_on_its_batch(make):
    flow, x = trained(make, (2, 4, 4)), torch.randn(4, 2, 4, 4)
    expected = seeded_log_prob(flow, x)[1]
    changed = 3 * torch.randn_like(x)
    changed[1] = x[1]
    torch.testing.assert_close(seeded_log_prob(flow, changed)[1], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("make", [make_realnvp, make_glow])
def test_a_mapped_flow_gives_what_it_gives_for_each_batch(make):
    flow, x = trained(make), torch.randn(3, 2, 1, 4, 4)
    latents = torch.randn(3, 2, flow.dimensions)
    for function, inputs in ((flow.log_prob, x), (flow.decode, latents)):
        each = torch.stack([function(one) for one in inputs])
        torch.testing.assert_close(torch.func.vmap(function)(inputs), each, rtol=1e-12, atol=1e-12)
    slope = torch.func.grad(lambda one: flow.log_prob(one[None])[0])
    found, images = torch.func.vmap(slope)(x[0]), x[0].clone().requires_grad_()
    (expected,) = torch.autograd.grad(flow.log_prob(images).sum(), images)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@every_flow
def test_evaluation_changes_no_state(make):
    flow, x = make((1, 4, 4)).eval(), torch.randn(3, 1, 4, 4)
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    expected = seeded_log_prob(flow, x)
    flow.sample(2)
    assert torch.equal(seeded_log_prob(flow, x), expected)
    assert all(torch.equal(value, before[name]) for name, value in flow.state_dict().items())


@every_flow
def test_a_training_step_is_repeated_bit_for_bit_from_saved_state_and_seed(make):
    def step(flow):
        torch.manual_seed(3)
        loss = -flow.log_prob(x).mean()
        return loss.detach(), torch.autograd.grad(loss, list(flow.parameters()))

    first, x = make((1, 4, 4)), torch.randn(6, 1, 4, 4)
    first.encode(x)
    disturb(first)
    second = make((1, 4, 4))
    second.load_state_dict(first.state_dict())
    (loss, gradients), (again, gradients_again) = step(first), step(second)
    assert torch.equal(loss, again)
    assert all(map(torch.equal, gradients, gradients_again))
    left, right = first.state_dict(), second.state_dict()
    assert all(torch.equal(left[name], right[name]) for name in left)


@every_flow
def test_saved_weights_and_copies_give_the_same_density(make):
    flow, x = trained(make), torch.randn(3, 1, 4, 4)
    expected = seeded_log_prob(flow, x)
    loaded = make((1, 4, 4)).eval()
    assert not torch.equal(seeded_log_prob(loaded, x), expected)
    loaded.load_state_dict(flow.state_dict())
    for other in (loaded, copy.deepcopy(flow), pickle.loads(pickle.dumps(flow))):
        assert torch.equal(seeded_log_prob(other, x), expected)


@every_flow
def test_another_precision_gives_nearly_the_same_density(make):
    flow, x = trained(make), torch.randn(3, 1, 4, 4)
    torch.manual_seed(5)
    expected = flow.log_prob(x)
    single = copy.deepcopy(flow).to(torch.float32)
    torch.manual_seed(5)
    found = single.log_prob(x.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        back = single.decode(single.encode(x.float()).latent)
    torch.testing.assert_close(back, x.float(), rtol=1e-3, atol=1e-4)


@every_flow
def test_a_flow_on_the_meta_device_has_the_parameters_of_a_real_one(make):
    with torch.device("meta"):
        flow = make((3, 8, 8))
    assert all(parameter.is_meta for parameter in flow.parameters())
    shapes = {name: value.shape for name, value in flow.state_dict().items()}
    assert shapes == {name: value.shape for name, value in make((3, 8, 8)).state_dict().items()}


@every_flow
def test_the_likelihood_depends_on_every_parameter(make):
    # Some ReLUs of narrow networks are silent for all pixels of a small batch.
    flow = make((2, 8, 8), width=8)
    assert parameters_without_gradient(flow, torch.randn(16, 2, 8, 8)) == []


@every_flow
def test_a_flow_learns_the_mean_and_spread_of_its_data(make):
    flow = make((1, 4, 4), **({} if make is make_glow else {"scales": 1}))
    data = 1 + 0.3 * torch.randn(64, 1, 4, 4)
    optimiser = torch.optim.Adam(flow.parameters(), lr=0.03)
    for _ in range(40):
        optimiser.zero_grad()
        (-flow.log_prob(data).mean()).backward()
        optimiser.step()
    flow.eval()
    with torch.no_grad():
        samples = flow.sample(200)
    assert abs(samples.mean().item() - 1) < 0.1
    assert 0.2 < samples.std().item() < 0.5


@every_flow
def test_samples_repeat_with_their_generator_and_shrink_with_temperature(make):
    flow = trained(make)
    with torch.no_grad():
        one, two = (flow.sample(3, generator=torch.Generator().manual_seed(1)) for _ in range(2))
        assert torch.equal(one, two)
        centre = flow.decode(torch.zeros(3, flow.dimensions))
        assert torch.equal(flow.sample(3, temperature=0.0), centre)


@every_flow
def test_images_and_latents_of_another_shape_are_refused(make):
    flow = make((1, 4, 4))
    with pytest.raises(ValueError, match=r"samples must have shape \(batch, 1, 4, 4\)"):
        flow.encode(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match=r"latent must have shape \(batch, 16\), got \(2, 15\)"):
        flow.decode(torch.zeros(2, 15))


@every_flow
@pytest.mark.parametrize("shape", [(4, 4), (1, 0, 4), (1, 4, 4, 4)])
def test_event_shapes_that_are_no_images_are_refused(make, shape):
    with pytest.raises(ValueError, match="event_shape must be"):
        make(shape)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (make_realnvp, "scales"),
        (make_realnvp, "width"),
        (make_realnvp, "residual_blocks"),
        (make_glow, "levels"),
        (make_glow, "steps"),
        (make_glow, "width"),
        (make_iresnet, "scales"),
        (make_iresnet, "blocks"),
        (make_iresnet, "width"),
        (make_iresnet, "terms"),
        (make_iresnet, "test_terms"),
        (make_iresnet, "power_iterations"),
        (make_iresnet, "max_iterations"),
    ],
)
def test_sizes_below_one_are_refused_by_name(make, option):
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        make((1, 4, 4), **{option: 0})


@pytest.mark.parametrize("make", [make_realnvp, make_glow])
def test_without_normflows_the_error_says_what_to_install(make, monkeypatch):
    monkeypatch.setitem(sys.modules, "normflows", None)
    with pytest.raises(ImportError, match=r"pip install 'bfno\[flows\]'"):
        make((1, 4, 4))


def test_an_empty_batch_is_not_the_first_one():
    """Its mean and variance are no numbers, and would stay for good."""
    norm, x = ActNorm(2), 3 + 2 * torch.randn(50, 2, 4, 4)
    assert norm.encode(x[:0])[0].shape == (0, 2, 4, 4) and not norm.initialised
    variance, mean = torch.var_mean(norm.encode(x)[0], dim=(0, 2, 3), correction=0)
    torch.testing.assert_close(mean, torch.zeros(2), rtol=0, atol=1e-12)
    torch.testing.assert_close(variance, torch.ones(2), rtol=0, atol=1e-12)
