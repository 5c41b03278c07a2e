"""A flow that has learned points in the plane, against points it has not seen."""

import pytest
import torch

from bfno.fields import MLPField
from bfno.lab.data import toy_points
from bfno.models.flows import ContinuousFlow

COUNT = 250


def share_of_larger_distances(one, other, permutations=300):
    """The two-sample test by energy distance: the share of permutations that lie further apart.

    Small if the samples come from different distributions, evenly spread if from the same.
    """
    both = torch.cat((one, other)).double()
    distances = torch.cdist(both, both)

    def energy(order):
        mixed = distances[order][:, order]
        size = len(one)
        across = mixed[:size, size:].mean()
        return 2 * across - mixed[:size, :size].mean() - mixed[size:, size:].mean()

    observed = energy(torch.arange(len(distances)))
    drawn = [energy(torch.randperm(len(distances))) for _ in range(permutations)]
    return (torch.stack(drawn) >= observed).double().mean().item()


@pytest.fixture(scope="module")
def flows():
    """A flow of two moons, before and after some steps in single precision."""
    torch.set_default_dtype(torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pair = []
        for steps in (0, 250):
            field = MLPField(2, 48, depth=3)
            torch.nn.init.zeros_(field.leave.weight)
            solver = {"method": "rk4", "step": 0.5, "gradient": "direct"}
            flow = ContinuousFlow(field, (2,), trace="exact", solver=solver)
            optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
            for step in range(steps):
                for group in optimizer.param_groups:
                    group["lr"] = 1e-2 * (1 - step / steps)
                loss = -flow.log_prob(toy_points("moons", 192, seed=step)).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            pair.append(flow.eval())
    return pair


def test_samples_of_a_trained_flow_pass_the_test_that_those_of_a_fresh_one_fail(flows):
    torch.set_default_dtype(torch.float32)
    unseen = toy_points("moons", COUNT, seed=10_001)
    untrained, trained = flows
    with torch.no_grad():
        fresh, learned = untrained.sample(COUNT), trained.sample(COUNT)
    assert share_of_larger_distances(fresh, unseen) < 0.01
    assert share_of_larger_distances(learned, unseen) > 0.05


def test_the_test_itself_accepts_what_is_the_same_and_refuses_a_small_shift():
    one, other = (toy_points("moons", COUNT, seed=seed) for seed in (1, 2))
    assert share_of_larger_distances(one, other) > 0.05
    assert share_of_larger_distances(one, other + 0.4) < 0.01


def test_a_trained_density_still_integrates_to_one(flows):
    torch.set_default_dtype(torch.float32)
    side = torch.linspace(-5, 5, 101)
    with torch.no_grad():
        density = flows[1].log_prob(torch.cartesian_prod(side, side)).exp().double()
    mass = density.sum().item() * (side[1] - side[0]).item() ** 2
    assert abs(mass - 1) < 1e-3
