"""The training loop, one for all tasks and any number of processes, resumable at every step.

Random numbers have no history: the order of an epoch and the noise of a step are functions of the
seed and their number. A run that continues from a checkpoint therefore takes the same steps, bit
for bit, as one that was never stopped.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bfno.lab.errors import ConfigError, NumericalError, bfno_command
from bfno.lab.experiments.experiment import Experiment
from bfno.lab.experiments.processes import Processes, explain_lost_peers
from bfno.lab.experiments.seeds import derive_seed
from bfno.lab.experiments.tasks import (
    FAILURES,
    Found,
    Place,
    Share,
    Sums,
    Task,
    failure_line,
    read_together,
    solver_stats,
)
from bfno.lab.runs.averaging import WeightAverage, optimizer_part
from bfno.lab.runs.checkpoint import (
    Checkpoint,
    Progress,
    load_optimizer,
    load_weights,
    optimizer_state,
)
from bfno.lab.runs.folder import RunFolder
from bfno.lab.runs.load import whole_best
from bfno.lab.runs.record import peak_memory
from bfno.lab.runs.schedule import rate_of_training
from bfno.lab.runs.signals import Stopped, StopSignals
from bfno.lab.runs.signs import sign_of_a_hard_step, signs_of_trouble
from bfno.ode import SolverError, Status
from bfno.ode.sizes import euclidean_norm

__all__ = ["Trainer", "Watcher"]

_logger = logging.getLogger(__name__)

_OPTIMIZERS = {
    "adam": torch.optim.Adam,
    "adamax": torch.optim.Adamax,
    "adamw": torch.optim.AdamW,
}
# A training diverges if its loss grows by more than this multiple of the first loss.
_FAR = 10.0
# The suggestion after a divergence: a share of the learning rate, and at most a sensible one.
_LOWER, _SENSIBLE, _HIGH = 0.1, 1e-2, 0.1


def _rank(metrics: Mapping[str, Any], task: Task) -> tuple[float, float]:
    """Return a key to compare epochs by; if nothing else decides, later ones are better."""
    value = metrics.get(f"validation_{task.selection}")
    if value is None:
        value = metrics["epoch"]
    elif not math.isfinite(value):
        value = -math.inf
    elif task.lower_is_better:
        value = -value
    # A small split has few possible scores: among equals, the model with the lower loss is better.
    return value, -metrics.get("validation_loss", 0.0)


class Watcher:
    """Receives the progress of a training; a display or a log overrides the methods it needs."""

    def on_start(self, epochs: int) -> None:
        """Called when a training with this number of epochs begins or continues."""

    def on_step(self, progress: Progress, steps: int) -> None:
        """Called after each step, with the number of steps in the epoch."""

    def on_epoch(self, metrics: dict[str, Any]) -> None:
        """Called when an epoch was finished and evaluated."""

    def on_finish(self, result: Mapping[str, Any]) -> None:
        """Called when the training is over, with the metrics of the weights kept."""

    def on_end(self) -> None:
        """Called last, however the training ended, even if it never started."""


class _LastGood:
    """The state of a training before the step at which its loss went wrong.

    Args:
        model: The bare model.
        optimizer: The bare optimizer.
        average: The average of its weights.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, average: WeightAverage
    ) -> None:
        self._model, self._optimizer, self._average = model, optimizer, average
        self._first: float | None = None
        self._copies: list[Tensor] = []
        self._progress: Progress | None = None

    def note(self, loss: float, progress: Progress) -> None:
        """Keep the present state if its loss is normal; called before the step is taken."""
        if self._first is None:
            self._first = loss
        if not loss <= self._first + _FAR * max(1.0, abs(self._first)):
            return
        tensors = self._tensors()
        if len(self._copies) == len(tensors):
            for copy, tensor in zip(self._copies, tensors, strict=True):
                copy.copy_(tensor)
        else:  # an optimizer has no state before its first step
            self._copies = [tensor.clone() for tensor in tensors]
        self._progress = progress.model_copy(update={"sums": dict(progress.sums)})

    def restore(self) -> Progress | None:
        """Go back to the kept state, and return its progress; None if there is none."""
        if self._progress is not None:
            tensors = self._tensors()
            if len(tensors) > len(self._copies):
                self._optimizer.state.clear()
                tensors = self._tensors()
            for tensor, copy in zip(tensors, self._copies, strict=True):
                tensor.copy_(copy)
        return self._progress

    def _tensors(self) -> list[Tensor]:
        states = (value for values in self._optimizer.state.values() for value in values.values())
        return [
            *(tensor.detach() for tensor in self._model.parameters()),
            *self._model.buffers(),
            *self._average.others(),
            *(value for value in states if isinstance(value, Tensor)),
        ]


class Failure(NamedTuple):
    """The end of a training that reached numbers that are not finite.

    Attributes:
        why: The step, and what happened.
        progress: Its progress, which is beyond the sound state that is kept.
    """

    why: str
    progress: Progress


class Trainer:
    """Trains a model in a run folder.

    Args:
        config: The settings.
        task: Loss and metrics.
        model: The model.
        run: The folder to write to; only the first process writes.
        facts: Further facts for checkpoints, such as the names of the classes.
        watchers: Receive steps and epochs.

    Attributes:
        progress: How far it has come.
        failure: Why it stopped with numbers that are not finite; None if it did not.
    """

    def __init__(
        self,
        config: Experiment,
        task: Task,
        model: nn.Module,
        run: RunFolder,
        facts: dict[str, Any],
        watchers: list[Watcher],
    ) -> None:
        self.config, self.task, self.run = config, task, run
        self.facts, self.watchers = facts, watchers
        settings = config.train
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        kind = _OPTIMIZERS[settings.optimizer]
        optimizer = kind(trained, lr=settings.lr, weight_decay=settings.weight_decay)
        self.epochs = settings.epochs_for(len(task.data.train))
        self._steps_per_epoch = len(self._batches(0))
        self._check_evaluation()
        with explain_lost_peers(run.path):
            self.processes = Processes.join()
            accelerator = self.processes.accelerator
            self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self._bare_model = accelerator.unwrap_model(self.model)
        self.average = WeightAverage(self._bare_model, settings.average)
        self._last_good = _LastGood(self._bare_model, self.optimizer.optimizer, self.average)
        self.progress = Progress()
        self.failure: Failure | None = None
        self._is_new = True
        self.stop = StopSignals()
        self._last_save = time.monotonic()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint.

        Raises:
            ConfigError: If it belongs to another model.
        """
        load_weights(self._bare_model, checkpoint)
        self.average.restore(checkpoint)
        if "optimizer" in checkpoint.state:  # imported weights come without
            load_optimizer(self.optimizer.optimizer, optimizer_part(checkpoint))
        self.progress = checkpoint.progress
        self.progress.best = whole_best(
            self.run,
            self.progress,
            lambda metrics: _rank(metrics, self.task),
            goes_on=not self.is_done,
        )
        self._is_new = False

    def fit(self) -> Progress:
        """Train to the last epoch.

        Raises:
            Stopped: If a signal requested it; the state is saved.
            NumericalError: If loss or gradient is not finite; the last state before the loss went
                wrong is saved.
            UserError: If another process is lost; the state before that step is saved.
        """
        # The processes communicate only while the weights do not change, so if one of them dies,
        # the others still have a complete state.
        with self.stop, explain_lost_peers(self.run.path, self.save):
            if self._is_new:
                self._begin()
            for watcher in self.watchers:
                watcher.on_start(self.epochs)
            while not self.is_done:
                try:
                    self._train_epoch()
                    self._finish_epoch()
                except FAILURES as error:
                    raise self._failed(failure_line(error), error) from error
        return self.progress

    @property
    def is_done(self) -> bool:
        """Whether all epochs are trained, or patience has run out."""
        return self.progress.epoch >= self.epochs or self.has_stopped_early

    @property
    def has_stopped_early(self) -> bool:
        """Whether the last `patience` epochs were no better than an earlier one."""
        patience, best = self.config.train.patience, self.progress.best
        if patience is None or not best:
            return False
        return self.progress.epoch - best["metrics"]["epoch"] >= patience

    def _check_evaluation(self) -> None:
        keep_some = "keep some with --set data.validation=0.1"
        if not self.config.train.test and not self.task.splits:
            why = "without test samples, a run needs validation samples to be judged by"
            raise ConfigError("train.test", why, keep_some)
        if self.config.train.patience is None:
            return
        if "validation" not in self.task.splits:
            why = "needs validation samples to judge epochs by"
            raise ConfigError("train.patience", why, keep_some)
        if self.config.train.select == "last":
            why = "stops when the last epochs are not the best, but select=last keeps the last"
            raise ConfigError("train.patience", why, "add --set train.select=best")

    def _begin(self) -> None:
        """Let the task prepare the model, the same in every process."""
        self.model.train()
        torch.manual_seed(derive_seed(self.config.seed, "preparation"))
        try:
            self.task.prepare(self._bare_model, self.processes.device)
        except FAILURES as error:  # nothing is saved: no step was taken
            what, fix = f"the first batch of {self.config.experiment}", "check the training data"
            raise NumericalError(what, failure_line(error), fix) from error
        self._equalise(self._bare_model.state_dict())
        self.average.restart()
        self._is_new = False

    def _equalise(self, tensors: Mapping[str, Tensor]) -> None:
        """Give these tensors the values that they have in the first process."""
        if self.processes.count > 1:
            for tensor in tensors.values():
                mine = tensor.detach().double() * self.processes.is_first
                tensor.data.copy_(self.processes.add_up(mine))

    def _train_epoch(self) -> None:
        self.model.train()
        batches, has_told = self._batches(self.progress.epoch), False
        for samples in batches[self.progress.batch :]:
            self._obey()
            started = time.perf_counter()
            totals = self._step(samples)
            self._note(totals, time.perf_counter() - started)
            has_told = has_told or self._say_if_hard(totals)
            for watcher in self.watchers:
                watcher.on_step(self.progress, len(batches))
            if self.progress.batch < len(batches) and self._save_is_due():
                self.save()
        self._obey()

    def _batches(self, epoch: int) -> list[Tensor]:
        """Training samples of each step of an epoch, over all processes."""
        generator = torch.Generator()
        generator.manual_seed(derive_seed(self.config.seed, "order", epoch))
        return self.task.batches(self.config.train.batch, generator)

    def _step(self, samples: Tensor) -> Sums:
        """One step of the optimizer; returns the sums over all processes."""
        processes, accelerator = self.processes, self.processes.accelerator
        noise = f"noise of process {processes.rank}"
        torch.manual_seed(derive_seed(self.config.seed, noise, self.progress.step))
        mine = samples.tensor_split(processes.count)[processes.rank]
        # A process without samples computes one that does not count, for all have to take part.
        weight = len(mine) / len(samples)
        chosen = mine if len(mine) else samples[:1]
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(self.progress.step)
        self.optimizer.zero_grad()
        loss, found = self._loss(chosen)
        # The processes' gradients are averaged, so each share weighs as much as it has samples.
        accelerator.backward(loss * (weight * processes.count))
        accelerator.unscale_gradients()  # half precision, if the launcher asks for it, scales them
        norm = nn.utils.get_total_norm(self._gradient())
        stats = solver_stats(self.model)
        # The only time that this loop waits for a device.
        read = read_together({"loss": loss, "norm": norm, **found})
        sums = {name: read[name] * bool(len(mine)) for name in found}
        sums |= {
            "loss": read["loss"] * len(mine),
            "samples": len(mine),
            "solves": 1,
            "forward_nfe": stats.forward_evaluations,
            "backward_nfe": stats.backward_evaluations,
        }
        totals = self._total(sums)
        if not math.isfinite(totals["loss"]):
            raise self._failed("the loss is not a finite number")
        self._shorten_gradient(norm, read["norm"])
        self._last_good.note(totals["loss"] / totals["samples"], self.progress)
        self.optimizer.step()
        self.average.update(self.progress.step)
        return totals

    def _gradient(self) -> list[Tensor]:
        parameters = self.model.parameters()
        return [parameter.grad for parameter in parameters if parameter.grad is not None]

    def _shorten_gradient(self, norm: Tensor, length: float) -> None:
        """Scale the gradient, which has this norm, down to `train.clip`."""
        longest = self.config.train.clip
        if math.isinf(length):  # or its squares are too large for its dtype
            length = math.hypot(*map(euclidean_norm, self._gradient()))
            norm = torch.tensor(length, dtype=torch.float64)
            if math.isfinite(length) and not longest:  # most optimizers square it as well
                raise self._failed("the gradient is too long to be squared")
        if not math.isfinite(length):
            raise self._failed("the gradient is not a finite number")
        if longest:
            nn.utils.clip_grads_with_norm_(self.model.parameters(), longest, norm)

    def _loss(self, samples: Tensor) -> tuple[Tensor, Found]:
        """Loss of some samples; if the solver of one process gives up, all get an error."""
        failure, found = None, None
        try:
            place = Place(self.processes.device, self.progress.epoch)
            found = self.task.loss(self.model, samples, place)
        except FAILURES as error:
            failure = error
        failures = self.processes.add_up(torch.tensor([float(failure is not None)])).item()
        if found is None or failures:
            why = failure_line(failure) if failure else "the solver gave up in another process"
            raise self._failed(why, failure) from failure
        return found

    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""
        return rate_of_training(self.config.train, step, self.epochs, self._steps_per_epoch)

    def _note(self, totals: Sums, seconds: float) -> None:
        progress = self.progress
        for name, value in totals.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + value
        progress.seconds += seconds
        progress.batch += 1
        progress.step += 1

    def _finish_epoch(self) -> None:
        progress, started = self.progress, time.perf_counter()
        metrics, confusion = self._epoch_metrics()
        seconds = progress.seconds + time.perf_counter() - started
        metrics |= {"seconds": round(seconds, 3), "peak_memory": peak_memory()}
        if self.processes.is_first:
            self.run.append_metrics(metrics)
        selection = f"validation_{self.task.selection}"
        is_judged = selection in metrics and self.config.train.select == "best"
        rank = _rank(metrics, self.task)
        if not (is_judged and progress.best) or rank > _rank(progress.best["metrics"], self.task):
            progress.best = {
                "by": selection if is_judged else "last epoch",
                "step": progress.step,
                "metrics": metrics,
                "confusion": confusion,
            }
        self.progress = Progress(
            epoch=progress.epoch + 1,
            step=progress.step,
            total_seconds=progress.total_seconds + seconds,
            best=progress.best,
            metrics_size=self.run.metrics_size(),
            history=progress.history,
            commits=progress.commits,
        )
        self.save()
        for watcher in self.watchers:
            watcher.on_epoch(metrics)
        if self.processes.is_first:
            self._say_what_is_wrong()

    def _say_if_hard(self, totals: Sums) -> bool:
        sign = sign_of_a_hard_step(totals, self.progress.sums, self.task)
        if sign and self.processes.is_first:
            _logger.warning("%s", sign)
        return bool(sign)

    def _say_what_is_wrong(self) -> None:
        select, held_out = self.config.train.select, getattr(self.task.data, "validation", None)
        samples = len(held_out) if held_out is not None else 1
        for sign in signs_of_trouble(self.run.epochs_so_far(), self.task, select, samples):
            _logger.warning("%s", sign)
        if self.has_stopped_early and self.progress.epoch < self.epochs:
            best = self.progress.best["metrics"]["epoch"]
            _logger.warning(
                "stopped after epoch %d of %d: no epoch since %d was better on the validation "
                "samples (train.patience)",
                self.progress.epoch,
                self.epochs,
                best,
            )

    def _epoch_metrics(self) -> tuple[dict[str, Any], list[list[int]]]:
        progress, sums = self.progress, self.progress.sums
        metrics: dict[str, Any] = {"epoch": progress.epoch + 1, "step": progress.step}
        metrics["lr"] = self.learning_rate(progress.step - 1)
        metrics |= {f"train_{k}": v for k, v in self.task.train_metrics(sums).items()}
        confusion: list[list[int]] = []
        # Each process has its own running statistics; a checkpoint has those of the first.
        self._equalise(dict(self._bare_model.named_buffers()))
        with self.average.shown():
            for split in self.task.splits:
                batch = self.config.train.eval_batch
                found = self.task.evaluate(self._bare_model, split, batch, self._share())
                metrics |= {f"{split}_{name}": value for name, value in found.metrics.items()}
                confusion = found.confusion if split == "test" else []
        for name in ("forward_nfe", "backward_nfe"):
            metrics[name] = sums[name] / sums["solves"]
        return metrics, confusion

    def _share(self) -> Share:
        # Among several, a process that left an evaluation would leave the others waiting.
        pause = self._obey if self.processes.count == 1 else lambda: None
        return Share(self.processes, pause)

    def save(self) -> None:
        """Write a checkpoint of this step, and delete those no longer needed."""
        if self.processes.is_first:
            state: dict[str, Any] = {
                "progress": self.progress.model_dump(),
                "config": self.config.as_dict(),
            }
            tensors, state["optimizer"] = optimizer_state(self.optimizer.optimizer)
            tensors |= self.average.raw()
            weights = self.average.weights(self._bare_model.state_dict())
            store = self.run.checkpoints
            self.run.save(Checkpoint(self.progress.step, weights, tensors, {**self.facts, **state}))
            best = {self.progress.best["step"]} if self.progress.best else set()
            store.keep({*store.steps()[:2], *best})
        self._last_save = time.monotonic()

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._last_save >= self.config.train.checkpoint_seconds

    def _obey(self) -> None:
        """Save and stop if any process got a signal to stop."""
        received = int(self.processes.add_up(torch.tensor([float(self.stop.received)])).item())
        if received:
            self.save()
            # A launcher ends the others as soon as one has left, the one that writes included.
            self.processes.wait()
            # Several processes may have got a signal; the sum of their numbers is not a signal.
            raise Stopped(self.stop.received or 15)

    def _failed(self, why: str, cause: Exception | None = None) -> NumericalError:
        """Save the state from which a smaller rate can continue, and say how."""
        failed = self.progress.step + 1
        self.failure = Failure(f"step {failed}: {why}", self.progress)
        good = self._last_good.restore()
        if good is not None:
            self.progress = good
        if self.processes.is_first:  # later checkpoints are no better
            store = self.run.checkpoints
            store.keep({step for step in store.steps() if step <= self.progress.step})
        self.save()
        sound = "" if good is None else ", which was sound,"
        return NumericalError(
            f"step {failed} of {self.config.experiment}",
            f"{why}; the state after step {self.progress.step}{sound} is saved",
            f"{bfno_command('resume', self.run.path)} --set {self._remedy(cause)}",
        )

    def _remedy(self, cause: Exception | None) -> str:
        """Suggest a change of settings after a failure."""
        lr, solver = self.config.train.lr, self.config.solver
        usual = type(solver)().max_steps
        status = cause.status if isinstance(cause, SolverError) else None
        if status is Status.STEP_LIMIT and solver.max_steps < usual:
            return f"solver.max_steps={usual}, for {solver.max_steps} may be too few"
        lower = min(lr * _LOWER, _SENSIBLE) if lr > _HIGH else lr * _LOWER
        if status in (Status.STEP_LIMIT, Status.STEP_UNDERFLOW, Status.STIFF):
            return f"train.lr={lower:.1g}, or larger solver.rtol and solver.atol"
        clip = "a smaller train.clip" if self.config.train.clip else "--set train.clip=1"
        return f"train.lr={lower:.1g}, or {clip}, or a smaller solver tolerance"

    def _total(self, sums: Sums) -> Sums:
        values = self.processes.add_up(torch.tensor(list(sums.values()), dtype=torch.float64))
        return dict(zip(sums, values.tolist(), strict=True))
