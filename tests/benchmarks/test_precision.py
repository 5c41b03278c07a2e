import torch

from benchmarks import precision
from benchmarks.precision import BUDGETS, Candidate, Proportional, Remembering, _Trained
from bfno.ode import METHODS


class Spiral(torch.nn.Module):
    def forward(self, t, y):
        return torch.stack((y[..., 1], -y[..., 0]), dim=-1) * (1 + t) - 0.5 * y


def trained():
    images = torch.linspace(-1, 1, 4 * precision.BATCH, dtype=torch.float32).view(-1, 2)
    return _Trained("spiral", Spiral(), images)


def test_errors_fall_with_the_evaluations_of_every_kind_of_candidate():
    problem = trained()
    for candidate in (
        Candidate(METHODS["dopri5"], Remembering),
        Candidate(METHODS["dopri5"], Remembering, "remembered"),
        Candidate(METHODS["bosh3"], Proportional),
        Candidate(METHODS["bosh3"], Remembering, 0.5),
        Candidate(METHODS["rk4"]),
        Candidate(METHODS["midpoint"]),
    ):
        points = list(candidate.points(problem))
        counts = [count for count, _ in points]
        assert counts == sorted(counts), candidate.name
        assert points[-1][1] < points[0][1] < 1, candidate.name


def test_equal_steps_cost_their_stages_and_have_the_error_of_the_method():
    points = list(Candidate(METHODS["rk4"]).points(trained()))
    assert [count for count, _ in points] == [4, 8, 12, 16, 20, 24]
    assert points[0][1] / points[1][1] > 10  # order four: sixteen times less for half the step


def test_a_budget_takes_the_best_of_what_it_allows():
    points = [(7, 0.5), (14, 0.02), (20, 0.03)]
    assert [precision._smallest(points, budget) for budget in BUDGETS] == [0.5, 0.02, 0.02, 0.02]
    assert precision._smallest(points[1:], 8) is None
