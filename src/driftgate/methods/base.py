"""The contract every method keeps."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from typing_extensions import Self

from driftgate.checkpoint import write_checkpoint
from driftgate.export import EntropyJudge, ExportReport, Format, Frozen, export
from driftgate.methods.look import Look
from driftgate.models.arithmetic import Precision, check_precision
from driftgate.models.normalization import preserved_buffers
from driftgate.models.source_model import SourceModel
from driftgate.rng import seeded
from driftgate.state import State, bytes_of, check_finite
from driftgate.types import UNLABELED, DriftgateError, Prediction
from driftgate.views import Views, choose_views

KNOWN: dict[str, type[Method]] = {}
"""All methods whose classes were made, by name; ``driftgate.methods.registry`` finds those that were not."""


def add_method(method: type[Method]) -> None:
    """Make a class known by its ``name``; refuse one that is taken, unless the same class is made anew.

    The same is one of the same name in the same file, whatever its module is called: that of a script has two names,
    and the cell of a notebook is run again.
    """
    known = KNOWN.get(method.name)
    if known is not None and _birthplace(known) != _birthplace(method):
        raise DriftgateError(
            f"Expected a name of its own for {method.__module__}.{method.__qualname__} but {method.name!r} is "
            f"{known.__module__}.{known.__qualname__}; take another name."
        )
    KNOWN[method.name] = method


def _birthplace(method: type[Method]) -> tuple[str, str]:
    file = getattr(sys.modules.get(method.__module__), "__file__", None)
    return method.__module__ if file is None else str(Path(file).resolve()), method.__qualname__


class MethodSettings(BaseModel):
    """Settings of a method; unknown ones are refused, and nothing changes them after creation.

    Attributes:
        seed: decides all that the method draws at random.
        precision: what the network computes in; float16 on CUDA only. Memory and head stay in float32 and float64.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    seed: int = Field(default=0, ge=0, lt=2**63)
    precision: Precision = "float32"


KIND = "method"
"""Of the files that ``Method.save`` writes."""


class Method(State, ABC):
    """A classifier that may learn from the stream it predicts: a module of the model and all that is remembered.

    A subclass fills in ``_predict`` and, if it learns, ``_step``; whatever survives a batch is a ``State``, a network
    or a buffer of its own, and moves and is saved with it. The public ``predict`` and ``step`` check the batch first,
    so that a bad one changes nothing. Called, it predicts.

    Threads may share a method: whoever comes while another is at it waits.
    """

    name: ClassVar[str] = ""
    look: ClassVar[Look] = Look()
    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    summary: ClassVar[str] = ""
    source_free: ClassVar[bool] = True
    universal: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        settings: type[MethodSettings] | None = None,
        look: Look | None = None,
        **more: Any,
    ) -> None:
        """``class Mine(Method, name="mine", settings=MySettings)`` makes a method known by its name.

        A class without a name is a base of others. ``look`` is how it appears in tables and charts.
        """
        super().__init_subclass__(**more)
        cls.Settings = settings or cls.Settings
        cls.look = look or Look()
        if name is not None:
            cls.name = name
            add_method(cls)

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        super().__init__()
        _check_needs(type(self), model)
        model.set_precision(settings.precision)
        model.piece_size = None
        self.model = model
        self.settings = settings
        self.lock = threading.RLock()
        self.steps = 0
        self.generator = seeded(settings.seed)
        self.views: Views = choose_views(None, model.spec)
        self._on_prediction: Callable[[Prediction], None] | None = None
        self.model.eval()

    def network(self) -> nn.Module:
        """The adapted network itself, as it came: the very object that was wrapped, for use without driftgate."""
        return self.model.unwrapped()

    def predict(self, batch: Any) -> Prediction:
        """What ``step`` would answer now; changes nothing: no weight, no statistic, no random state.

        ``batch`` is anything ``driftgate.models.input`` understands: tensors, arrays, pictures, a loader's batch.
        """
        inputs = self.model.prepare(batch)
        with self.lock, torch.inference_mode(False):
            self.model.eval()  # the caller may have switched it
            return self._predict_only(_plain(inputs))

    def step(
        self, batch: Any, *, on_prediction: Callable[[Prediction], None] | None = None, learn: bool = True
    ) -> Prediction:
        """Predict the batch, then learn from it; labels in it are not looked at.

        ``on_prediction`` is called with the prediction as soon as it stands: before the learning where the method says
        so with ``_tell``, else after it. Whoever waits for the answer need not wait for the learning. Without ``learn``
        no weight changes, only what the method gets for the price of the prediction: see ``_watch``.
        """
        inputs = self.model.prepare(batch)
        with self.lock:
            prediction = self._guarded_step(inputs, on_prediction, self._step if self._teaches(learn) else self._watch)
            self._tell(prediction)
        return prediction

    def _teaches(self, learn: bool) -> bool:
        """Whether the next batch is learned from, where the caller lets it; the host knows before the batch is seen."""
        return learn

    def _guarded_step(
        self,
        inputs: Tensor,
        on_prediction: Callable[[Prediction], None] | None,
        act: Callable[[Tensor], Prediction],
    ) -> Prediction:
        """One step; where it fails, statistics and random state are those before it."""
        self.model.eval()
        random_state = self.generator.get_state()
        self._on_prediction = on_prediction
        # Learning needs gradients, also where the caller has switched them off around the whole service.
        with torch.inference_mode(False), torch.enable_grad(), preserved_buffers(self.model, on_error_only=True):
            try:
                prediction = act(_plain(inputs))
            except BaseException:
                self.generator.set_state(random_state)
                self._on_prediction = None
                raise
        self.steps += 1
        return prediction

    def _tell(self, prediction: Prediction) -> None:
        """Hand out the prediction of the step under way, once; what comes after it only learns."""
        tell, self._on_prediction = self._on_prediction, None
        if tell is not None:
            tell(prediction)

    @abstractmethod
    def _predict(self, images: Tensor) -> Prediction:
        """The prediction; runs without gradients and with all buffers of the model put back afterwards."""

    def _step(self, images: Tensor) -> Prediction:
        """Predict and learn; a method that only predicts leaves it as it is."""
        return self._predict_only(images)

    def _watch(self, images: Tensor) -> Prediction:
        """A step without learning: no weight changes. A method whose memory can follow for free lets it."""
        return taught_nothing(self._predict_only(images))

    def _predict_only(self, images: Tensor) -> Prediction:
        """The prediction with nothing left behind."""
        with torch.no_grad(), preserved_buffers(self.model):
            return self._predict(images)

    def forward(self, batch: Any) -> Prediction:
        """``method(batch)`` is ``method.predict(batch)``."""
        return self.predict(batch)

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """Put back everything afterwards; for a method that answers only once it has learned (OWTTT, AdaContrast)."""
        before = {name: tensor.clone() for name, tensor in self.state_dict().items()}
        try:
            yield
        finally:
            super().load_state_dict(before)

    def save(self, path: str | Path) -> None:
        """Write the method whole to ``path`` (safetensors); ``driftgate.load`` gives it back."""
        write_checkpoint(path, KIND, self.state_dict(), method_info(self))

    def export(self, path: str | Path, to: Format = "onnx", *, sample: Any = None) -> ExportReport:
        """Write the network, its memory and its gate as they stand, for use without driftgate; see driftgate.export.

        ``sample`` is a batch of the stream: the report tells how often the file and ``predict`` agree on it.
        """
        inputs = None if sample is None else self.model.prepare(sample)
        expected = None if sample is None else self.predict(sample)
        info = {"method": self.name, "steps": self.steps}
        return export(self.frozen(), path, to, info, sample=inputs, expected=expected)

    def frozen(self) -> Frozen:
        """The answer as a function of one sample, the state as it stands; what ``export`` writes."""
        threshold = getattr(self.settings, "threshold", None)
        if threshold is None:
            raise DriftgateError(
                f"Expected a method whose answer is a function of one sample but {self.name!r} has none; export "
                "method.network(), the network without its gate."
            )
        return Frozen(self.model, EntropyJudge(), threshold, approximation=self._approximation())

    def _approximation(self) -> str:
        """What ``frozen`` does otherwise than ``predict``; empty if nothing."""
        return ""

    def state_dict(self, *arguments: Any, **options: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Everything that a step may change, by name; between two steps, whatever other threads do."""
        with self.lock:
            tensors: dict[str, Tensor] = super().state_dict(*arguments, **options)
        return tensors

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Put back what ``state_dict`` gave: weights, optimiser, memory, thresholds, random state and step count."""
        for name, tensor in state_dict.items():
            check_finite(name, tensor)
        try:
            with self.lock:
                return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except DriftgateError:
            raise
        except (RuntimeError, KeyError, ValueError) as error:
            reason = " ".join(str(error).split())
            place = f"Expected the weights of {self.model.spec.backbone!r} and the memory of {self.name!r}"
            raise DriftgateError(f"{place}: {reason}") from error

    @property
    def num_bytes(self) -> int:
        """Bytes of knowledge carried across batches: mixtures, queues, teachers, thresholds.

        Neither the network, nor networks of the method's own, nor the optimiser's state are counted.
        """
        parts = sum(part.num_bytes for part in self.children() if isinstance(part, State))
        return parts + bytes_of([*self.buffers(recurse=False), *self._numbers().values()])

    def _numbers(self) -> dict[str, Tensor]:
        """What a subclass remembers in plain numbers, because the host decides by them; saved under these names."""
        return {}

    def _load_numbers(self, numbers: dict[str, Tensor]) -> None:
        """Put back what ``_numbers`` gave."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        beside = {**self._numbers(), "rng": self.generator.get_state(), "steps": torch.tensor(self.steps)}
        destination.update({f"{prefix}{name}": tensor for name, tensor in beside.items()})

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        numbers = {name: state_dict.pop(f"{prefix}{name}") for name in self._numbers()}
        generator, steps = state_dict.pop(f"{prefix}rng"), state_dict.pop(f"{prefix}steps")
        if not int(steps) >= 0:
            raise DriftgateError(
                f"Expected a number of steps of at least 0 but got {int(steps)}; the state is broken, load another."
            )
        super()._load_from_state_dict(state_dict, prefix, *rest)
        self._load_numbers(numbers)
        self.generator.set_state(generator.cpu())
        self.steps = int(steps)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        probe = fn(torch.zeros(()))
        check_precision(self.settings.precision, probe.device)
        if probe.dtype != torch.float32:
            raise DriftgateError(
                f"Expected a device to move {self.name!r} to but got another dtype; weights and memory stay in "
                "float32, precision= says what the network computes in."
            )
        with self.lock:
            return super()._apply(fn, recurse)

    @property
    def device(self) -> torch.device:
        """Where the model is, and with it everything else."""
        return self.model.mean.device

    def __repr__(self) -> str:
        lines = [f"{self.name} on {self.device}, {self.steps} steps, {self.num_bytes} bytes of memory"]
        lines += [f"  {name}: {part!r}" for name, part in self.named_children() if isinstance(part, State)]
        return "\n".join(lines)


def taught_nothing(prediction: Prediction) -> Prediction:
    """The same prediction of samples that nothing was learned from."""
    return replace(prediction, pseudo_labels=torch.full_like(prediction.labels, UNLABELED))


def method_info(method: Method) -> dict[str, Any]:
    """What is needed to build the method again before its state is put back."""
    return {
        "method": method.name,
        "settings": method.settings.model_dump(mode="json"),
        "model": method.model.spec.model_dump(mode="json"),
        "views": method.views.name,
    }


NEEDS = {
    "prototypes": ("prototypes",),
    "feature_moments": ("feature_mean", "feature_covariance"),
}
"""What a method may need of the source, and the names of its tensors among the model's statistics."""


def _check_needs(method: type[Method], model: SourceModel) -> None:
    found = model.statistics.tensors() if model.statistics is not None else {}
    missing = [need for need in sorted(method.needs) if not all(name in found for name in NEEDS[need])]
    if missing:
        raise DriftgateError(
            f"Expected a model with source {' and '.join(missing)}, which {method.name!r} needs, but it has "
            f"{', '.join(found) or 'none'}; train it with `driftgate pretrain`, which stores them, or set "
            "model.statistics."
        )


def _plain(inputs: Tensor) -> Tensor:
    """The same numbers outside of the caller's inference mode."""
    return inputs.clone() if inputs.is_inference() else inputs
