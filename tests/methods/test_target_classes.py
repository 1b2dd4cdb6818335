"""The guess of the number of target classes: right where clusters are plain, harmless where a batch is too small."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.metrics import silhouette_score
from torch import Tensor
from torch.nn import functional as F

from driftgate.methods.target_classes import TargetClasses, estimate_target_classes, follow_target_classes

RATIOS = (0.25, 0.5, 1.0, 2.0, 3.0)
NOTHING = TargetClasses()


def clustered(samples: int, clusters: int, *, dim: int = 32, spread: float = 0.05, seed: int = 0) -> Tensor:
    """(N, D) unit vectors around as many random directions, taken in turn."""
    generator = torch.Generator().manual_seed(seed)
    centers = torch.randn(clusters, dim, generator=generator)
    noise = spread * torch.randn(samples, dim, generator=generator)
    return F.normalize(centers[torch.arange(samples) % clusters] + noise, dim=1)


@pytest.mark.parametrize(("clusters", "ratio"), [(4, 0.5), (8, 1.0), (16, 2.0)])
def test_plain_clusters_are_counted(clusters: int, ratio: float) -> None:
    found = estimate_target_classes(clustered(80, clusters), 8, RATIOS)
    assert found is not None
    assert found.ratio == ratio
    assert found.silhouette > 0.6
    assert found.number(8) == clusters


def test_silhouette_is_that_of_t_sne_and_k_means() -> None:
    """With what scikit-learn 1.0.2 took by default: learning rate 200, components as they are, ten starts."""
    features = clustered(40, 6)
    points = features.double().numpy()
    start = PCA(2, svd_solver="randomized", random_state=0).fit_transform(points).astype(np.float32)
    plane = TSNE(2, perplexity=13.0, learning_rate=200, init=start, random_state=0).fit_transform(points)
    expected = {
        ratio: silhouette_score(plane, KMeans(max(int(5 * ratio), 2), n_init=10, random_state=0).fit_predict(plane))
        for ratio in RATIOS
    }
    found = estimate_target_classes(features, 5, RATIOS)
    assert found is not None
    assert found.ratio == max(expected, key=lambda ratio: expected[ratio])
    assert found.silhouette == pytest.approx(max(expected.values()), abs=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_too_few_samples_give_no_estimate(size: int) -> None:
    features = clustered(size, 2)
    assert estimate_target_classes(features, 5, RATIOS) is None
    assert follow_target_classes(NOTHING, features, 5, RATIOS, "first") == NOTHING


@pytest.mark.parametrize("size", [3, 4, 5, 12])
def test_few_samples_for_many_classes(size: int) -> None:
    """K-means and silhouette allow at most N - 1 clusters; all ratios then mean the same, and the first is taken."""
    found = estimate_target_classes(clustered(size, size), 200, RATIOS)
    assert found is not None
    assert found.ratio == RATIOS[0]
    assert np.isfinite(found.silhouette)


def test_equal_samples_and_pairs_of_them() -> None:
    assert estimate_target_classes(clustered(1, 1).repeat(9, 1), 5, RATIOS) is None
    assert estimate_target_classes(clustered(2, 2).repeat(8, 1), 5, RATIOS) is None
    assert estimate_target_classes(torch.zeros(9, 4), 5, RATIOS) is None
    found = estimate_target_classes(clustered(3, 3).repeat(8, 1), 5, RATIOS)
    assert found is None or np.isfinite(found.silhouette)


def test_rounding_does_not_make_samples_different() -> None:
    noise = 1e-8 * torch.randn(9, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert estimate_target_classes(torch.full((9, 32), 0.123, dtype=torch.float64) + noise, 5, RATIOS) is None


@pytest.mark.parametrize("dim", [1, 2])
def test_features_that_need_no_t_sne(dim: int) -> None:
    points = torch.tensor([0.0, 0.01, 0.02, 1.0, 1.01, 1.02])[:, None].repeat(1, dim)
    found = estimate_target_classes(points, 2, RATIOS)
    assert found is not None
    assert found.number(2) == 2


def test_when_to_estimate() -> None:
    plain, vague = clustered(40, 8), clustered(40, 4, spread=1.0, seed=1)
    first = follow_target_classes(NOTHING, plain, 8, RATIOS, "first")
    assert first.ratio == 1.0
    later = estimate_target_classes(vague, 8, RATIOS)
    assert later is not None and later.silhouette < first.silhouette and later.ratio != first.ratio
    assert follow_target_classes(first, vague, 8, RATIOS, "first") == first
    assert follow_target_classes(first, vague, 8, RATIOS, "best") == first
    earlier = TargetClasses(3.0, first.silhouette)  # as good as what is found now: the first one stays
    assert follow_target_classes(earlier, plain, 8, RATIOS, "best") == earlier
    assert follow_target_classes(later, plain, 8, RATIOS, "best") == first
    assert follow_target_classes(later, plain, 8, RATIOS, "first") == later
    assert follow_target_classes(first, vague, 8, RATIOS, "latest") == later


def test_the_first_batch_that_allows_it_is_the_first() -> None:
    after_one = follow_target_classes(NOTHING, clustered(1, 1), 8, RATIOS, "first")
    assert after_one == NOTHING
    assert follow_target_classes(after_one, clustered(40, 8), 8, RATIOS, "first").silhouette > 0


def test_counts_for_a_batch() -> None:
    assert TargetClasses(0.5).number(9) == 4
    assert TargetClasses(0.5).share(64, 9) == 14  # 64 / 4.5
    assert TargetClasses(2.0).share(64, 200) == 1
    assert TargetClasses(0.25).number(4) == 2
    assert TargetClasses(0.25).share(64, 4) == 32
    assert TargetClasses().share(1, 1) == 1


def test_saved_as_two_numbers() -> None:
    estimate = TargetClasses(0.25, 0.1 + 0.2)
    assert estimate.to_tensor().shape == (2,)
    assert TargetClasses.from_tensor(estimate.to_tensor()) == estimate


def test_numpy_s_and_torch_s_random_state_stay() -> None:
    before, numbers = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    estimate_target_classes(clustered(20, 4), 4, RATIOS)
    assert torch.equal(before, torch.get_rng_state())
    assert (numbers == np.random.get_state()[1]).all()  # noqa: NPY002


def stays(features: Tensor) -> bool:
    """Whether the guess survives a scaling that changes the last bits of the features only."""
    ratios = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0)
    one, two = (estimate_target_classes(scale * features.double(), 8, ratios) for scale in (1.0, 1.0 + 1e-6))
    assert one is not None and two is not None
    return one.ratio == two.ratio


def test_the_guess_is_firm_on_plain_clusters_and_hangs_on_the_last_bits_without() -> None:
    """What the pages of GLC and LEAD say about it; t-SNE of a batch without clusters is chaotic."""
    assert all(stays(clustered(40, 8, seed=seed)) for seed in range(3))
    assert not all(stays(clustered(40, 8, spread=3.0, seed=seed)) for seed in range(8))
