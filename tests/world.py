"""What a reader of the documents has: photographs, tables of series, data sets, all tiny."""

import csv
import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import polars
import torch
from PIL import Image

from tests.conftest import REPOSITORY
from tests.lab.data import official, test_activity

ENOUGH = 2


def furnish(folder: Path) -> None:
    """Put everything into a folder that the documents' commands name as the reader's own."""
    generator = np.random.default_rng(0)
    for number, name in enumerate(("cat", "dog")):
        for index in range(20):
            _write_photo(folder / "photos" / name / f"{index}.jpg", number, generator)
    for name in ("first.jpg", "second.jpg", "first.png", "second.png"):
        _write_photo(folder / "new" / name, 0, generator)
    for name in ("four.png", "nine.png"):
        _write_photo(folder / name, 1, generator)
    _write_table(folder / "patients.csv", [f"p{number:02}" for number in range(40)], generator)
    _write_table(folder / "new.csv", ["anna", "ben", "chloe", "dan"], generator)
    polars.read_csv(folder / "new.csv").write_excel(folder / "new.xlsx")
    _write_released(folder / "model" / "1.pt")
    data = folder / "data"
    for name in ("mnist", "fashion-mnist"):
        official.write_mnist(data / name, train=100, test=20)
    cifar = official.cifar10_files(each=20)
    cifar["test_batch.bin"] = cifar["test_batch.bin"][: 4 * 3073]  # full-size models see these
    official.write_files(data / "cifar10", cifar)
    _write_physionet(data / "physionet", "a", 132_500)
    _write_physionet(data / "physionet", "b", 142_500)
    (data / "activity").mkdir()
    recordings = (test_activity.steady(f"A{number:02}", 60) for number in range(1, 6))
    test_activity.write(data / "activity", *itertools.chain(*recordings))


def leave_runs(plan: str) -> None:
    """Put a few finished runs of this repository where a table, as its plan says, trains them."""
    places = [Path(found) for found in re.findall(r"to train +(\S+)", plan)]
    known = [(REPOSITORY / "results" / "/".join(place.parts[-2:]), place) for place in places]
    for record, place in [pair for pair in known if pair[0].is_dir()][:ENOUGH]:
        shutil.copytree(record, place)


def _write_photo(file: Path, bright: int, generator: np.random.Generator) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = generator.integers(100 * bright, 100 * bright + 90, (12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


def _write_table(file: Path, names: list[str], generator: np.random.Generator) -> None:
    """Series of two features whose label is the sign of the first, a few cells empty."""
    with open(file, "w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "time", "pulse", "temperature", "label"])
        for number, name in enumerate(names):
            for time in np.sort(generator.choice(100, 8, replace=False)) / 10:
                pulse = (number % 2 * 2 - 1) * (1 + generator.random())
                temperature = "" if generator.random() < 0.3 else f"{generator.random():.3f}"
                label = "ill" if number % 2 else "well"
                writer.writerow([name, time, f"{pulse:.4f}", temperature, label])


def _write_physionet(folder: Path, name: str, first_record: int) -> None:
    """Forty records of a set, of which every fourth patient died."""
    (folder / f"set-{name}").mkdir(parents=True)
    outcomes = ["RecordID,SAPS-I,SOFA,Length_of_stay,Survival,In-hospital_death"]
    for number in range(40):
        record = first_record + number
        first = f"00:00,RecordID,{record}\n00:00,Age,{40 + number}\n00:00,ICUType,4\n"
        rows = [f"{hour:02}:10,HR,{60 + (7 * number + hour) % 40}\n" for hour in range(1, 6)]
        text = f"Time,Parameter,Value\n{first}{''.join(rows)}"
        (folder / f"set-{name}" / f"{record}.txt").write_text(text)
        outcomes.append(f"{record},1,1,5,-1,{int(number % 4 == 0)}")
    (folder / f"Outcomes-{name}.txt").write_text("\n".join(outcomes) + "\n")


def _write_released(file: Path) -> None:
    """Weights by the names and in the shapes of the authors' files, all zero."""
    shapes: dict[str, tuple[int, ...]] = {
        "1.df.df.initial.weight": (76, 4),
        "1.df.df.initial.bias": (76,),
        "1.df.df.final.weight": (3, 76),
        "1.df.df.final.bias": (3,),
        "2.dense.weight": (10, 3072),
        "2.dense.bias": (10,),
    }
    for layer in (f"1.df.df.fc{k}" for k in (1, 2, 3)):
        for branch in (1, 2):
            shapes[f"{layer}.weight_block_{branch}.weights1"] = (2, 76, 76)
            shapes[f"{layer}.weight_block_{branch}.bias1"] = (2, 76)
        for part in ("real", "imag"):
            shapes[f"{layer}.concat_{part}_layer_1.weight"] = (76, 152)
            shapes[f"{layer}.concat_{part}_layer_1.bias"] = (76,)
    file.parent.mkdir()
    torch.save({name: torch.zeros(shape) for name, shape in shapes.items()}, file)
