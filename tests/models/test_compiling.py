"""torch.compile: kept only if it is faster, and never in the way."""

from __future__ import annotations

import pytest
import torch
from support import images_of, small_model, state_of

import driftgate
from driftgate.models import compiling
from driftgate.models.compiling import compile_if_faster


class Compiler:
    """Stands in for torch.compile, which takes a minute: calls the plain network, or fails."""

    def __init__(self, model: driftgate.SourceModel, *, fails: bool = False) -> None:
        self.model, self.fails, self.calls = model, fails, 0

    def compile(self) -> None:
        self.model.backbone._compiled_call_impl = self

    def __call__(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.fails:
            raise RuntimeError("no compiler found")
        output: torch.Tensor = self.model.backbone._call_impl(*inputs)
        return output


@pytest.mark.parametrize(("compiled", "used"), [(0.5, True), (2.0, False)])
def test_the_faster_of_the_two_stays(monkeypatch: pytest.MonkeyPatch, compiled: float, used: bool) -> None:
    model = small_model()
    compiler = Compiler(model)
    monkeypatch.setattr(model.backbone, "compile", compiler.compile)
    run = compiling._seconds

    def timed(network: driftgate.SourceModel, images: torch.Tensor) -> float:
        run(network, images)
        return 1.0 if network.backbone._compiled_call_impl is None else compiled

    monkeypatch.setattr(compiling, "_seconds", timed)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trial = compile_if_faster(model, 8)
    assert (trial.plain_seconds, trial.compiled_seconds, trial.used) == (1.0, compiled, used)
    assert (model.backbone._compiled_call_impl is not None) == used
    assert compiler.calls > 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_compiler_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    monkeypatch.setattr(model.backbone, "compile", Compiler(model, fails=True).compile)
    trial = compile_if_faster(model, 8)
    assert trial.compiled_seconds is None and not trial.used and "no compiler found" in trial.reason
    plain, tried = (driftgate.create("gmm", one, teach_share=1.0, min_batch=8) for one in (small_model(), model))
    for seed in range(2):
        plain.step(images_of(8, seed))
        tried.step(images_of(8, seed))
    mine, other = state_of(plain), state_of(tried)
    assert all(torch.equal(value, other[name]) for name, value in mine.items())
