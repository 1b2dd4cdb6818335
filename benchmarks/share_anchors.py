"""Can the share of unknown samples be read off an unlabelled stream? What the source model says of streams with and
without them.

    python benchmarks/share_anchors.py                                            # digits, all shifts
    python benchmarks/share_anchors.py --model art.safetensors --data pacs --root DIR --source art_painting --shift PDA

An anchor is worth something if it tells a stream without unknown samples from one with many. Each column is one: the
mean entropy of the prediction; how often two views, and classifier and mixture, agree; the mean entropy of pictures
that are nobody's class, made of the stream's own (two mixed, two halves joined, four parts shuffled). ``b`` is by the
batch's statistics, ``s`` by the source's. The last column is the share of equal answers by both.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from driftgate.lab.bench.sweep import single_thread
from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.serve_demo import BATCH_SIZE, train_source
from driftgate.memory import StreamingGMM
from driftgate.models import SourceModel
from driftgate.models.normalization import batch_statistics, preserved_buffers
from driftgate.novelty.scores import entropy
from driftgate.rng import DrawFrom, seeded
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import UNKNOWN
from driftgate.views.images import Augmentation

HEADS = ("entropy", "views agree", "mixture agrees", "mixed", "joined", "shuffled")


def shuffled_quarters(images: Tensor, generator: torch.Generator) -> Tensor:
    """(N, 3, H, W) -> the same with the four quarters of every picture in another order."""
    rows, columns = images.shape[2] // 2, images.shape[3] // 2
    quarters = [images[:, :, r : r + rows, c : c + columns] for r in (0, rows) for c in (0, columns)]
    stacked = torch.stack(quarters, dim=1)
    order = torch.stack([torch.randperm(4, generator=generator) for _ in images])
    mixed = stacked[torch.arange(len(images))[:, None], order]
    top, bottom = (torch.cat([mixed[:, place], mixed[:, place + 1]], dim=3) for place in (0, 2))
    return torch.cat([top, bottom], dim=2)


def nobody(images: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Pictures of no class, in the style of the batch."""
    other = images[torch.randperm(len(images), generator=generator)]
    half = images.shape[3] // 2
    return {
        "mixed": (images + other) / 2,
        "joined": torch.cat([images[..., :half], other[..., half:]], dim=3),
        "shuffled": shuffled_quarters(images, generator),
    }


def anchors(model: SourceModel, batches: Iterator[Tensor], *, by_batch: bool) -> tuple[dict[str, float], Tensor]:
    """The mean of every anchor over the stream, and the predicted classes."""
    generator, view = seeded(0), Augmentation(flip=model.spec.flip)
    size = model.spec.feature_dim
    with DrawFrom(generator):
        reducer = nn.Linear(size, min(64, size))
    mixture = StreamingGMM(model.num_classes, reducer.out_features, shrinkage=300.0)
    sums, classes = dict.fromkeys(HEADS, 0.0), []

    def logits_and_features(images: Tensor) -> tuple[Tensor, Tensor]:
        with preserved_buffers(model), batch_statistics(model, len(images), enabled=by_batch):
            output = model(images)
        return output.logits, output.features

    for images in batches:
        logits, features = logits_and_features(images)
        reduced = reducer(features)
        mixture.update(reduced, logits.softmax(dim=1))
        found = logits.argmax(dim=1)
        sums["entropy"] += float(entropy(logits.double().log_softmax(dim=1)).sum())
        sums["views agree"] += int((logits_and_features(view(images, generator))[0].argmax(dim=1) == found).sum())
        sums["mixture agrees"] += int(
            (mixture.evaluate(reduced, prior=1.0).log_likelihood.argmax(dim=1) == found).sum()
        )
        for name, made in nobody(images, generator).items():
            sums[name] += float(entropy(logits_and_features(made)[0].double().log_softmax(dim=1)).sum())
        classes.append(found)
    predicted = torch.cat(classes)
    return {name: total / len(predicted) for name, total in sums.items()}, predicted


def row(name: str, model: SourceModel, stream: DomainStream, limit: int) -> str:
    batches = [(batch.images, batch.labels) for batch, _ in zip(stream.batches(), range(limit), strict=False)]
    truth = torch.cat([labels for _, labels in batches])
    cells, answers = [f"{float((truth == UNKNOWN).double().mean()):.2f}"], []
    for by_batch in (True, False):
        values, predicted = anchors(model, iter([images for images, _ in batches]), by_batch=by_batch)
        cells += [f"{values[head]:.2f}" for head in HEADS]
        answers.append(predicted)
    cells.append(f"{float((answers[0] == answers[1]).double().mean()):.2f}")
    return f"| {name} | {' | '.join(cells)} |"


def stream_of(
    data: str, root: str | None, targets: list[str], split: ClassSplit, model: SourceModel, seed: int
) -> DomainStream:
    opened = open_dataset(data, root)
    domains = [opened.domain(name, seed=seed) for name in targets]
    return DomainStream(domains, split, input_size=model.spec.image_size, batch_size=BATCH_SIZE, seed=seed)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--model")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--root")
    parser.add_argument("--source", default="rendered")
    parser.add_argument("--shift", default="PDA,ODA,OPDA")
    chosen = parser.parse_args()
    heads = [f"{head} ({side})" for side in "bs" for head in HEADS]
    print(f"| stream | unknown | {' | '.join(heads)} | b = s |\n{'|---' * (len(heads) + 3)}|")
    data = open_dataset(chosen.data, chosen.root)
    with single_thread():
        for shift in chosen.shift.split(","):
            split = data.split(Shift(shift))
            for seed in map(int, chosen.seeds.split(",")):
                with torch.enable_grad():
                    model = SourceModel.load(chosen.model) if chosen.model else train_source(split, seed)
                stream = stream_of(chosen.data, chosen.root, list(data.targets(chosen.source)), split, model, seed)
                print(row(f"{chosen.source} {shift} {seed}", model, stream, chosen.batches), flush=True)


if __name__ == "__main__":
    main()
