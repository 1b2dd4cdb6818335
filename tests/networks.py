"""Classifiers as users bring them: of every build, and with what timm, torchvision and transformers put on theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 4
SIZE = 12


class Body(nn.Module):
    """Images (N, 3, H, W) to maps (N, 8, 3, 3), through two blocks of which one is residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.pool = nn.AdaptiveAvgPool2d(3)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.stem(images)
        for block in self.blocks:
            maps = block(maps)
        pooled: Tensor = self.pool(maps)
        return pooled


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))

    def forward(self, maps: Tensor) -> Tensor:
        output: Tensor = maps + self.inside(maps)
        return output


def sequential() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Linear(32, CLASSES))


class Functional(nn.Module):
    """Flattened without a layer, the head under a name nobody expects, and a linear layer as wide in front of it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.narrow = nn.Linear(72, CLASSES)
        self.wide = nn.Linear(CLASSES, 24)
        self.answer = nn.Linear(24, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        maps = torch.flatten(self.body(images), 1)
        logits: Tensor = self.answer(F.relu(self.wide(self.narrow(maps))))
        return logits


class Nested(nn.Module):
    """The head deep inside, and registered before the layers that run before it."""

    def __init__(self) -> None:
        super().__init__()
        self.top = nn.ModuleDict({"out": nn.Sequential(nn.LayerNorm(72), nn.Linear(72, CLASSES))})
        self.body = Body()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.top["out"](self.body(images).flatten(1))
        return logits


class LogSoftmax(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = Body(), nn.Linear(72, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return F.log_softmax(self.fc(self.body(images).flatten(1)), dim=1)


class InDictionary(LogSoftmax):
    def forward(self, images: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": self.fc(self.body(images).flatten(1))}


class LikeTimm(nn.Module):
    """``get_classifier`` and ``pretrained_cfg``; a layer of as many outputs comes behind the head in the list."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body()
        self.head = nn.ModuleDict({"fc": nn.Linear(72, CLASSES)})
        self.unused = nn.Linear(72, CLASSES)
        self.pretrained_cfg = {
            "input_size": (3, SIZE, SIZE),
            "mean": (0.5, 0.4, 0.3),
            "std": (0.2, 0.25, 0.3),
            "crop_pct": 0.9,
            "crop_mode": "center",
            "interpolation": "bicubic",
            "classifier": "head.fc",
        }

    def get_classifier(self) -> nn.Module:
        return self.head["fc"]

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head["fc"](self.body(images).flatten(1))
        return logits


class LikeTorchvision(nn.Module):
    """``classifier`` is a sequence that ends in the head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Body()
        self.classifier = nn.Sequential(nn.Linear(72, 20), nn.Hardswish(inplace=True), nn.Linear(20, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.flatten(self.features(images), 1))
        return logits


@dataclass
class ClassifierOutput:
    """As transformers returns it."""

    loss: Tensor | None = None
    logits: Tensor | None = None


class LikeTransformers(nn.Module):
    """``config``, ``classifier`` with the flattening inside, and an output with ``logits`` in it."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(
            image_size=SIZE, num_channels=3, id2label={3: "yak", 0: "cat", 1: "dog", 2: "owl"}, num_labels=CLASSES
        )
        self.resnet = Body()
        self.pooler = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(8, CLASSES))

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> ClassifierOutput:
        return ClassifierOutput(logits=self.classifier(self.pooler(self.resnet(pixel_values))))


class Attention(nn.Module):
    """A vision transformer in small: tokens, layer norm, the first token classified; no batch norm anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(image_size=[SIZE, SIZE], num_channels=3)
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.encoder = nn.ModuleList([layer, nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)])
        self.norm, self.heads = nn.LayerNorm(16), nn.Sequential(nn.Linear(16, CLASSES))

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], dim=1)
        for layer in self.encoder:
            tokens = layer(tokens)
        logits: Tensor = self.heads(self.norm(tokens)[:, 0])
        return logits


def rows() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES))


@dataclass(frozen=True)
class Case:
    """A network, what has to be said about it, and where its head is."""

    build: Callable[[], nn.Module]
    head: str
    feature_dim: int
    told: dict[str, Any]

    def __call__(self) -> nn.Module:
        """The same weights every time."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build()


IMAGES: dict[str, Any] = {"input_size": (SIZE, SIZE), "mean": 0.4, "std": (0.2, 0.3, 0.4)}
CASES = {
    "sequential": Case(sequential, "6", 32, IMAGES),
    "functional": Case(Functional, "answer", 24, IMAGES),
    "nested": Case(Nested, "top.out.1", 72, IMAGES),
    "log-softmax": Case(LogSoftmax, "fc", 72, IMAGES),
    "dictionary": Case(InDictionary, "fc", 72, IMAGES),
    "timm": Case(LikeTimm, "head.fc", 72, {}),
    "torchvision": Case(LikeTorchvision, "classifier.2", 20, IMAGES),
    "transformers": Case(LikeTransformers, "classifier.1", 8, {"mean": 0.5, "std": 0.5}),
    "attention": Case(Attention, "heads.0", 16, {"mean": 0.5, "std": 0.5}),
    "rows": Case(rows, "3", 16, {}),
    "linear": Case(lambda: nn.Linear(10, CLASSES), "", 10, {}),
}
