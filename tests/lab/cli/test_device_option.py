"""``--device``: every command that computes has it, ``auto`` takes what is there and says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import strict_device
import torch
from lab.cli.commands import adapt_command, pretrain_command, refused, run

from driftgate.lab.cli.experiment import choose_device
from driftgate.models import SourceModel

COMPUTES = ("adapt", "bench", "ablate", "pretrain", "serve")


@pytest.mark.parametrize("command", COMPUTES)
def test_every_command_that_computes_takes_a_device(command: str) -> None:
    assert "--device" in run(command, "--help").stdout


@pytest.mark.parametrize(
    ("cuda", "mps", "found"), [(False, False, "cpu"), (True, False, "cuda"), (False, True, "mps"), (True, True, "cuda")]
)
def test_auto_takes_what_is_there_and_says_so(
    cuda: bool, mps: bool, found: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert choose_device("auto") == torch.device(found)
    assert capfd.readouterr().err == ("" if found == "cpu" else f"device: {found}\n")


def test_a_run_on_another_device_and_one_that_is_not_there(tree: Path, trained: Path, tmp_path: Path) -> None:
    told = [
        run(*adapt_command(tree, trained, "--json", "--device", device)) for device in ("cpu", strict_device.DEVICE)
    ]
    assert [result.exit_code for result in told] == [0, 0], told[1].output
    cpu, there = (json.loads(result.stdout) for result in told)
    assert (cpu["device"], there["device"]) == ("cpu", str(strict_device.DEVICE))
    assert there["metrics"] == cpu["metrics"]
    out = tmp_path / "there.safetensors"
    assert run(*pretrain_command(tree, out), "--epochs", 1, "--device", strict_device.DEVICE).exit_code == 0
    assert SourceModel.load(out).mean.device.type == "cpu", "a file belongs to no device"
    assert "of this machine" in refused(*adapt_command(tree, trained, "--device", "tpu"))
