import itertools
import math

import numpy as np
import pytest
import torch

import bfno
from bfno.ode import METHODS, Tableau

RUNGE_KUTTA = [name for name in sorted(METHODS) if not METHODS[name].implicit]


def matrices(tableau):
    stages = len(tableau.stages)
    a = np.zeros((stages, stages))
    for index, row in enumerate(tableau.stages):
        a[index, : len(row)] = row
    return a, np.array(tableau.weights), np.array(tableau.nodes)


def trees(order):
    """Rooted trees with `order` nodes, each the sorted tuple of its branches."""
    if order == 1:
        return [()]
    found = set()
    for sizes in _partitions(order - 1):
        for branches in itertools.product(*(trees(size) for size in sizes)):
            found.add(tuple(sorted(branches)))
    return sorted(found)


def _partitions(total, largest=None):
    largest = total if largest is None else largest
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for rest in _partitions(total - first, first):
            yield (first, *rest)


def size(tree) -> int:
    return 1 + sum(size(branch) for branch in tree)


def density(tree) -> int:
    return size(tree) * math.prod(density(branch) for branch in tree)


def stage_vector(tree, a):
    """The elementary weight of each stage: Butcher's recursion."""
    vector = np.ones(len(a))
    for branch in tree:
        vector = vector * (a @ stage_vector(branch, a))
    return vector


@pytest.mark.parametrize("name", RUNGE_KUTTA)
def test_every_order_condition_holds_and_one_of_the_next_order_does_not(name):
    tableau = METHODS[name]
    a, b, _ = matrices(tableau)
    for order in range(1, tableau.order + 1):
        for tree in trees(order):
            # Published coefficients are rounded to about 18 digits.
            assert b @ stage_vector(tree, a) == pytest.approx(1 / density(tree), abs=1e-13)
    missed = [
        abs(b @ stage_vector(tree, a) - 1 / density(tree)) for tree in trees(tableau.order + 1)
    ]
    assert max(missed) > 1e-7


@pytest.mark.parametrize("name", RUNGE_KUTTA)
def test_dense_output_meets_its_order_conditions_at_every_share_of_the_step(name):
    tableau = METHODS[name]
    a, b, _ = matrices(tableau)
    assert np.allclose(tableau.dense_weights(1.0), b, rtol=0, atol=2e-12)
    for theta in (0.2, 0.5, 0.9):
        weights = np.array(tableau.dense_weights(theta))
        for order in range(1, tableau.dense_order + 1):
            for tree in trees(order):
                expected = theta**order / density(tree)
                assert weights @ stage_vector(tree, a) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", [name for name in RUNGE_KUTTA if METHODS[name].adaptive])
def test_the_error_estimate_vanishes_below_the_methods_order_and_not_beyond(name):
    tableau = METHODS[name]
    a, _, _ = matrices(tableau)
    error = np.array(tableau.error)
    for order in range(1, tableau.order):
        for tree in trees(order):
            assert error @ stage_vector(tree, a) == pytest.approx(0, abs=1e-13)
    assert max(abs(error @ stage_vector(tree, a)) for tree in trees(tableau.order)) > 1e-6
    assert tableau.reuses_last_stage


EULER = {
    "name": "mine",
    "order": 1,
    "stages": ((),),
    "weights": (1.0,),
    "error": None,
    "dense": ((1.0,),),
    "dense_order": 1,
}
TRAPEZOID = {
    **EULER,
    "stages": ((), (1.0,)),
    "weights": (0.5, 0.5),
    "error": (0.5, -0.5),
    "dense": ((0.5,), (0.5,)),
}
# Backward Euler, Crank–Nicolson, and the two-stage method of order two with γ = 1 - 1/√2.
GAMMA = 1 - 0.5**0.5
IMPLICIT = {
    "backward-euler": {**EULER, "stages": ((1.0,),)},
    "crank-nicolson": {**TRAPEZOID, "stages": ((), (0.5, 0.5))},
    "sdirk2": {
        **TRAPEZOID,
        "stages": ((GAMMA,), (1 - GAMMA, GAMMA)),
        "weights": (1 - GAMMA, GAMMA),
        "dense": ((1 - GAMMA,), (GAMMA,)),
    },
}


@pytest.mark.parametrize("name", IMPLICIT)
def test_implicit_methods_are_refused(name):
    with pytest.raises(ValueError, match=r"'mine' .* explicit") as caught:
        Tableau(**IMPLICIT[name])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": ((), ())}, "row 1 of stages .* 1 entry, got 0"),
        ({"stages": ((), (1.0,), (1.0,))}, "row 2 of stages .* 2 entries, got 1"),
        ({"weights": (1.0,)}, "weights .* one entry per stage, which are 2, got 1"),
        ({"error": (0.5, -0.5, 0.0)}, "error .* one entry per stage, which are 2, got 3"),
        ({"dense": ((1.0,),)}, "dense .* one entry per stage, which are 2, got 1"),
        ({"dense": ((0.5,), (0.5, 0.0))}, r"rows of dense .* length, got 1, 2"),
        ({"weights": (0.5, 0.4)}, r"weights .* sum to 1, got 0\.9"),
        ({"weights": (math.nan, 0.5)}, "weights .* sum to 1, got nan"),
        ({"error": (0.5, -0.4)}, r"error .* sum to 0, got 0\.1"),
        ({"dense": ((0.5,), (0.4,))}, "dense .* weights at the end of the step"),
        ({"dense": ((), ())}, "dense .* weights at the end of the step"),
        ({"stages": (), "weights": (), "error": None, "dense": ()}, "weights .* sum to 1, got 0"),
    ],
)
def test_malformed_methods_are_refused(change, words):
    assert Tableau(**TRAPEZOID).adaptive
    with pytest.raises(ValueError, match=f"^.*{words}") as caught:
        Tableau(**{**TRAPEZOID, **change})
    text = str(caught.value)
    assert "'mine'" in text
    assert "\n" not in text
    assert len(text) < 200


def test_rows_of_any_kind_of_numbers_become_tuples():
    listed = Tableau(**{**TRAPEZOID, "stages": [[], [1]], "weights": np.array([0.5, 0.5])})
    assert listed == Tableau(**TRAPEZOID)
    assert hash(listed) == hash(Tableau(**TRAPEZOID))
    extended = Tableau(**{**TRAPEZOID, "weights": [0.5, 0.5]}).with_end_stage()
    assert extended.reuses_last_stage


@pytest.mark.parametrize("name", RUNGE_KUTTA)
def test_a_method_without_its_end_stage_takes_the_same_steps(name):
    tableau = METHODS[name]
    bare = tableau.without_end_stage
    assert len(bare.stages) == len(tableau.stages) - tableau.reuses_last_stage
    assert not bare.reuses_last_stage
    ys = [
        bfno.solve(lambda t, y: t - y, torch.ones(2), torch.tensor([0.0, 1.0]), method=m, step=0.3)
        for m in (tableau, bare)
    ]
    torch.testing.assert_close(ys[0].ys, ys[1].ys, rtol=0, atol=1e-15)


def test_a_method_is_shown_by_its_name():
    assert repr(METHODS["dopri8"]) == "Tableau(name='dopri8', order=8)"
    block = bfno.NeuralODE(bfno.FirstOrder(bfno.MLPField(2, 4)), method=METHODS["dopri8"])
    assert "method='dopri8'" in repr(block)
    assert len(repr(block)) < 500
