"""Seconds and peak memory of a whole adaptation step, as ratios in one run.

    python benchmarks/step.py                                    # EfficientNet-Lite0 at 112 px, C = 9 and 200
    python benchmarks/step.py --backbone resnet50 --size 224     # the paper's network
    python benchmarks/step.py --classes 200 --steps 15 --only "gmm fast"

Every configuration runs in a process of its own, and they take their steps in turns. `bare` is forward and backward of
both views and nothing else, the limit. `reference` is the method written the obvious way: the network in torch's
default layout, outer products of N x C x R x R numbers, one scipy Gaussian a class. Ratios of time are the median of
the rounds' own ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from functools import partial
from typing import Any

import torch
from gmm_step import PlainReference
from torch import Tensor, nn

from driftgate.lab.bench.step_cost import Builder, Cost, Setting, Stepper, measure, method_stepper
from driftgate.losses import contrastive_loss, kl_loss
from driftgate.models import SourceModel
from driftgate.models.normalization import batch_statistics
from driftgate.rng import seeded
from driftgate.types import UNKNOWN, UNLABELED
from driftgate.views.images import Augmentation

MEBIBYTE = 1024**2
TARGETS = {
    ("gmm fast", "bare"): (1.10, 1.05),
    ("gmm balanced", "gmm fast"): (1.3, 0.65),
    ("gmm low", "gmm fast"): (1.6, 0.4),
    ("gmm fast", "comet-f"): (None, 1.0),
    ("gmm low", "comet-f"): (None, 0.4),
}
"""(configuration, to what) -> what it may cost of it at most: time, peak memory."""


def bare_stepper(model: SourceModel) -> Stepper:
    """Forward and backward of two views and nothing else: the least a method with two views can cost."""

    def step(images: Tensor) -> None:
        with batch_statistics(model, len(images)):
            outputs = [model(images), model(images)]
        torch.autograd.backward(sum(output.logits.sum() + output.features.sum() for output in outputs))
        model.zero_grad(set_to_none=True)

    return step


def time_ratio(cost: Cost, other: Cost) -> float:
    """How many times as long as ``other`` a step takes: the median over the rounds, each with its own ratio.

    A slow spell of the machine hits the steps of one round alike and leaves their ratio as it is.
    """
    return statistics.median(mine / theirs for mine, theirs in zip(cost.seconds, other.seconds, strict=True))


def reference_stepper(model: SourceModel) -> Stepper:
    """Eqs. 1-8 as one would type them in, at the paper's settings."""
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    reducer = nn.Linear(model.spec.feature_dim, 64)
    mixture = PlainReference(model.num_classes)
    optimizer = torch.optim.SGD([*model.parameters(), *reducer.parameters()], lr=1e-3, momentum=0.9, nesterov=True)
    augmentation, generator = Augmentation(flip=True), seeded(0)

    def step(images: Tensor) -> None:
        with batch_statistics(model, len(images)):
            output = model(images)
            reduced = reducer(output.features)
            view = reducer(model(augmentation(images, generator)).features)
        scores = output.logits.detach().softmax(dim=1)
        likelihood = torch.from_numpy(mixture.step(reduced.detach().double().numpy(), scores.double().numpy()))
        posterior = likelihood.softmax(dim=1)
        novelty = -(posterior * posterior.clamp_min(1e-300).log()).sum(dim=1)
        low, high = torch.quantile(novelty, 0.25), torch.quantile(novelty, 0.75)
        labels = torch.where(novelty <= low, likelihood.argmax(dim=1), UNLABELED)
        labels[novelty >= high] = UNKNOWN
        means = torch.from_numpy(mixture.means).float()
        loss = contrastive_loss(torch.cat([reduced, view]), torch.cat([labels, labels]), means, reduction="mean")
        loss = loss + kl_loss(output.logits, labels, form="cross_entropy", reduction="mean")
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def augmentation_stepper(model: SourceModel) -> Stepper:
    """The second view alone: its share of a step."""
    augmentation, generator = Augmentation(flip=model.spec.flip), seeded(0)
    return partial(augmentation, generator=generator)


def configurations() -> dict[str, Builder]:
    def method(name: str, **settings: Any) -> Builder:
        return partial(method_stepper, name=name, settings=settings)

    return {
        "bare": bare_stepper,
        "augmentation": augmentation_stepper,
        "source-only": method("source-only"),
        "gmm fast": method("gmm", memory="fast"),
        "gmm balanced": method("gmm", memory="balanced"),
        "gmm low": method("gmm", memory="low"),
        "gmm head only": method("gmm", adapt_layers="head"),
        "comet-f": method("comet-f"),
        "adacontrast": method("adacontrast"),
        "reference": reference_stepper,
    }


def table(costs: list[Cost]) -> str:
    """A row a configuration: seconds and peak memory, and both as ratios to the first, the bare passes."""
    bare = costs[0]
    lines = [
        "| | seconds | to bare | peak MiB above the model | to bare |",
        "|---|---|---|---|---|",
    ]
    for cost in costs:
        lines.append(
            f"| {cost.label} | {cost.median_seconds:.3f} | {time_ratio(cost, bare):.2f} | "
            f"{cost.peak_bytes / MEBIBYTE:,.0f} | {cost.peak_bytes / bare.peak_bytes:.2f} |"
        )
    return "\n".join(lines)


def verdicts(costs: list[Cost]) -> list[str]:
    """Each target, what was measured, and whether it is met."""
    by_label = {cost.label: cost for cost in costs}
    lines = []
    for (label, other), limits in TARGETS.items():
        if label not in by_label or other not in by_label:
            continue
        one, two = by_label[label], by_label[other]
        ratios = (time_ratio(one, two), one.peak_bytes / two.peak_bytes)
        for what, ratio, limit in zip(("time", "peak memory"), ratios, limits, strict=True):
            if limit is not None:
                met = "met" if ratio <= limit else "MISSED"
                lines.append(f"{label} to {other}, {what}: {ratio:.2f} (at most {limit:.2f}: {met})")
    return lines


def tell(label: str, turn: int, turns: int) -> None:
    """A large network takes minutes a round."""
    print(f"\r\033[Kround {turn} of {turns}: {label}", end="", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--size", type=int, default=112, help="height and width of the images")
    parser.add_argument("--classes", default="9,200")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them that do not count")
    parser.add_argument("--only", help="configurations beside bare, with commas between; all if not given")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chosen = configurations()
    if arguments.only:
        wanted = {"bare", *arguments.only.split(",")}  # the ratios are to bare
        if unknown := wanted - set(chosen):
            parser.error(f"expected configurations out of {', '.join(chosen)} but got {', '.join(sorted(unknown))}")
        chosen = {label: build for label, build in chosen.items() if label in wanted}
    for classes in (int(part) for part in arguments.classes.split(",")):
        setting = Setting(arguments.backbone, classes, (arguments.size, arguments.size), arguments.batch_size)
        costs = measure(chosen, setting, steps=arguments.steps, warmup=arguments.warmup, on_step=tell)
        if arguments.json:
            rows = [{"label": c.label, "seconds": c.seconds, "peak_bytes": c.peak_bytes} for c in costs]
            print(json.dumps({"backbone": arguments.backbone, "classes": classes, "costs": rows}))
            continue
        print(f"\n{arguments.backbone}, {arguments.size} px, C = {classes}, N = {arguments.batch_size}\n")
        print(table(costs))
        print("\n" + "\n".join(verdicts(costs)))


if __name__ == "__main__":
    main()
