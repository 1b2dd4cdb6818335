"""Do statistics between the source's and the batch's suit a network better than either, or do the answers by both of
them, pooled? Nothing learns here.

    python benchmarks/norm_blend.py --model art.safetensors --data pacs --root DIR --source art_painting --shift OPDA

A row for each share of the batch's own statistics in every batch norm layer, 0 the source's, 1 the batch's, then one
for each share of the answers by the batch's in the pool of both (``driftgate.methods.second_opinion``): accuracy of
the known samples where nobody is rejected, the score with the more doubtful half rejected, the score of the best
threshold in hindsight, the area under the ROC curve, mean entropy, and what the predictions tell of the pictures
(entropy of the mean prediction less mean entropy), by which one might choose without labels.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.methods.second_opinion import SecondOpinion
from driftgate.metrics import HScore, OnlineAccuracy, best_threshold, novelty_auroc
from driftgate.models import SourceModel
from driftgate.models.normalization import BatchNorm
from driftgate.models.source_model import ModelOutput
from driftgate.novelty.scores import entropy
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN

HEADS = ("batch's share", "known, none rejected", "half rejected", "best threshold", "AUROC", "entropy", "information")


def normalise(layer: BatchNorm, share: float, values: Tensor) -> Tensor:
    """(N, F, ...) by (1 - share) of the running statistics and ``share`` of the batch's."""
    assert layer.running_mean is not None and layer.running_var is not None
    variance, mean = torch.var_mean(values.float(), [0, *range(2, values.ndim)], correction=0)
    mean, variance = torch.lerp(layer.running_mean, mean, share), torch.lerp(layer.running_var, variance, share)
    return F.batch_norm(values, mean, variance, layer.weight, layer.bias, False, 0.0, layer.eps)


@contextmanager
def blended(model: nn.Module, share: float) -> Iterator[None]:
    """Let every batch norm layer use a blend of both statistics."""
    layers = [layer for layer in model.modules() if isinstance(layer, BatchNorm)]
    for layer in layers:
        layer.forward = partial(normalise, layer, share)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def score(novelty: Tensor, threshold: float, classes: Tensor, targets: Tensor, split: ClassSplit) -> float:
    """What the stream comes to where all above the threshold are rejected."""
    metric = OnlineAccuracy() if split.shift is Shift.PDA else HScore(split.shared_classes)
    metric.update(torch.where(novelty > threshold, UNKNOWN, classes), targets)
    found = metric.compute()
    return float(found["h_score"] if isinstance(found, dict) else found)


def row(share: str, logits: Tensor, targets: Tensor, split: ClassSplit) -> str:
    """What the answers (N, C) at this share come to."""
    logs = logits.double().log_softmax(dim=1)
    doubt, classes, known = entropy(logs), logits.argmax(dim=1), targets != UNKNOWN
    numbers = [
        float((classes == targets)[known].double().mean()),
        score(doubt, float(doubt.median()), classes, targets, split),
        best_threshold(doubt, classes, targets, split.shared_classes)[0],
        novelty_auroc(doubt, targets) if bool((~known).any()) else float("nan"),
    ]
    information = entropy(logs.exp().mean(dim=0, keepdim=True).log())[0] - doubt.mean()
    told = [f"{100 * number:.1f}" for number in numbers] + [f"{float(doubt.mean()):.3f}", f"{float(information):.3f}"]
    return f"| {share} | {' | '.join(told)} |"


@torch.no_grad()
def answers(model: SourceModel, stream: DomainStream, shares: list[float]) -> tuple[dict[float, Tensor], Tensor]:
    """Logits (N, C) at each share, and the targets (N,)."""
    logits: dict[float, list[Tensor]] = {share: [] for share in shares}
    targets = []
    for batch in stream.batches():
        targets.append(batch.labels)
        for share in shares:
            with blended(model, share):
                logits[share].append(model(batch.images).logits.float())
    return {share: torch.cat(parts) for share, parts in logits.items()}, torch.cat(targets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--root")
    parser.add_argument("--source", required=True)
    parser.add_argument("--shift", required=True)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--shares", default="0,0.1,0.2,0.35,0.6,1")
    parser.add_argument("--pool", default="0.25,0.5,0.75", help="shares of the answers by the batch's statistics")
    parser.add_argument("--precision", default="float32")
    asked = parser.parse_args()
    data, model = open_dataset(asked.data, asked.root), SourceModel.load(asked.model)
    model.eval().set_precision(asked.precision)
    split = data.split(Shift(asked.shift))
    domains = [data.domain(name, seed=0) for name in data.targets(data.canonical(asked.source))]
    limit, size = asked.batches * asked.batch_size, model.spec.image_size
    with single_thread():
        stream = DomainStream(domains, split, input_size=size, batch_size=asked.batch_size, seed=0, limit=limit)
        logits, targets = answers(model, stream, [float(share) for share in asked.shares.split(",")])
    print(f"| {' | '.join(HEADS)} |\n{'|---' * len(HEADS)}|")
    for share, found in logits.items():
        print(row(f"{share:g}", found, targets, split))
    if not {0.0, 1.0} <= logits.keys():
        return
    source, batch = (ModelOutput(logits[share], logits[share]) for share in (0.0, 1.0))
    for share in (float(share) for share in asked.pool.split(",")):
        pool = SecondOpinion(model, share, keeps_source=False).pool(source, batch.logits)
        print(row(f"pool, {share:g}", pool.logits, targets, split))


if __name__ == "__main__":
    main()
