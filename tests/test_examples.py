"""Every example runs, shortened."""

import runpy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests import documents
from tests.conftest import REPOSITORY


def test_digits_example_learns_and_draws(tmp_path, capsys):
    torch.set_default_dtype(torch.float32)  # what a reader has
    example = runpy.run_path(str(REPOSITORY / "examples" / "train_digits.py"))
    final = example["main"](epochs=1, folder=tmp_path)
    # Ten classes: chance is 10 %. One epoch reached 69 % and 67 % where this was written.
    assert all(accuracy > 0.3 for accuracy in final.values())
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    assert "NFE forward" in capsys.readouterr().out


def test_series_example_learns(capsys):
    torch.set_default_dtype(torch.float32)
    example = runpy.run_path(str(REPOSITORY / "examples" / "classify_series.py"))
    accuracy, error = example["main"](epochs=3)
    # Four classes: chance is 25 %; scaled values have a variance of one.
    assert accuracy > 0.3 and error < 0.9
    assert "432 series, 4 classes" in capsys.readouterr().out


def test_flow_example_learns_a_density_and_draws(tmp_path, capsys):
    torch.set_default_dtype(torch.float32)
    example = runpy.run_path(str(REPOSITORY / "examples" / "flow_moons.py"))
    found, mass = example["main"](steps=30, folder=tmp_path)
    # Untrained, the flow is the standard normal density, which gives these points 3.86 nats.
    assert found < 3.5 and abs(mass - 1) < 0.02
    assert (tmp_path / "moons.png").stat().st_size > 10_000
    assert "integrates to" in capsys.readouterr().out


# Lightning warns of few workers and few batches, and looks for packages in ways that have aged.
@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_the_module_of_the_page():
    lightning = pytest.importorskip("lightning", reason="needs pip install 'bfno[lightning]'")
    torch.set_default_dtype(torch.float32)
    (block,) = (
        one.text for one in documents.blocks("docs/estimators.md") if "import lightning" in one.text
    )
    defined: dict = {}
    exec(compile(block, "docs/estimators.md", "exec"), defined)
    module = defined["Digits"]()
    before = [parameter.detach().clone() for parameter in module.parameters()]
    batches = DataLoader(TensorDataset(torch.rand(4, 1, 8, 8), torch.arange(4)), batch_size=4)
    options = {"accelerator": "cpu", "logger": False, "enable_checkpointing": False}
    trainer = lightning.Trainer(max_epochs=1, enable_progress_bar=False, **options)
    trainer.fit(module, batches)
    assert any(
        not torch.equal(old, new) for old, new in zip(before, module.parameters(), strict=True)
    )


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_a_model_of_the_library(capsys):
    pytest.importorskip("lightning", reason="needs lightning: pip install 'bfno[lightning]'")
    torch.set_default_dtype(torch.float32)
    example = runpy.run_path(str(REPOSITORY / "examples" / "lightning_module.py"))
    # Ten classes: chance is 10 %.
    assert example["main"](epochs=2, samples=300) > 0.2
    assert "training accuracy" in capsys.readouterr().out
