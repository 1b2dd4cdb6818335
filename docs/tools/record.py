"""A real run of `gmm` on the digits, with what happened inside every step kept: what the pictures are drawn from.

Source: typeset digits, 0 to 6 of them known. Stream: handwritten digits, of which 0 to 3 are known, 4 to 6 never come,
and 7 to 9 are new (OPDA). Default settings; nothing is changed for the sake of a picture.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import driftgate
from driftgate.lab.data import DomainStream, open_dataset
from driftgate.lab.pretrain import PretrainSettings, pretrain
from driftgate.memory import StreamingGMM
from driftgate.methods.gmm import GMM
from driftgate.models import SourceModel
from driftgate.types import Prediction

SHIFT, BATCH_SIZE = "OPDA", 64
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """One batch of N samples, C classes, R reduced dimensions.

    Attributes:
        images: (N, 28, 28) as they came.
        truth: (N,) true class or ``UNKNOWN``; the method never sees it.
        said: what the method answered and learned from.
        source_labels: (N,) what the source model says of the same samples.
        posterior: (N, C) the likelihoods of the mixture, normalised: p in Eq. 4.
        reduced, reduced_after: (N, R) features before and after the step has changed the network.
        before, after: the mixture before and after Eqs. 1-3.
    """

    images: Tensor
    truth: Tensor
    said: Prediction
    source_labels: Tensor
    posterior: Tensor
    reduced: Tensor
    reduced_after: Tensor
    before: StreamingGMM
    after: StreamingGMM


@dataclass(frozen=True)
class Run:
    """All steps of a stream, the names of the source classes, those of them that come, and pictures of the source."""

    steps: list[Step]
    class_names: tuple[str, ...]
    shared: tuple[int, ...]
    source_images: Tensor


def record(seed: int = 0, limit: int | None = None) -> Run:
    """Train the source model, stream the target through `gmm`, and keep everything."""
    data = open_dataset("digits")
    split = data.split(SHIFT)
    source = data.domain("rendered", seed=seed)
    model = SourceModel.build("cnn", data.class_names[: split.num_source], seed=seed)
    pretrain(model, source, split, PretrainSettings.for_dataset("digits", seed=seed), workers=0)
    method, plain = driftgate.create("gmm", model.clone(), seed=seed), driftgate.create("source-only", model, seed=seed)
    assert isinstance(method, GMM)
    samples = None if limit is None else limit * BATCH_SIZE
    size = model.spec.image_size
    stream = DomainStream([data.domain("mnist")], split, input_size=size, seed=seed, workers=0, limit=samples)
    steps = [step(method, plain, images, truth) for images, truth in stream.batches()]
    shown = DomainStream([source], split, input_size=size, batch_size=512, seed=seed, workers=0)
    images, labels = next(shown.batches())
    chosen = torch.stack([images[labels == name][:4, 0] for name in split.shared_classes])
    return Run(steps, model.spec.class_names, tuple(split.shared_classes), chosen)


def step(method: GMM, plain: driftgate.Method, images: Tensor, truth: Tensor) -> Step:
    """One step, watched from outside: the reducer tells the features, the mixture is copied before and after."""
    seen: list[Tensor] = []
    watch = method.reducer.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().clone()))
    before = method.mixture.clone()
    said = method.step(images)
    reduced, after = seen[0], method.mixture.clone()
    seen.clear()
    method.predict(images)
    watch.remove()
    posterior = after.evaluate(reduced, prior=method.settings.class_prior).log_likelihood.softmax(dim=1)
    answered = plain.predict(images).labels
    return Step(images[:, 0], truth, said, answered, posterior, reduced, seen[0], before, after)


@dataclass(frozen=True)
class Plane:
    """A linear map of the reduced space to a plane: that in which the classes that come lie most like a polygon.

    The space is whitened by the mixture's pooled covariance, so that one unit is one standard deviation within a class,
    and projected at right angles; so classes look no further apart than they are. A linear map keeps a Gaussian one.
    """

    center: Tensor
    axes: Tensor

    @classmethod
    def of(cls, mixture: StreamingGMM, classes: tuple[int, ...]) -> Plane:
        """The plane of a mixture for the classes that are shown."""
        means, shares = mixture.means.double(), mixture.weights.double() / mixture.weights.double().sum()
        within = torch.einsum("c,cij->ij", shares, mixture.covariances.double())
        within += 1e-3 * within.diagonal().mean() * torch.eye(len(within), dtype=within.dtype)
        center = means[list(classes)].mean(dim=0)
        whitening = torch.linalg.inv(torch.linalg.cholesky(within)).mT
        spread = (means[list(classes)] - center) @ whitening
        angles = torch.pi * (2.0 * torch.arange(len(classes), dtype=torch.float64) + 1.0) / len(classes) + torch.pi / 2
        corners = torch.stack([angles.cos(), angles.sin()], dim=1)
        left, _, right = torch.linalg.svd(spread.mT @ corners, full_matrices=False)  # Procrustes
        return cls(center, whitening @ left @ right)

    def points(self, features: Tensor) -> Array:
        """(N, R) -> (N, 2)."""
        return ((features.double() - self.center) @ self.axes).numpy()

    def spreads(self, mixture: StreamingGMM) -> Array:
        """(C, 2, 2) covariances as the likelihoods use them: each mixed with the pooled one (docs/gmm.md)."""
        covariances, weights = mixture.covariances.double(), mixture.weights.double()
        pooled = torch.einsum("c,cij->ij", weights / weights.sum(), covariances)
        keep = (weights / (weights + mixture.shrinkage))[:, None, None]
        return (self.axes.mT @ (keep * covariances + (1.0 - keep) * pooled) @ self.axes).numpy()
