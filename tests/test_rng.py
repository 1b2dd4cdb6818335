"""Random numbers come from the object's own generator: torch's global one is neither read nor moved by anybody."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from support import images_of, small_model, state_of
from torch import Tensor, nn
from torch.nn import functional as F

import driftgate
from driftgate.rng import DrawFrom, seeded

DRAWS: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(3, 4),
    "randn_like": lambda: torch.randn_like(torch.ones(30)),
    "randint": lambda: torch.randint(2, 9, (20,)),
    "randperm": lambda: torch.randperm(20),
    "uniform_": lambda: torch.empty(20).uniform_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((40,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(20), 9),
    "normal": lambda: torch.normal(0.0, 1.0, (5,)),
    "beta": lambda: torch.distributions.Beta(torch.tensor(2.0), torch.tensor(3.0)).sample((5,)),
    "linear layer": lambda: nn.Linear(7, 5).weight * 1.0,
    "xavier": lambda: nn.init.xavier_normal_(torch.empty(3, 4)),
    "dropout": lambda: F.dropout(torch.ones(50, requires_grad=True), 0.5).detach(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_takes_no_generator_draws_the_numbers_of_the_given_one(name: str) -> None:
    draw = DRAWS[name]
    with torch.random.fork_rng():
        torch.set_rng_state(seeded(3).get_state())
        expected = draw()
    generator, before = seeded(3), torch.get_rng_state()
    with DrawFrom(generator):
        assert torch.equal(draw(), expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(generator.get_state(), seeded(3).get_state())


def test_a_generator_that_is_named_stays_the_one_drawn_from() -> None:
    outer = seeded(0)
    with DrawFrom(outer):
        assert torch.equal(torch.rand(4, generator=seeded(5)), torch.rand(4, generator=seeded(5)))
    assert torch.equal(outer.get_state(), seeded(0).get_state())


def test_dropout_as_devices_do_it_keeps_mean_and_gradient() -> None:
    values = torch.ones(20_000, requires_grad=True)
    with DrawFrom(seeded(0)):
        dropped, kept = torch.native_dropout(values, 0.25, True)
        untouched, _ = torch.native_dropout(values, 0.25, False)
    assert float(kept.float().mean()) == pytest.approx(0.75, abs=0.02)
    assert torch.equal(dropped, kept / 0.75) and torch.equal(untouched, values)


def test_attention_that_draws_nothing_runs_as_outside() -> None:
    query = torch.rand(1, 2, 6, 8, generator=seeded(0))
    with DrawFrom(seeded(0)):
        inside = F.scaled_dot_product_attention(query, query, query)
    assert torch.equal(inside, F.scaled_dot_product_attention(query, query, query))


class Drawing(threading.Thread):
    """Another user of the process: draws from torch's global generator all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.drawn: list[Tensor] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            self.drawn.append(torch.rand(4))

    def __enter__(self) -> Drawing:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.done.set()
        self.join()


@pytest.mark.parametrize("name", ["gmm", "adacontrast"])
def test_threads_do_not_disturb_each_other_s_numbers(name: str) -> None:
    """A run beside a thread that draws is the run without, and the thread sees its own seeded sequence."""
    alone = driftgate.create(name, small_model(), seed=1)
    for seed in range(15):
        alone.step(images_of(16, seed))

    model, images = small_model(), [images_of(16, seed) for seed in range(15)]
    with torch.random.fork_rng():
        torch.manual_seed(11)
        with Drawing() as other:
            beside = driftgate.create(name, model, seed=1)
            for batch in images:
                beside.step(batch)
        expected = torch.rand(4 * len(other.drawn), generator=seeded(11))
    assert len(other.drawn) > 100
    assert torch.equal(torch.cat(other.drawn), expected.view(-1))
    first, second = state_of(alone), state_of(beside)
    assert [key for key in first if not torch.equal(first[key], second[key])] == []
