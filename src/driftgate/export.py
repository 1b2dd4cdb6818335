"""A method that has stopped, as one network: pictures in; label, probabilities and novelty out. For use elsewhere.

``Frozen`` holds the adapted network and what makes an answer of its outputs, all as they stand. It answers each sample
by itself, so it normalises by the running statistics, which followed the stream, and takes neither the batch into the
mixture nor its scores into the gate. Where that is not what ``predict`` does, ``approximation`` says so, and a sample
of the stream tells how often both agree.
"""

from __future__ import annotations

import json
import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from driftgate.extras import require
from driftgate.files import write_atomically
from driftgate.memory.frozen import FrozenMixture
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.novelty.scores import MixtureView, Score, ScoreInputs, entropy
from driftgate.rng import seeded
from driftgate.types import UNKNOWN, DriftgateError, Prediction

Format = Literal["onnx", "torchscript", "torch"]
SUFFIXES: dict[str, str] = {"onnx": ".onnx", "torchscript": ".pt", "torch": ".pt2"}
OUTPUTS = ("label", "probabilities", "novelty")
INFO = "driftgate.json"
"""Name of the metadata inside the files of torch; those of ONNX have a property for each entry."""

BY_RUNNING = (
    "normalised by the running statistics, which followed the stream, where the method normalises by each batch"
)


BEFORE_UPDATE = "without the step that the method takes on a batch before it answers"
BEFORE_BATCH = "by memory and gate as they stand, where the method takes the batch into both before it answers"


class Judgement(NamedTuple):
    """Probabilities (N, C) and novelty (N,), each sample by itself."""

    probabilities: Tensor
    novelty: Tensor


class EntropyJudge(nn.Module):
    """Softmax and its normalised entropy: what source-only and most of the methods answer."""

    def forward(self, features: Tensor, logits: Tensor) -> Judgement:
        return Judgement(logits.softmax(dim=1), entropy(logits.double().log_softmax(dim=1)))


class MixtureJudge(nn.Module):
    """Softmax, and a novelty score of the mixture as it stands, which may have a say in the answer, its ``opinion``."""

    weights: Tensor

    def __init__(
        self, reducer: nn.Linear, mixture: FrozenMixture, weights: Tensor, score: Score, opinion: nn.Module | None
    ) -> None:
        super().__init__()
        self.reducer, self.mixture, self.score, self.opinion = reducer, mixture, score, opinion
        self.register_buffer("weights", weights.clone())

    def forward(self, features: Tensor, logits: Tensor) -> Judgement:
        reduced = self.reducer(features)
        logits = logits if self.opinion is None else self.opinion(logits, reduced)
        view = MixtureView(reduced, self.mixture(reduced), self.mixture.means, self.weights)
        inputs = ScoreInputs(features, logits, view)
        return Judgement(logits.softmax(dim=1), self.score(inputs))


class PrototypeJudge(nn.Module):
    """Softmax of the cosines with C prototypes (C, D); new is what is far from all of them."""

    prototypes: Tensor

    def __init__(self, prototypes: Tensor, temperature: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.register_buffer("prototypes", F.normalize(prototypes, dim=1))

    def forward(self, features: Tensor, logits: Tensor) -> Judgement:
        cosines = F.normalize(features, dim=1) @ self.prototypes.T
        return Judgement((cosines / self.temperature).softmax(dim=1), (1.0 - cosines.amax(dim=1)).double())


class Frozen(nn.Module):
    """Prepared inputs (N, ...) -> label (N,) int64, probabilities (N, C) float32 and novelty (N,) float64.

    Args:
        model: the adapted network.
        judge: makes probabilities and novelty of its features and logits.
        threshold: above it a sample is unknown; None where the method takes it from each batch.
        inclusive: whether a sample at the threshold is still known.
        approximation: what differs from ``predict``; empty if nothing does.
    """

    def __init__(
        self,
        model: SourceModel,
        judge: nn.Module,
        threshold: float | None,
        *,
        inclusive: bool = True,
        approximation: str = "",
    ) -> None:
        super().__init__()
        self.model, self.judge = model, judge
        self.threshold, self.inclusive, self.approximation = threshold, inclusive, approximation

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output: ModelOutput = self.model(images)
        probabilities, novelty = self.judge(*output)
        limit = math.inf if self.threshold is None else self.threshold
        known = novelty <= limit if self.inclusive else novelty < limit
        return torch.where(known, probabilities.argmax(dim=1), UNKNOWN), probabilities, novelty


@dataclass(frozen=True)
class ExportReport:
    """What was written, and how far it can be trusted.

    Attributes:
        path, format: of the file.
        approximation: what differs from ``predict``; empty if nothing does.
        samples: that were compared; 0 without a sample of the stream.
        agreement: share of them to which the file and ``predict`` give the same label; NaN without.
        difference: largest difference of a probability; NaN without.
    """

    path: Path
    format: Format
    approximation: str
    samples: int = 0
    agreement: float = math.nan
    difference: float = math.nan


def export(
    frozen: Frozen,
    path: str | Path,
    to: Format,
    info: dict[str, Any],
    *,
    sample: Tensor | None = None,
    expected: Prediction | None = None,
) -> ExportReport:
    """Write ``frozen`` with ``info``, and run the file on the prepared ``sample``, to which ``predict`` said
    ``expected``."""
    if to not in get_args(Format):
        raise DriftgateError(
            f"Expected a format out of {', '.join(get_args(Format))} but got {to!r}; name one of them."
        )
    if frozen.threshold is None:
        if expected is None:
            raise DriftgateError(
                "Expected a sample of the stream: this method takes its threshold from each batch, and the exported "
                "network needs one; pass sample=."
            )
        frozen.threshold = expected.thresholds.prediction
        frozen.approximation = "; ".join(filter(None, [frozen.approximation, "with the threshold of one batch"]))
    spec = frozen.model.spec
    metadata = {
        **info,
        "class_names": list(spec.class_names),
        "unknown": UNKNOWN,
        "input": spec.model_dump(mode="json", include={"input_size", "channels"}) | {"range": [0.0, 1.0]},
        "threshold": frozen.threshold if math.isfinite(frozen.threshold) else None,
        "approximation": frozen.approximation,
    }
    with _stopped(frozen):
        WRITERS[to](frozen, torch.rand(2, *spec.shape, generator=seeded(0)), Path(path), metadata)
    if sample is None or expected is None:
        return ExportReport(Path(path), to, frozen.approximation)
    labels, probabilities, _ = run_exported(path, to, sample)
    agreement = float((labels == expected.labels.cpu()).double().mean())
    difference = float((probabilities - expected.scores.detach().cpu()).abs().max())
    return ExportReport(Path(path), to, frozen.approximation, len(sample), agreement, difference)


def run_exported(path: str | Path, to: Format, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a file answers to prepared images: label, probabilities, novelty."""
    images = images.detach().cpu().contiguous()
    if to == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        label, probabilities, novelty = session.run(None, {"images": images.numpy()})
        return torch.from_numpy(label), torch.from_numpy(probabilities), torch.from_numpy(novelty)
    network: Any = torch.export.load(path).module() if to == "torch" else _load_script(path)
    with torch.no_grad():
        answer: tuple[Tensor, Tensor, Tensor] = network(images)
    return answer


def _write_onnx(frozen: Frozen, example: Tensor, path: Path, metadata: dict[str, Any]) -> None:
    require("export", "Export to ONNX")
    import onnx

    with _quiet():
        program = torch.onnx.export(
            frozen,
            (example,),
            input_names=["images"],
            output_names=list(OUTPUTS),
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    for name, value in metadata.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = name, value if isinstance(value, str) else json.dumps(value)
    onnx.checker.check_model(model)
    write_atomically(path, lambda temporary: onnx.save(model, temporary))


def _load_script(path: str | Path) -> Any:
    return torch.jit.load(path)  # type: ignore[no-untyped-call]


def _write_torchscript(frozen: Frozen, example: Tensor, path: Path, metadata: dict[str, Any]) -> None:
    with _quiet():
        traced = torch.jit.trace(frozen, (example,), check_trace=False)  # type: ignore[no-untyped-call]
    extra = {INFO: json.dumps(metadata)}
    write_atomically(path, lambda temporary: traced.save(temporary, _extra_files=extra))


def _write_torch(frozen: Frozen, example: Tensor, path: Path, metadata: dict[str, Any]) -> None:
    with _quiet():
        program = torch.export.export(frozen, (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    extra = {INFO: json.dumps(metadata)}
    write_atomically(path, lambda temporary: torch.export.save(program, temporary, extra_files=extra))


WRITERS: dict[str, Callable[[Frozen, Tensor, Path, dict[str, Any]], None]] = {
    "onnx": _write_onnx,
    "torchscript": _write_torchscript,
    "torch": _write_torch,
}


@contextmanager
def _stopped(frozen: Frozen) -> Iterator[None]:
    """In eval mode, on the CPU and without gradients; then back to where it was, for the method goes on."""
    device = frozen.model.mean.device
    learning = [parameter for parameter in frozen.parameters() if parameter.requires_grad]
    frozen.eval().cpu()
    pieces, frozen.model.piece_size = frozen.model.piece_size, None
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        with torch.no_grad():
            yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
        frozen.model.piece_size = pieces
        frozen.to(device)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters tell on every occasion: deprecations of their own, and what they would optimise."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
