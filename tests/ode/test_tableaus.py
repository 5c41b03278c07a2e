import itertools
import math

import numpy as np
import pytest

from bfno.ode import METHODS

RUNGE_KUTTA = sorted(METHODS)


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


def size(tree):
    return 1 + sum(size(branch) for branch in tree)


def density(tree):
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
