"""An epoch of the models of series, each series on its own times, against the union of all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.plain_series import PlainLatentODE, PlainODERNN, walk
from benchmarks.timing import Line, summarise
from bfno.lab.data import Series, SeriesBatch
from bfno.lab.errors import DataError
from bfno.lab.experiments.resolve import resolve
from bfno.lab.experiments.series.task import series_loss

__all__ = ["series"]

_RECORDS, _WARM_UP = 640, 2
_PEERS: dict[str, Callable[[Any], nn.Module]] = {
    "latent-ode": PlainLatentODE,
    "ode-rnn": PlainODERNN,
}
_Batches = list[SeriesBatch]


def series(repeats: int, notes: dict[str, Any]) -> Iterator[Line]:
    """One training epoch of 640 PhysioNet records, or of the bundled series where there are none.

    Args:
        repeats: Pairs of epochs; as a peer's epoch takes a minute, no more than three.
        notes: What else to report.
    """
    for method, plain in _PEERS.items():
        bench = _Bench(method)
        own, union = bench.batches("own"), bench.batches("union")
        more = {**notes, "data": bench.data, "rows": _width(own), "union_rows": _width(union)}
        peer = plain(bench.model)
        for _ in range(_WARM_UP):
            bench.epoch(bench.model, own)
        pairs = [
            (bench.timed(bench.model, own), bench.timed(peer, union))
            for _ in range(min(repeats, 3))
        ]
        more |= bench.errors()
        yield summarise(("series", method, "union grid, torchdiffeq"), pairs, more)
        if method == "ode-rnn":
            yield _against_gru(bench, own, min(repeats, 3), notes)


def _against_gru(bench: _Bench, own: _Batches, repeats: int, notes: dict[str, Any]) -> Line:
    """How many times an ODE-RNN's epoch costs that of a GRU; the ratio is the GRU's share."""
    gru = _Bench("rnn-delta-t")
    gru.epoch(gru.model, own)
    pairs = [(bench.timed(bench.model, own), gru.timed(gru.model, own)) for _ in range(2 * repeats)]
    line = summarise(("series", "ode-rnn", "GRU (RNN-Δt)"), pairs, notes)
    line.notes = {**notes, "times_the_cost_of_a_gru": 1 / line.ratio}
    return line


class _Bench:
    """A model of the paper's size and what it is trained on."""

    def __init__(self, method: str) -> None:
        self.data = "physionet"
        changes = {"data": {"validation": 0.0, "train_limit": _RECORDS}}
        config = resolve(f"physionet/{method}", scale="paper", changes=changes)
        try:
            splits = config.load()
        except DataError:
            self.data = "bundled"
            config = resolve(f"series/{method}", scale="paper", changes={"data": changes["data"]})
            splits = config.load()
        self.config, self.series = config, splits.train
        self.task = config.task(splits)
        torch.manual_seed(0)
        self.facts = config.facts(splits)
        self.model: Any = config.build(self.facts)
        self.optimizer = torch.optim.Adamax(self.model.parameters(), lr=config.train.lr)

    def batches(self, times: str) -> _Batches:
        order = self.task.batches(self.config.train.batch, torch.Generator().manual_seed(0))
        # Times of two series that are one in single precision are one time of their union.
        rounded = replace(self.series, times=self.series.times.float().double())
        make = self.series.batch if times == "own" else rounded.union_batch
        return [make(samples).to(torch.device("cpu"), torch.float32) for samples in order]

    def epoch(self, model: nn.Module, batches: _Batches) -> None:
        """Train the weights, which model and peer share, on all batches."""
        for batch in batches:
            self.optimizer.zero_grad()
            output = model(batch.times, batch.values, batch.mask)
            series_loss(self.config.loss, output, batch, epoch=0).total.backward()
            self.optimizer.step()

    def timed(self, model: nn.Module, batches: _Batches) -> float:
        began = time.perf_counter()
        self.epoch(model, batches)
        return time.perf_counter() - began

    def errors(self) -> dict[str, float]:
        """Largest errors of the recurrent states, of ours and of the union's, on some records.

        Both are measured against fourth-order steps of a twentieth of the size in double precision.
        """
        chosen = torch.arange(min(20, len(self.series)))
        recurrent = self._recurrent().double()
        with torch.no_grad():
            ours = _last_states(recurrent, self.series, chosen)
            peer = _last_union_states(recurrent, self.series, chosen)
            fine = self._recurrent(method="rk4", step=recurrent.step / 20).double()
            fine.load_state_dict(recurrent.state_dict())
            exact = _last_states(fine, self.series, chosen)
        recurrent.float()
        size = exact.abs().max()
        return {
            "error": float((ours - exact).abs().max() / size),
            "peer_error": float((peer - exact).abs().max() / size),
        }

    def _recurrent(self, **changes: Any) -> Any:
        if not changes:
            encoder = getattr(self.model, "encoder", self.model)
            return encoder.recurrent
        names = {"method": "encoder_method", "step": "encoder_step"}
        if self.config.model.kind == "ode_rnn":
            names = {name: name for name in changes}
        settings = {names[name]: value for name, value in changes.items()}
        config = self.config.model_copy(
            update={"model": self.config.model.model_copy(update=settings)}
        )
        finer: Any = config.build(self.facts)
        return getattr(finer, "encoder", finer).recurrent


def _last_states(recurrent: Any, series: Series, chosen: Tensor) -> Tensor:
    batch = series.batch(chosen).to(torch.device("cpu"), torch.float64)
    states = recurrent(batch.times, batch.values, batch.mask).after
    return states[:, 0] if recurrent.backward else states[:, -1]


def _last_union_states(recurrent: Any, series: Series, chosen: Tensor) -> Tensor:
    """The same by the union's walk, whose states move on after the last row of a series."""
    batch = series.union_batch(chosen).to(torch.device("cpu"), torch.float64)
    states = torch.stack(walk(recurrent, batch.times[0], batch.values, batch.mask)[1], dim=1)
    if recurrent.backward:
        states = states.flip(1)
    own = batch.rows >= 0
    last = own.int().argmax(1) if recurrent.backward else batch.rows.argmax(1)
    return states[torch.arange(len(states)), last]


def _width(batches: _Batches) -> float:
    """Mean number of times that a batch is walked over."""
    return sum(batch.times.shape[1] for batch in batches) / len(batches)
