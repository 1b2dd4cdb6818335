"""What the guard looks at: numbers that need no label, one set a look.

Most come with the answers for nothing. Four need the network as it came, which answers a sample of the same traffic: it
never learns, so that whatever moves its answers is the stream and not the adaptation. Three cost a pass over the
weights and are read at every tenth look.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from driftgate.methods.base import Method
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.scores import entropy
from driftgate.types import UNKNOWN, Prediction

DEEP_EVERY = 10
"""Looks between two readings of the weights."""

DEEP = frozenset({"weights", "mixture", "taught"})
"""The signals of such a reading."""

DIRECTED = frozenset({"source_doubt", "source_classes", "source_shift"})
"""Signals of the network that never learns, which therefore have no drift of their own."""

QUANTILES = {"novelty_median": 0.5, "novelty_high": 0.9}

MEANINGS = {
    "rejected": "share of the samples predicted as unknown",
    "classes": "entropy of the predicted classes, 1 if all come equally often",
    "novelty_median": "half of the samples look newer than this",
    "novelty_high": "a tenth of the samples looks newer than this",
    "agreement": "share of the sampled traffic on which the network as it came predicts the same class",
    "source_doubt": "mean entropy of the answers of the network as it came",
    "source_classes": "entropy of the classes it predicts",
    "source_shift": "distance of the mean feature it sees from that of the first looks, in deviations",
    "weights": "growth of the distance of the weights from the start, in lengths of the start",
    "mixture": "growth of the distance of the mixture's means from the first reading, in lengths of these",
    "taught": "share of the batches since the last reading that changed a weight",
}


class StartNetwork:
    """The network as it came: only the tensors that may change are kept a second time."""

    def __init__(self, model: SourceModel, start: dict[str, Tensor]) -> None:
        self.model = model
        learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        kept = learning | {name for name, _ in model.named_buffers()}
        self.tensors = {name: value.to(model.mean.device) for name, value in start.items() if name in kept}
        self._learning = [name for name in self.tensors if name in learning]

    @torch.no_grad()
    def forward(self, images: Tensor) -> ModelOutput:
        """Features and logits of prepared images, normalised by the statistics it was trained with."""
        self.model.eval()
        output: ModelOutput = functional_call(self.model, self.tensors, (images,))
        return output

    @torch.no_grad()
    def distance(self) -> float:
        """Of the weights that learn, as they are now, over the length of those at the start."""
        now = dict(self.model.named_parameters())
        moved = sum(float((now[name] - self.tensors[name]).square().sum()) for name in self._learning)
        length = sum(float(self.tensors[name].square().sum()) for name in self._learning)
        return math.sqrt(moved / max(length, 1e-30))

    @property
    def num_bytes(self) -> int:
        """Kept beside the network."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


class Looks:
    """Gathers answers until they are enough for a look, and makes its signals.

    The first ``reference_looks`` looks tell where the features of the network as it came usually lie.
    """

    def __init__(
        self, method: Method, start: StartNetwork, *, look_samples: int, source_samples: int, reference_looks: int
    ) -> None:
        self.method, self.start = method, start
        self.look_samples, self.source_samples, self.reference_looks = look_samples, source_samples, reference_looks
        self._answers: list[Prediction] = []
        self._source: list[tuple[ModelOutput, Tensor]] = []
        self._taught: list[bool] = []
        self._looks = 0
        self._before: dict[str, float] = {}
        self._reference: dict[str, Tensor] = {}

    def add(self, batch: Any, prediction: Prediction, taught: bool | None) -> dict[str, float] | None:
        """Take in one batch; the signals of a look once enough samples are together.

        ``taught`` says whether a weight has changed; None while the method must not learn.
        """
        self._answers.append(prediction)
        if taught is not None:
            self._taught.append(taught)
        if self.source_samples:
            self._ask_source(batch, prediction)
        if sum(map(len, self._answers)) < self.look_samples:
            return None
        signals = answer_signals(self._answers) | self._source_signals()
        self._looks += 1
        if self._looks % DEEP_EVERY == 0 and self._taught:
            signals |= self._deep_signals()
        self._answers, self._source = [], []
        return signals

    def forget(self) -> None:
        """Begin a look anew after the method was put back."""
        self._answers, self._source, self._taught, self._before = [], [], [], {}

    def state_dict(self) -> dict[str, Tensor]:
        """What later looks are compared with: moments of the first features, and the first means of the mixture."""
        return dict(self._reference)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put back what ``state_dict`` gave."""
        self._reference = {name: value.to(self.method.model.mean.device) for name, value in state.items()}

    def _ask_source(self, batch: Any, prediction: Prediction) -> None:
        images = self.method.model.prepare(batch)
        wanted = max(1, round(len(images) * min(self.source_samples / self.look_samples, 1.0)))
        # Evenly out of the batch, so that a batch sorted by class is seen whole.
        places = torch.linspace(0, len(images) - 1, wanted, device=images.device).round().long()
        self._source.append((self.start.forward(images[places]), prediction.scores[places].argmax(dim=1)))

    def _source_signals(self) -> dict[str, float]:
        if not self._source:
            return {}
        outputs, mine = zip(*self._source, strict=True)
        logits, features = (torch.cat([getattr(out, name) for out in outputs]) for name in ("logits", "features"))
        theirs = logits.argmax(dim=1)
        return {
            "agreement": float((theirs == torch.cat(mine)).double().mean()),
            "source_doubt": float(entropy(logits.double().log_softmax(dim=1)).mean()),
            "source_classes": class_entropy(theirs, logits.shape[1]),
            **self._shift(features.double()),
        }

    def _shift(self, features: Tensor) -> dict[str, float]:
        """Root of the mean over the dimensions of (batch mean - mean)^2 / variance; nothing while both are learned."""
        known = self._reference
        looks = known.get("looks", features.new_zeros(()))
        if looks < self.reference_looks or looks == 0:
            known["looks"] = looks + 1
            sums = torch.stack([features.new_full((features.shape[1],), len(features)), features.sum(dim=0)])
            moments = torch.cat([sums, features.square().sum(dim=0, keepdim=True)])
            known["features"] = known.get("features", 0.0) + moments
            return {}
        count, total, squares = known["features"]
        mean = total / count
        variance = (squares / count - mean.square()).clamp_min(1e-12)
        return {"source_shift": float(((features.mean(dim=0) - mean).square() / variance).mean().sqrt())}

    def _deep_signals(self) -> dict[str, float]:
        distances = {"weights": self.start.distance()}
        mixture = getattr(self.method, "mixture", None)
        if mixture is not None:
            means = mixture.means.detach().double().clone()
            first = self._reference.setdefault("mixture", means)
            distances["mixture"] = float((means - first).norm() / first.norm().clamp_min(1e-30))
        grown = {name: value - self._before[name] for name, value in distances.items() if name in self._before}
        self._before, taught, self._taught = distances, self._taught, []
        return grown | {"taught": sum(taught) / len(taught)}


def answer_signals(answers: list[Prediction]) -> dict[str, float]:
    """Signals that the answers carry with them."""
    labels, novelty = (torch.cat([getattr(answer, name) for answer in answers]) for name in ("labels", "novelty"))
    classes = torch.cat([answer.scores.argmax(dim=1) for answer in answers])
    levels = torch.tensor(list(QUANTILES.values()), dtype=torch.float64, device=novelty.device)
    return {
        "rejected": float((labels == UNKNOWN).double().mean()),
        "classes": class_entropy(classes, answers[0].scores.shape[1]),
        **dict(zip(QUANTILES, torch.quantile(novelty.double(), levels).tolist(), strict=True)),
    }


def class_entropy(classes: Tensor, num_classes: int) -> float:
    """(N,) -> entropy of how often each class occurs, 0 to 1."""
    shares = torch.bincount(classes, minlength=num_classes).double() / len(classes)
    return float(entropy(shares.clamp_min(1e-30).log().unsqueeze(0))[0])


def changes(method: Method) -> int:
    """Grows whenever a weight is written to."""
    return sum(parameter._version for parameter in method.model.parameters())
