import json

import torch

import bfno
from benchmarks.cases import _operations, cifar_case
from benchmarks.plain import PlainField, bare_products
from benchmarks.plain_flow import with_torchdiffeq
from benchmarks.timing import compare
from bfno.fields.flow import FlowConvField
from bfno.models.flows import MultiscaleFlow


def test_the_plain_peer_computes_the_same_field_and_gradients():
    field = bfno.OperatorField("bfno", 3, 5, 3, branches=2)
    y = torch.randn(2, 3, 6, 5, requires_grad=True)
    wanted = (y, *field.parameters())
    ours, plain = field(0.3, y), PlainField(field)(0.3, y)
    torch.testing.assert_close(ours, plain, rtol=0, atol=1e-12)
    pairs = (torch.autograd.grad(result.square().sum(), wanted) for result in (ours, plain))
    for one, other in zip(*pairs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def test_the_bare_products_are_those_of_the_layers():
    field = bfno.OperatorField("bfno", 1, 4, 2, branches=3)
    work = bare_products(field, torch.zeros(5, 1, 6, 8))
    rows = 5 * 6 * (8 // 2 + 1)
    products = rows * (8 * 24 + 2 * 12 * 4)
    transforms = 2 * 5 * 4 * (10 * 8 * 6 + 5 * 12 * 12)  # along the last axis, then the other
    assert _operations(work) == 2 * 2 * (products + transforms)  # two layers; times and plus


def test_a_comparison_tells_the_slower_side_and_prints_one_object_a_line(monkeypatch):
    # A clock that only the two programs move: a busy machine would add to either.
    clock = [0.0]
    ours, peers = iter((9, 1, 9, 2, 9, 4)), iter((9, 10, 9, 24, 9, 20))

    def program(seconds):
        clock[0] += next(seconds)

    monkeypatch.setattr("benchmarks.timing.time.perf_counter", lambda: clock[0])
    names = ("group", "case", "peer")
    line = compare(names, lambda: program(ours), lambda: program(peers), repeats=3, per=2)
    # The first of two runs only warms up. Medians of 1, 2, 4 and of 10, 24, 20, half of each for
    # one of two units, and of the ratios of neighbours: 10, 12, 5.
    assert (line.ours_s, line.peer_s, line.ratio) == (1, 10, 10)
    assert line.spread == (5, 12)
    found = json.loads(line.as_json())
    assert found["bench"] == "group"
    assert set(found) >= {"bench", "case", "peer", "ours_s", "peer_s", "ratio"}


def test_released_weights_take_the_authors_number_of_evaluations(shared_folder, monkeypatch):
    monkeypatch.chdir(shared_folder.parent / "shared")
    torch.set_default_dtype(torch.float32)
    case = cifar_case()
    assert case.weights == "released"
    images = torch.rand(8, 3, 32, 32)
    solution = bfno.solve(case.field, images, torch.tensor([0.0, 1.0]), rtol=1e-3, atol=1e-3)
    # Epoch 1 of the authors' run: dopri5 needs three steps, which are 2 + 6 · 3 evaluations.
    assert solution.stats.forward_evaluations == 20


def test_the_plain_flow_computes_the_same_density_penalties_and_gradients():
    steps = {"method": "rk4", "step": 0.25}
    flow = MultiscaleFlow(
        (1, 8, 8),
        lambda channels: FlowConvField(channels, 3),
        penalties=("kinetic", "jacobian"),
        solver=steps,
    )
    for parameter in flow.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    plain = with_torchdiffeq(flow, method="rk4", options={"step_size": 0.02})
    x, found = torch.randn(2, 1, 8, 8), []
    for one in (flow, plain):
        torch.manual_seed(5)
        encoding = one.encode(x)
        parts = (encoding.log_prob, *encoding.penalties.values())
        loss = torch.stack([part.mean() for part in parts]).sum()
        found.append((*parts, *torch.autograd.grad(loss, list(flow.parameters()))))
    # Four classical steps differ from fifty, and from the continuous adjoint, by their own error.
    torch.testing.assert_close(*found, rtol=2e-3, atol=2e-3)


def test_the_union_of_times_has_no_time_twice_in_single_precision(monkeypatch, tmp_path):
    from benchmarks.series import _Bench

    monkeypatch.setenv("BFNO_DATA", str(tmp_path))  # so that the bundled series are measured
    for batch in _Bench("ode-rnn").batches("union"):
        assert bool((batch.times[0].diff() > 0).all())
