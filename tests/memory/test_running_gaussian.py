"""The running Gaussian against the moments of all samples, and against its recursion written out."""

from __future__ import annotations

import torch

from driftgate.memory.running_gaussian import RunningGaussian


def samples(count: int, seed: int, dim: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3.0 + torch.randn(count, dim, generator=generator) @ torch.randn(dim, dim, generator=generator)


def test_moments_of_everything_within_the_window() -> None:
    gaussian, seen = RunningGaussian(5, window=1000), []
    for seed, size in enumerate((7, 1, 64, 30)):
        seen.append(samples(size, seed))
        mean, covariance = gaussian.update(seen[-1])
        together = torch.cat(seen)
        assert torch.allclose(mean, together.mean(dim=0), atol=1e-4)
        assert torch.allclose(covariance, torch.cov(together.T, correction=0).reshape(5, 5), atol=1e-3)
    assert int(gaussian.count) == 102


def test_beyond_the_window_the_recursion_sample_by_sample() -> None:
    gaussian = RunningGaussian(5, window=50)
    mean, covariance, count = torch.zeros(5).double(), torch.zeros(5, 5).double(), 0
    for seed in range(6):
        batch = samples(32, seed)
        gaussian.update(batch)
        count += 32
        share = 1 / min(count, 50)
        delta, scatter = torch.zeros(5).double(), torch.zeros(5, 5).double()
        for row in batch.double():
            delta += share * (row - mean)
            scatter += torch.outer(row - mean, row - mean)
        covariance = covariance + share * (scatter - 32 * covariance) - torch.outer(delta, delta)
        mean = mean + delta
    assert torch.allclose(gaussian.mean.double(), mean, rtol=1e-4)
    assert torch.allclose(gaussian.covariance.double(), covariance, rtol=1e-3, atol=1e-4)
    assert (torch.linalg.eigvalsh(gaussian.covariance.double()) > 0).all()


def test_more_samples_at_once_than_the_window_replace_everything() -> None:
    gaussian, batch = RunningGaussian(5, window=10), samples(40, 1)
    gaussian.update(samples(10, 0))
    gaussian.update(batch)
    assert torch.allclose(gaussian.mean, batch.mean(dim=0), atol=1e-4)
    assert torch.allclose(gaussian.covariance, torch.cov(batch.T, correction=0), atol=1e-3)


def test_gradient_goes_through_this_batch_alone() -> None:
    gaussian = RunningGaussian(5)
    first, second = samples(8, 0).requires_grad_(), samples(8, 1).requires_grad_()
    gaussian.update(first)
    mean, covariance = gaussian.update(second)
    (mean.sum() + covariance.sum()).backward()
    assert first.grad is None and second.grad is not None and second.grad.abs().sum() > 0
    assert not gaussian.mean.requires_grad and not gaussian.covariance.requires_grad


def test_clone_and_state() -> None:
    gaussian = RunningGaussian(5)
    gaussian.update(samples(8, 0))
    copy, loaded = gaussian.clone(), RunningGaussian(5)
    loaded.load_state_dict(gaussian.state_dict())
    before = gaussian.mean.clone()
    for one in (copy, loaded):
        one.update(samples(8, 1))
    assert torch.equal(gaussian.mean, before) and not torch.equal(copy.mean, before)
    assert torch.equal(copy.covariance, loaded.covariance) and int(loaded.count) == 16
    assert gaussian.num_bytes == 4 * (5 + 25) + 8


def test_samples_at_the_edge_of_float32_stay_finite() -> None:
    gaussian = RunningGaussian(2, window=10_000)
    for _ in range(3):
        gaussian.update(torch.full((2_000, 2), 9e17))
    assert gaussian.covariance.isfinite().all()
