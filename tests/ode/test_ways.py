"""However a field is written, its gradient is exact or refused by name.

Every way of the catalogue is solved with `checkpoint` and with `adjoint` and compared with
`direct`, that is with autograd through all steps, which itself is compared with a method that is
written by hand.
"""

import functools
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrize

from bfno.ode import problem, replay, snapshots
from tests.ode.ways import (
    CACHED,
    EXACT,
    HIDING,
    TWICE,
    WAYS,
    GradientError,
    Skew,
    Trial,
    Way,
    accept_everything,
    column,
    either,
    named,
    prefixed,
    refused,
    run,
)

# An error that only says no leaves its reader alone.
REMEDY = r"direct|checkpoint|clone|eval\(\)|\buse\b|\bpass\b|parameters=|before|instead|\breplace\b"


def cases(gradient):
    """Ways with the steps and times that make sense for them."""
    return [
        pytest.param(way, steps, times, id=f"{name} - {steps} - {times}")
        for name, way in WAYS.items()
        if gradient in (*way.gradients, "direct")
        for steps in way.steps
        for times in way.times
    ]


@functools.cache
def reference(way, steps, times, tight):
    """What autograd finds, or the method by hand where direct is on trial itself."""
    gradient = "direct" if way.direct == EXACT else "by hand"
    return run(way, Trial(gradient, steps, times, tight))


def differences(found, expected, tolerance):
    """In what two results differ, relative to the largest entry of each tensor."""
    if found.keys() != expected.keys():
        return [f"results are {sorted(found)}, not {sorted(expected)}"]
    lines = []
    for name, right in expected.items():
        value = found[name]
        if value is None or right is None:
            # A zero for None would make an optimiser move what was not used.
            if value is not right:
                lines.append(f"{name} is {'None' if value is None else 'a tensor'}, direct differs")
        elif value.shape != right.shape or value.dtype != right.dtype:
            lines.append(f"{name} has shape {tuple(value.shape)} and dtype {value.dtype}")
        elif right.numel():
            off, size = (float(x.detach().abs().max()) for x in (value - right, right))
            error = off / max(size, 1e-3)
            if not error <= tolerance:
                lines.append(f"{name} is off by {error:.1e}")
    return lines


def check(way, trial, expected, tolerance):
    """Hold a trial against what is expected of it."""
    try:
        found = run(way, trial)
    except expected.errors as error:
        assert expected.words, f"refused what it can do: {error}"
        assert re.search(expected.words, str(error), re.IGNORECASE), f"no cause in: {error}"
        if expected.errors == (GradientError,):
            assert re.search(REMEDY, str(error)), f"no way out in: {error}"
        return
    assert expected.exact, "was not refused"
    right = reference(way, trial.steps, trial.times, trial.tight)
    assert not (lines := differences(found, right, tolerance)), "; ".join(lines)


# The mixtures below try hiding places with the other steps and times.
def is_fit_for_checkpoint(way, steps, times):
    hidden = way.name.startswith("hidden in")
    return not hidden or (steps, times) in {("fixed", "shared"), ("adaptive", "rows")}


CHECKPOINT = [case for case in cases("checkpoint") if is_fit_for_checkpoint(*case.values)]


def set_memory(monkeypatch, kind):
    """Choose what a backward pass repeats: whole steps, single evaluations, some, or nothing."""
    if kind != "nothing":
        monkeypatch.setattr(replay, "KEPT_BYTES", 1500 if kind == "some evaluations" else 0)
    if kind.endswith("evaluations"):
        monkeypatch.setattr(problem, "SMALL_STATE", 0)


@pytest.mark.parametrize(("way", "steps", "times"), CHECKPOINT)
def test_checkpoint_is_exact_or_refused(way, steps, times, monkeypatch):
    set_memory(monkeypatch, "steps" if (steps, times) != ("adaptive", "shared") else "evaluations")
    check(way, Trial("checkpoint", steps, times), way.checkpoint, way.tolerance)


def check_kept_states(way, steps, times, memory, monkeypatch):
    """The same where states are kept: each, or one only, from which all steps are repeated."""
    if memory == "log":
        monkeypatch.setattr(snapshots.Shelf, "capacity", lambda self, steps, size: 1)
    if steps == "adaptive":
        monkeypatch.setattr(problem, "SMALL_STATE", 0)
    once = way.adjoint == either(TWICE)  # and not twice, as with the adjoint
    expected = refused(TWICE) if once else way.checkpoint
    trial = Trial("checkpoint", steps, times, options={"memory": memory})
    check(way, trial, expected, way.tolerance)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_checkpoint_that_keeps_states_is_exact_or_refused(way, monkeypatch):
    if "checkpoint" not in way.gradients:
        pytest.skip("the way is about another gradient")
    check_kept_states(way, way.steps[-1], way.times[0], "log", monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["steps", "log"])
@pytest.mark.parametrize(("way", "steps", "times"), CHECKPOINT)
def test_checkpoint_that_keeps_states_is_exact_for_all_steps_and_times(
    way, steps, times, memory, monkeypatch
):
    check_kept_states(way, steps, times, memory, monkeypatch)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_checkpoint_that_keeps_its_graphs_is_exact_or_raises(way):
    if "checkpoint" not in way.gradients:
        pytest.skip("the way is about another gradient")
    # Autograd itself refuses tensors that were changed in place, in its own words.
    trial = Trial("checkpoint", way.steps[0], way.times[0])
    try:
        found = run(way, trial)
    except (RuntimeError, ValueError):
        assert way.checkpoint.words, "refused what it can do"
        return
    right = reference(way, trial.steps, trial.times, trial.tight)
    assert not (lines := differences(found, right, way.tolerance)), "; ".join(lines)


# Rows of times are refused with adaptive steps, see below. Shared times are solved adaptively,
# unless the way itself needs fixed steps, which are small then: the two discretisations differ.
# For hiding places, of which there are many, the quickest has to do.
def is_fit_for_the_adjoint(way, steps, times):
    if way.name.startswith("hidden in"):
        return (steps, times) == ("fixed", "shared")
    if times == "rows":
        return steps == "fixed"
    return steps == "adaptive" or "adaptive" not in way.steps


ADJOINT = [case for case in cases("adjoint") if is_fit_for_the_adjoint(*case.values)]


@pytest.mark.parametrize(("way", "steps", "times"), ADJOINT)
def test_the_adjoint_is_exact_or_refused(way, steps, times):
    check(way, Trial("adjoint", steps, times, tight=True), way.adjoint, 1e-5)


def test_the_adjoint_refuses_rows_of_times_with_adaptive_steps():
    with pytest.raises(ValueError, match="needs times that all samples share"):
        run(WAYS["plain module"], Trial("adjoint", "adaptive", "rows"))


def is_fit_for_a_method_by_hand(way, steps, times):
    special = times == "shared" or "time" in way.name or "state" in way.name
    return steps == "fixed" and special and (way.by_hand or way.direct != EXACT)


BY_HAND = [case for case in cases("direct") if is_fit_for_a_method_by_hand(*case.values)]


@pytest.mark.parametrize(("way", "steps", "times"), BY_HAND)
def test_direct_equals_a_method_written_by_hand_or_raises(way, steps, times):
    trial = Trial("direct", steps, times)
    try:
        found = run(way, trial)
    except way.direct.errors as error:
        assert way.direct.words, f"refused what it can do: {error}"
        assert re.search(way.direct.words, str(error), re.IGNORECASE), f"no cause in: {error}"
        return
    assert way.direct.exact, "was not refused"
    right = run(way, Trial("by hand", steps, times))
    tolerance = max(1e-10, way.tolerance)
    assert not (lines := differences(found, right, tolerance)), "; ".join(lines)


def compose(hide, derive, dropout, conditional):
    """A way made of independent choices."""

    def build(trial):
        if dropout:
            accept_everything(trial)
        layer, encoder, y0, memory = nn.Linear(3, 3), nn.Linear(2, 3), trial.start(), []
        if derive == "parametrised":
            parametrize.register_parametrization(layer, "weight", Skew())
        if derive == "derived":
            memory.append(layer.weight - layer.weight.T)
        context = encoder(torch.randn(2, 2)) if conditional else torch.zeros(())

        def part(t, y):
            if derive == "cached" and not memory:
                memory.append(layer.weight - layer.weight.T)
            weight = memory[0] if memory else layer.weight
            z = torch.tanh(y @ weight + layer.bias) * (1 + column(t, y)) + context * y
            return torch.dropout(z, 0.3, train=dropout)

        asked = named(layer, y0, **(prefixed("encoder", encoder) if conditional else {}))
        return trial.solve(HIDING[hide](part), y0 + context), asked

    # What a field keeps from its first call may have to be refused; all else can be exact.
    expected = either(CACHED) if derive == "cached" else EXACT
    return Way(f"{derive} in {hide}", build, checkpoint=expected)


@given(
    hide=st.sampled_from(sorted(HIDING)),
    derive=st.sampled_from(["leaf", "derived", "parametrised", "cached"]),
    dropout=st.booleans(),
    conditional=st.booleans(),
    steps=st.sampled_from(["fixed", "adaptive"]),
    times=st.sampled_from(["shared", "rows"]),
    repeated=st.sampled_from(["steps", "evaluations", "some evaluations", "nothing"]),
)
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_checkpoint_is_exact_for_any_mixture_of_ways(
    hide, derive, dropout, conditional, steps, times, repeated
):
    way = compose(hide, derive, dropout, conditional)
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_memory(monkeypatch, repeated)
        check(way, Trial("checkpoint", steps, times), way.checkpoint, 1e-10)


def test_the_catalogue_is_long():
    assert len(WAYS) >= 60


def test_no_way_is_vacuous():
    """Every asked gradient is a number other than zero, but for those that are declared idle."""
    silent = []
    for way in WAYS.values():
        if way.direct.exact:
            found = reference(way, way.steps[0], way.times[0], False)
            zero = [name for name, value in found.items() if value is None or not value.any()]
            silent += [(way.name, name) for name in zero if not name.startswith(way.idle)]
    assert not silent
