"""Batches that no camera sends, for ``fuzz.py``: what a method takes must leave its state finite, what it refuses must
leave it as it was."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from driftgate.methods import Method
from driftgate.rng import seeded
from driftgate.types import DriftgateError

SIZE = 8
PATIENCE = 20
"""After so many sound batches refused in a row the method starts anew: it has diverged, as it said."""


def _noise(draw: random.Random) -> Tensor:
    return torch.rand(draw.choice([1, 2, 3, 8, 16, 40]), 3, SIZE, SIZE, generator=seeded(draw.randrange(2**40)))


def _poisoned(draw: random.Random) -> Tensor:
    images = _noise(draw)
    images.reshape(-1)[draw.randrange(images.numel())] = draw.choice([float("nan"), float("inf"), -1.0, 300.0, 1e38])
    return images


def _of_one_picture(draw: random.Random) -> Tensor:
    return _noise(draw)[:1].repeat(draw.choice([2, 9, 30]), 1, 1, 1)


def _stripes(draw: random.Random) -> Tensor:
    images = torch.zeros(draw.choice([1, 4, 16]), 3, SIZE, SIZE)
    images[..., :: draw.choice([1, 2, 3])] = draw.choice([1.0, 1e-30, 1e-7, 0.999999])
    return images


SOUND: tuple[Callable[[random.Random], Any], ...] = (
    _noise,
    _noise,
    _of_one_picture,
    _stripes,
    lambda draw: torch.full((draw.choice([1, 2, 16]), 3, SIZE, SIZE), draw.choice([0.0, 1.0, 0.5, 1e-38])),
    lambda draw: _noise(draw).mul(1e-6),
    lambda draw: _noise(draw).round(),
    lambda draw: _noise(draw).double(),
    lambda draw: _noise(draw).half(),
    lambda draw: _noise(draw).mul(255).to(torch.uint8),
    lambda draw: (_noise(draw), torch.zeros(1)),
    lambda draw: {"pixel_values": _noise(draw), "labels": None},
    lambda draw: _noise(draw).to(memory_format=torch.channels_last).requires_grad_(),
    lambda draw: _noise(draw)[:, :, ::1, :].transpose(2, 3),
    lambda draw: np.ascontiguousarray(_noise(draw).permute(0, 2, 3, 1).numpy()),
    lambda draw: [Image.fromarray(np.zeros((SIZE, SIZE, 3), np.uint8))] * draw.choice([1, 3]),
)
ODD: tuple[Callable[[random.Random], Any], ...] = (
    _poisoned,
    _poisoned,
    lambda draw: _noise(draw) * draw.choice([1e38, -1.0, 1e5, 255.0]),
    lambda draw: _noise(draw)[:0],
    lambda draw: _noise(draw)[0],
    lambda draw: _noise(draw).unsqueeze(0),
    lambda draw: _noise(draw)[:, : draw.choice([0, 1, 2])],
    lambda draw: _noise(draw)[..., : draw.choice([0, 1, 5])],
    lambda draw: _noise(draw).to(draw.choice([torch.int64, torch.int8, torch.bool, torch.complex64, torch.bfloat16])),
    lambda draw: _noise(draw).to(torch.float8_e4m3fn),
    lambda draw: _noise(draw).to_sparse(),
    lambda draw: _noise(draw).to("meta"),
    lambda draw: torch.nested.nested_tensor([torch.rand(3, SIZE, SIZE)] * 2),
    lambda draw: torch.quantize_per_tensor(_noise(draw), 0.1, 0, torch.quint8),
    lambda draw: draw.choice(
        [None, 5, 0.5, "x.jpg", b"x", [], {}, (), [None], [[]], {"a": 1}, object(), [1, [2]], ["a"]]
    ),
    lambda draw: [Image.new(draw.choice(["RGB", "L", "CMYK", "1", "P", "I;16"]), (draw.choice([1, 8, 9]), 8)), None],
    lambda draw: [_noise(draw)[0], _noise(draw)[0][:1]],
    lambda draw: np.array(draw.choice([None, "a", 1 + 2j, [[1, 2]], np.datetime64("2020")]), dtype=object),
    lambda draw: (
        _noise(draw).numpy().astype(draw.choice(["float16", "int32", "uint16", ">f4", "complex64", "datetime64[s]"]))
    ),
    lambda draw: {"pixel_values": draw.choice([None, [], _noise(draw)[0, 0], "x"])},
)


class BatchFuzzer:
    """Gives every input to the next method in turn, and looks at its state."""

    def __init__(self, methods: Sequence[Method]) -> None:
        self.methods = list(methods)
        self.fresh = [copy.deepcopy(method.state_dict()) for method in methods]
        self.refused = [0] * len(methods)
        self.turn = 0

    def __call__(self, draw: random.Random) -> str:
        place = self.turn % len(self.methods)
        self.turn += 1
        method, sound = self.methods[place], draw.random() < 0.6
        batch = draw.choice(SOUND if sound else ODD)(draw)
        before = {name: value.clone() for name, value in method.state_dict().items()}
        try:
            prediction = method.predict(batch) if draw.random() < 0.2 else method.step(batch)
        except DriftgateError:
            self._check_same(before, method)
            self.refused[place] = self.refused[place] + 1 if sound else self.refused[place]
            if self.refused[place] >= PATIENCE:
                method.load_state_dict(self.fresh[place])
                self.refused[place] = 0
                return "started anew"
            raise
        self.refused[place] = 0
        odd = [
            name
            for name, value in method.state_dict().items()
            if value.is_floating_point() and not value.isfinite().all()
        ]
        if odd:
            raise AssertionError(f"{method.name}: {odd[0]} is not finite after a step")
        if not prediction.scores.isfinite().all() or not prediction.novelty.isfinite().all():
            raise AssertionError(f"{method.name}: the prediction is not finite")
        return "taken"

    def _check_same(self, before: dict[str, Tensor], method: Method) -> None:
        after = method.state_dict()
        changed = [name for name in before if not torch.equal(before[name], after[name])]
        if changed or before.keys() != after.keys():
            raise AssertionError(f"{method.name}: a refused batch changed {changed or 'the names of its state'}")
