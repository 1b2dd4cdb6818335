"""Source training with the recipe SHOT, GLC, COMET and the paper share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from driftgate.models.source_model import SourceModel
from driftgate.rng import seeded


def train_tensors(model: SourceModel, images: Tensor, labels: Tensor, epochs: int, lr: float, batch_size: int = 64, seed: int = 0, backbone_lr_scale: float = 0.1, augment=None) -> None:
    gen = seeded(seed)
    groups = [{"params": list(model.backbone.parameters()), "lr": lr * backbone_lr_scale}, {"params": model.head_parameters(), "lr": lr}]
    opt = torch.optim.SGD(groups, lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-3)
    base = [g["lr"] for g in opt.param_groups]
    model.train()
    n = len(images); steps = epochs * (n // batch_size); t = 0
    for _ in range(epochs):
        order = torch.randperm(n, generator=gen)
        for i in range(n // batch_size):
            idx = order[i * batch_size:(i + 1) * batch_size]
            for g, b in zip(opt.param_groups, base):
                g["lr"] = b * (1 + 10 * t / steps) ** -0.75
            x = images[idx].float() / 255
            if augment: x = augment(x, gen)
            loss = F.cross_entropy(model(x).logits, labels[idx], label_smoothing=0.1)
            opt.zero_grad(); loss.backward(); opt.step(); t += 1
    model.eval()
