"""A run on a device other than the CPU. Without a GPU (see `pretended`), PyTorch cannot compute gradients on a fake device,
so these are invented; losses, optimiser steps, checkpoints and resuming are as on a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from everlong_lab.train.run import Run
from tests.lab.train.conftest import DROPPING, LASTING, recipe, take
from tests.models.fake_gpu import DEVICE, REAL, gpu


@pytest.mark.filterwarnings("ignore:.*Disabling autocast")
@pytest.mark.parametrize("of", [recipe(), LASTING, DROPPING], ids=["rmt", "drift and average", "dropout"])
def test_a_run_goes_on_there_as_on_a_cpu(of, start, data: Path, tmp_path: Path, monkeypatch) -> None:
    run = start(of, "cpu")

    def backward(loss: torch.Tensor) -> None:
        assert loss.requires_grad
        for parameter in run.learner.parameters.values():
            assert parameter.device == loss.device
            parameter.grad = torch.full_like(parameter, 0.01)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    expected = take(run, 4)
    with gpu():
        where = {"data": data, "models_dir": tmp_path / "models", "device": DEVICE}
        run = Run(of, tmp_path / "gpu", **where)
        there = take(run, 2)
        run.save()
        run = Run(of, tmp_path / "gpu", **where, resume=True)
        there += take(run, 2)
    for one, other in zip(there, expected, strict=True):
        assert one == pytest.approx(other, rel=0.05 if REAL else 1e-4)  # a real one computes in bfloat16
