"""The default step of ``gmm`` by hand, in float64: the plainest way, torch for nothing but the gradient.

Made for the network of ``support.small_model`` with softplus instead of ReLU. The mixture is the slow one of
``memory.oracle``; the second view and the reducer are handed in, for they are random. Settings that pick another rule
than the default one are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from memory.oracle import OracleMixture
from support import SIZE
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate import UNKNOWN, UNLABELED, SourceModel

RULES = {
    "precision": "float32",
    "optimizer": "sgd",
    "adapt_layers": "all",
    "covariance": "full",
    "floor_rule": "relative",
    "unknown_share": "auto",
    "tie_rule": "paper",
    "kl_form": "cross_entropy",
    "backward": "together",
}


@dataclass(frozen=True)
class Answer:
    labels: list[int]
    scores: Tensor
    novelty: list[float]
    pseudo_labels: list[int]
    thresholds: tuple[float, float, float]


class GMMByHand:
    def __init__(self, model: SourceModel, reducer: nn.Linear, settings: dict[str, Any]) -> None:
        assert {name: settings[name] for name in RULES} == RULES
        self.settings = settings
        named = {**dict(model.named_parameters()), "reducer.weight": reducer.weight, "reducer.bias": reducer.bias}
        self.parameters = {name: value.detach().double().requires_grad_() for name, value in named.items()}
        self.statistics = {
            f"{layer}.running_{moment}": model.get_buffer(f"{layer}.running_{moment}").double()
            for layer in ("backbone.1", "bottleneck.1")
            for moment in ("mean", "var")
        }
        self.source_statistics = dict(self.statistics)
        self.source_head = (self.head_rows().detach(), self.parameters["classifier.bias"].detach())
        self.speeds: dict[str, Tensor] = {}
        self.quantiles = [0.0, 0.0]
        self.doubts: list[float] = []
        self.shares: list[float] = []
        self.batches = self.steps = 0
        self.mixture = OracleMixture(
            model.num_classes, reducer.out_features, settings["decay"], mean_shift=settings["mean_shift"]
        )

    def step(self, images: Tensor, draw: Callable[[Tensor], Tensor]) -> Answer:
        """Predict the images, then perhaps learn from them and from another view of them, if there is one."""
        features, logits, reduced = self.forward(images)
        pooled = self.among_neighbors(features.detach(), self.pooled(logits.detach(), images))
        answer = self.assess(features.detach(), pooled, reduced.detach())
        self.steps += 1
        sure = sum(label != UNLABELED for label in answer.pseudo_labels) / len(images)
        if (self.steps - 1) % round(1 / self.settings["teach_share"]) or sure < self.settings["min_sure"]:
            return replace(answer, pseudo_labels=[UNLABELED] * len(images))
        views, labels, disagreement = [reduced], [*answer.pseudo_labels], torch.zeros((), dtype=torch.float64)
        if self.settings["second_view"] != "none":
            view = draw(images)
            if self.settings["second_view"] == "half":
                view = F.interpolate(view, size=(SIZE // 2, SIZE // 2), mode="bilinear", antialias=True)
            said, seen = self.forward(view)[1:]
            views.append(seen)
            disagreement = self.disagreement(answer.scores, logits.detach(), said)
            labels += answer.pseudo_labels
        contrastive = self.contrastive(torch.cat(views), labels)
        confident = self.cross_entropy(logits, answer.pseudo_labels)
        # Who doubts less than a quarter of the stream is at home in it, and learns the less.
        share = sum(doubt > self.settings["doubt_above"] for doubt in self.doubts) / len(images)
        self.shares.append(0.9 * self.shares[-1] + 0.1 * share if self.shares and max(self.shares) > 0 else share)
        need = min(1.0, max(0.2, max(self.shares) / 0.25))
        terms = self.settings["contrastive_weight"] * contrastive + self.settings["kl_weight"] * confident
        self.learn(need * (terms + self.settings["agreement_weight"] * disagreement))
        return answer

    def disagreement(self, answers: Tensor, own: Tensor, logits: Tensor) -> Tensor:
        """Mean over the samples of the sum over the classes of q log(q / p), p what another view says; q are the
        answers to a power that makes them as sure as the network's own."""
        said = logits.exp() / logits.exp().sum(dim=1, keepdim=True)

        def doubt(rows: list[list[float]]) -> float:
            return sum(-q / sum(row) * math.log(q / sum(row)) for row in rows for q in row if q > 0)

        level = doubt(own.softmax(dim=1).tolist())
        surest, least = 0.2, 1.0
        while least - surest > 1e-6:
            temperature = (surest + least) / 2
            powers = [[q ** (1 / temperature) for q in row] for row in answers.tolist()]
            surest, least = (temperature, least) if doubt(powers) < level else (surest, temperature)
        powers = [[q ** (1 / least) for q in row] for row in answers.tolist()]
        rows = [
            sum(q / sum(row) * torch.log(q / sum(row) / p) for q, p in zip(row, found, strict=True))
            for row, found in zip(powers, said, strict=True)
        ]
        return torch.stack([torch.as_tensor(row) for row in rows]).mean()

    def head_rows(self) -> Tensor:
        """(C, D) weight of the classifier: a length and a direction a class."""
        lengths, directions = (self.parameters[f"classifier.parametrizations.weight.original{n}"] for n in (0, 1))
        return torch.stack([length * row / row.norm() for length, row in zip(lengths, directions, strict=True)])

    def pooled(self, logits: Tensor, images: Tensor) -> Tensor:
        """(N, C): logarithms of p^(1 - a) q^a, where q is said by the statistics that the network does not go by."""
        share, by_batch, mine = self.settings["second_opinion"], self.settings["batch_norm"] == "batch", self.statistics
        self.statistics = dict(self.source_statistics)
        self.settings = {**self.settings, "batch_norm": "running" if by_batch else "batch"}
        other = self.forward(images)[1].detach()
        self.settings = {**self.settings, "batch_norm": "batch" if by_batch else "running"}
        self.statistics = mine
        products = logits.softmax(dim=1) ** (1 - share) * other.softmax(dim=1) ** share
        return (products / products.sum(dim=1, keepdim=True)).log() if share else logits

    def among_neighbors(self, features: Tensor, logits: Tensor) -> Tensor:
        """(N, C): logarithms of p^(1 - a) times the q^(a / 5) of the five others most in the same direction."""
        share, answers = self.settings["neighbor_opinion"], logits.softmax(dim=1)
        rows = []
        for i, own in enumerate(answers):
            apart = [row - features.mean(dim=0) for row in features]
            cosines = [float(apart[i] @ other / apart[i].norm() / other.norm()) for other in apart]
            nearest = sorted((j for j in range(len(apart)) if j != i), key=lambda j: -cosines[j])[:5]
            product = own ** (1 - share)
            for j in nearest:
                product = product * answers[j] ** (share / 5)
            rows.append((product / product.sum()).log())
        return torch.stack(rows)

    def directed(self, scores: Tensor, samples: np.ndarray) -> Tensor:
        """(N, C): scores times the exponentials of tempered cosines, by the inverse of the mixture's whole covariance
        with its mean variance added; a class of weight n counts n / (n + 5)."""
        weights, means = self.mixture.weights, self.mixture.means
        shares = weights / weights.sum()
        center = shares @ means
        spread = sum(
            share * (covariance + np.outer(mean - center, mean - center))
            for share, mean, covariance in zip(shares, means, self.mixture.covariances, strict=True)
        )
        inverse = np.linalg.inv(spread + np.trace(spread) / len(spread) * np.eye(len(spread)))
        rows = []
        for score, sample in zip(scores.tolist(), samples - center, strict=True):
            odds = []
            for own, mean, weight in zip(score, means - center, weights, strict=True):
                length = math.sqrt((mean @ inverse @ mean) * (sample @ inverse @ sample + 1))
                cosine = sample @ inverse @ mean / length * weight / (weight + 5)
                odds.append(own * math.exp(cosine / 0.2) ** self.settings["third_opinion"])
            rows.append([value / sum(odds) for value in odds])
        return torch.tensor(rows, dtype=torch.float64)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features (N, D), logits (N, C) and reduced features (N, R)."""
        parts = self.parameters
        maps = F.conv2d(images.double(), parts["backbone.0.weight"], parts["backbone.0.bias"], padding=1)
        side = maps.shape[-1] // 2
        maps = self.normalise("backbone.1", maps.transpose(0, 1).flatten(1).T).T.unflatten(1, (len(images), -1))
        # (8, N, 64) -> the mean over each quarter of 8 x 8 pixels.
        quarters = (maps.mul(4).exp().log1p() / 4).unflatten(2, (2, side, 2, side)).mean(dim=(3, 5))
        pooled = quarters.transpose(0, 1).flatten(1)
        features = pooled @ parts["bottleneck.0.weight"].T + parts["bottleneck.0.bias"]
        features = self.normalise("bottleneck.1", features)
        logits = features @ self.head_rows().T + parts["classifier.bias"]
        return features, logits, features @ parts["reducer.weight"].T + parts["reducer.bias"]

    def normalise(self, layer: str, rows: Tensor) -> Tensor:
        """Batch norm of rows (M, channels): by the batch, which the running statistics follow by a tenth."""
        mean, variance = self.statistics[f"{layer}.running_mean"], self.statistics[f"{layer}.running_var"]
        if self.settings["batch_norm"] == "batch":
            self.statistics[f"{layer}.running_mean"] = 0.9 * mean + 0.1 * rows.detach().mean(dim=0)
            self.statistics[f"{layer}.running_var"] = 0.9 * variance + 0.1 * rows.detach().var(dim=0, correction=1)
            mean, variance = rows.mean(dim=0), rows.var(dim=0, correction=0)
        unit = (rows - mean) / (variance + 1e-5).sqrt()
        return unit * self.parameters[f"{layer}.weight"] + self.parameters[f"{layer}.bias"]

    def assess(self, features: Tensor, logits: Tensor, reduced: Tensor) -> Answer:
        """Eqs. 1-4, the gate, the pseudo-labels, their veto, and the prediction."""
        chosen, scores, samples = self.settings, logits.softmax(dim=1), reduced.numpy()
        self.mixture.update(samples, scores.numpy())
        likelihood = self.mixture.log_likelihood(samples, chosen["covariance_floor"], chosen["covariance_shrinkage"])
        likelihood = likelihood + chosen["class_prior"] * np.log(self.mixture.weights / self.mixture.weights.sum())
        novelty = []
        for row in likelihood / chosen["likelihood_temperature"]:
            shares = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
            novelty.append(sum(-share * math.log(share) for share in shares if share > 0) / math.log(len(row)))
        scores = self.directed(scores, samples)
        if chosen["novelty"] == "prediction_entropy":
            novelty = [sum(-p * math.log(p) for p in row) / math.log(len(row)) for row in scores.tolist()]
        known, unknown = self.track(novelty)
        prediction = (known + unknown) / 2
        if chosen["gate"] == "level":
            known, unknown, prediction = min(known, 0.5), max(unknown, 0.5), 0.5
        prediction, unknown = max(prediction, chosen["certain_below"]), max(unknown, chosen["certain_below"])
        labels, pseudo_labels, self.doubts = [], [], []
        if chosen["answer"] != "classifier":
            shares = torch.from_numpy(likelihood / chosen["likelihood_temperature"]).softmax(dim=1)
            scores = shares if chosen["answer"] == "mixture" else (scores + shares) / 2
        source_scores = (features @ self.source_head[0].T + self.source_head[1]).softmax(dim=1)
        for value, row, density, source in zip(novelty, scores, likelihood, source_scores, strict=True):
            labels.append(int(row.argmax()) if value <= prediction else UNKNOWN)
            label = int(density.argmax()) if value <= known else UNKNOWN if value >= unknown else UNLABELED
            doubt = sum(-float(share) * math.log(share) for share in source) / math.log(len(source))
            self.doubts.append(doubt)
            vetoed = label >= 0 and source[label] <= chosen["veto_below"]
            vetoed = vetoed or (label == UNKNOWN and doubt <= chosen["doubt_above"])
            pseudo_labels.append(UNLABELED if vetoed else label)
        return Answer(labels, scores, novelty, pseudo_labels, (known, unknown, prediction))

    def track(self, novelty: list[float]) -> tuple[float, float]:
        """Running mean of the batch quantiles, from ``init_batches`` batches on a moving one."""
        self.batches += 1
        share = (1 - self.settings["p_reject"]) / 2
        rate = 1 / min(self.batches, self.settings["init_batches"])
        for index, level in enumerate((share, 1 - share)):
            self.quantiles[index] += rate * (float(np.quantile(novelty, level)) - self.quantiles[index])
        return self.quantiles[0], self.quantiles[1]

    def contrastive(self, views: Tensor, labels: list[int]) -> Tensor:
        """Eq. 5, anchor by anchor; ``mean`` over the positives of an anchor, then over the anchors that have any."""
        chosen = self.settings
        units = views / views.norm(dim=1, keepdim=True)
        centers = torch.from_numpy(self.mixture.means)
        centers = centers / centers.norm(dim=1, keepdim=True)
        pairs, means = [], []
        for i, label in enumerate(labels):
            if label < 0:
                continue
            near = (units @ units[i] / chosen["temperature"]).exp()
            partners = [j for j in range(len(units)) if j != i or chosen["self_pairs"]]
            share = near / near[partners].sum()
            positives = [-share[j].log() for j in partners if labels[j] == label]
            if positives:
                pairs.append(sum(positives) / (len(positives) if chosen["reduction"] == "mean" else 1))
            pulls = units @ centers[label] if chosen["mean_term"] == "samples" else centers @ units[i]
            pulls = (pulls / chosen["temperature"]).exp()
            means.append(-(pulls[i if chosen["mean_term"] == "samples" else label] / pulls.sum()).log())
        if chosen["reduction"] == "sum":
            return torch.stack(pairs).sum() + torch.stack(means).sum()
        return torch.stack(pairs).mean() + torch.stack(means).mean()

    def cross_entropy(self, logits: Tensor, labels: list[int]) -> Tensor:
        """The supplement's form of Eq. 6: towards the label where known, towards the uniform where unknown."""
        known, unknown = [logits.new_zeros(())], [logits.new_zeros(())]
        for row, label in zip(logits, labels, strict=True):
            shares = row.exp() / row.exp().sum()
            if label >= 0:
                known.append(-shares[label].log())
            elif label == UNKNOWN:
                unknown.append(sum((1 / len(row) / share).log() / len(row) for share in shares))
        mean = self.settings["reduction"] == "mean"
        return sum(sum(part) / (max(len(part) - 1, 1) if mean else 1) for part in (known, unknown))

    def learn(self, loss: Tensor) -> None:
        """SGD with (Nesterov) momentum: the speed is the gradient at first, then a decaying sum of all."""
        chosen = self.settings
        gradients = dict(zip(self.parameters, torch.autograd.grad(loss, list(self.parameters.values())), strict=True))
        length = math.sqrt(sum(float(gradient.square().sum()) for gradient in gradients.values()))
        limit = chosen["max_grad_norm"]
        scale = 1.0 if limit is None else min(1.0, limit / length)
        for name, value in self.parameters.items():
            gradient = scale * gradients[name] + chosen["weight_decay"] * value.detach()
            speed = chosen["momentum"] * self.speeds.get(name, torch.zeros_like(gradient)) + gradient
            self.speeds[name] = speed
            move = gradient + chosen["momentum"] * speed if chosen["nesterov"] else speed
            rate = chosen["lr"] * (chosen["backbone_lr_scale"] if name.startswith("backbone.") else 1.0)
            self.parameters[name] = (value.detach() - rate * move).requires_grad_()
