"""`python -m benchmarks.photos`: networks for one's own photos, at equal processor time.

Draws photos of four classes from CIFAR-10 as a folder, trains each network for the same processor
time on one thread, and prints accuracy, calibration and robustness as a Markdown table. With
`--cifar N` it trains on N images of all ten classes instead; `large` networks are meant for all
50,000.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

import bfno
from bfno.lab.data import ImageSet, Split, load
from bfno.lab.experiments.images.calibration import calibration_error
from bfno.program import Run

_WATCHED = 100  # test images after every epoch; all of them are looked at in the end
CLASSES = ("automobile", "cat", "horse", "truck")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "bfno-net": ("bfno-net", {}),
    "bfno-net, one residual step": ("bfno-net", {"solver.method": "euler"}),
    "cnn": ("cnn", {}),
}
_LARGE = {"augment.mix": 0, "data.validation": 0.04}
LARGE: dict[str, tuple[str, dict[str, Any]]] = {  # four times the size, for all of CIFAR-10
    "large bfno-net": ("bfno-net", {"model.width": 48, **_LARGE}),
    "large bfno-net, one residual step": (
        "bfno-net",
        {"model.width": 48, "solver.method": "euler", **_LARGE},
    ),
    "large cnn": ("cnn", {"model.width": 39, **_LARGE}),
}
DISTURBANCES = {
    "noise 0.1": lambda images: (images + 0.1 * torch.randn_like(images)).clamp(0, 1),
    "blur 3×3": lambda images: F.avg_pool2d(images, 3, 1, 1, count_include_pad=False),
    "grid 24": lambda images: F.interpolate(images, size=24, mode="area"),
    "grid 48": lambda images: F.interpolate(images, size=48, mode="bilinear"),
}


def main() -> None:
    """Train every network with every seed, and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.photos", description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="folder of the data sets")
    parser.add_argument("--seconds", type=float, default=60, help="processor time per training")
    parser.add_argument("--photos", type=int, default=480, help="training photos, all classes")
    parser.add_argument("--cifar", type=int, help="so many images of CIFAR-10 instead of photos")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, help="so many epochs, whatever time they take")
    names = [*METHODS, *LARGE]
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=names)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = load("cifar10", options.data_dir)
    heads = ("network", "parameters", "NFE", "epochs", "processor s", "accuracy", "ECE", "scaled")
    print("| " + " | ".join((*heads, *DISTURBANCES)) + " |")
    print("| --- " * (len(heads) + len(DISTURBANCES)) + "|")
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in options.methods}
    for seed in range(options.seeds):  # the outer loop: whoever stops early has fair rows
        for name, found_so_far in rows.items():
            found_so_far.append(_trained(name, found, seed, options))
            row = _row(f"{name}, seed {seed}", found_so_far[-1:])
            print(row, file=sys.stderr, flush=True)
    for name, trained in rows.items():
        print(_row(name, trained), flush=True)


def _trained(name: str, found: ImageSet, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        train = _photos if options.cifar is None else _cifar
        settings = train(found, seed, options, Path(place))
        epochs = options.epochs
        if epochs is None:
            each = _seconds_per_epoch(name, settings, Path(place))
            epochs = max(1, round(options.seconds / each))
        started = time.process_time()
        run = _train(name, {**settings, "train.epochs": epochs}, Path(place) / "run")
        seconds = time.process_time() - started
        images, labels = _test_images(found, options)
        torch.manual_seed(0)  # of the noise
        model = bfno.load(run.folder)
        scores = _scores(model, images)
        temperature = run.metrics["validation_temperature"]
        disturbed = {
            disturbance: _accuracy(_scores(model, change(images)), labels)
            for disturbance, change in DISTURBANCES.items()
        }
        return {
            "parameters": run.record.parameters,
            "nfe": run.metrics["test_nfe"],
            "epochs": epochs,
            "seconds": seconds,
            "accuracy": _accuracy(scores, labels),
            "error": calibration_error(scores, labels),
            "scaled": calibration_error(scores / temperature, labels),
            **disturbed,
        }


def _photos(found: ImageSet, seed: int, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Write a draw of photos as a folder with a test part, and return the settings for it."""
    generator = torch.Generator().manual_seed(seed)
    for name in CLASSES:
        label = found.classes.index(name)
        for part, split, count in (
            ("train", found.train, options.photos // len(CLASSES)),
            ("test", found.test, _WATCHED),
        ):
            folder = place / "photos" / part / name
            folder.mkdir(parents=True)
            members = (split.labels == label).nonzero().flatten()
            drawn = members[torch.randperm(len(members), generator=generator)[:count]]
            for number, image in enumerate(split.images[drawn]):
                Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:04d}.png")
    folder = str(place / "photos")
    return {
        "experiment": "folder",
        "data.folder": folder,
        "data.test_limit": _WATCHED,
        "seed": seed,
    }


def _cifar(found: ImageSet, seed: int, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    return {
        "experiment": "cifar10",
        "data.dir": None if options.data_dir is None else str(options.data_dir),
        "data.train_limit": options.cifar,
        "data.test_limit": _WATCHED,
        "seed": seed,
    }


def _seconds_per_epoch(name: str, settings: dict[str, Any], place: Path) -> float:
    """Processor time that one more epoch takes, evaluation and checkpoint included."""
    taken = []
    for number, epochs in enumerate((1, 1, 3)):  # the first one reads the images, too
        started = time.process_time()
        _train(name, {**settings, "train.epochs": epochs}, place / f"trial{number}")
        taken.append(time.process_time() - started)
    return max((taken[2] - taken[1]) / 2, 0.01)


def _train(name: str, settings: dict[str, Any], folder: Path) -> Run:
    method, changes = {**METHODS, **LARGE}[name]
    rest = {key: value for key, value in settings.items() if key != "experiment"}
    return bfno.train(
        f"{settings['experiment']}/{method}",
        scale="paper" if name in LARGE else "cpu",
        out=folder,
        settings={**rest, **changes, "threads": 1},
    )


def _test_images(found: ImageSet, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """All test images of the classes in question, between 0 and 1, and their labels."""
    split, chosen = found.test, list(range(len(found.classes)))
    if options.cifar is None:
        chosen = [found.classes.index(name) for name in CLASSES]
        kept = torch.isin(split.labels, torch.tensor(chosen)).nonzero().flatten()
        split = Split(split.images[kept], split.labels[kept])
    labels = torch.tensor([chosen.index(label) for label in split.labels.tolist()])
    return split.images.float() / 255, labels


@torch.no_grad()
def _scores(model: Any, images: Tensor) -> Tensor:
    return torch.cat([model(batch) for batch in images.split(250)])


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return (scores.argmax(1) == labels).double().mean().item()


def _row(name: str, rows: list[dict[str, Any]]) -> str:
    def average(key: str) -> float:
        return statistics.fmean(row[key] for row in rows)

    accuracies = [100 * row["accuracy"] for row in rows]
    spread = f" ± {statistics.stdev(accuracies):.1f}" if len(rows) > 1 else ""
    cells = (
        name,
        f"{rows[0]['parameters']:,}",
        f"{average('nfe'):.0f}",
        f"{average('epochs'):.0f}",
        f"{average('seconds'):.0f}",
        f"{statistics.fmean(accuracies):.1f}{spread} %",
        f"{100 * average('error'):.1f} %",
        f"{100 * average('scaled'):.1f} %",
        *(f"{100 * average(key):.1f} %" for key in DISTURBANCES),
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
