"""The contract every method keeps, and the registry that finds methods by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn

from driftgate.models.normalization import preserved_buffers
from driftgate.models.source_model import SourceModel
from driftgate.rng import seeded
from driftgate.types import DriftgateError, Prediction
from driftgate.views import Views, ViewsChoice, choose_views


class MethodSettings(BaseModel):
    """Settings of a method; unknown ones are refused, and nothing changes them after creation."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    seed: int = Field(default=0, ge=0, lt=2**63)


class Method(ABC):
    """A classifier that may learn from the stream it predicts.

    A subclass fills in ``_predict`` and, if it learns, ``_step`` and the state it carries. The public ``predict`` and
    ``step`` check the batch first, so that a bad one changes nothing.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    summary: ClassVar[str] = ""
    source_free: ClassVar[bool] = True
    universal: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, model: SourceModel, settings: MethodSettings) -> None:
        _check_needs(type(self), model)
        self.model = model
        self.settings = settings
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
        self.model.eval()  # the caller may have switched it
        with torch.inference_mode(False):
            return self._predict_only(_plain(inputs))

    def step(self, batch: Any, *, on_prediction: Callable[[Prediction], None] | None = None) -> Prediction:
        """Predict the batch, then learn from it; labels in it are not looked at.

        ``on_prediction`` is called with the prediction as soon as it stands: before the learning where the method says
        so with ``_tell``, else after it. Whoever waits for the answer need not wait for the learning.
        """
        inputs = self.model.prepare(batch)
        self.model.eval()
        random_state = self.generator.get_state()
        self._on_prediction = on_prediction
        # Learning needs gradients, also where the caller has switched them off around the whole service.
        with torch.inference_mode(False), torch.enable_grad(), preserved_buffers(self.model, on_error_only=True):
            try:
                prediction = self._step(_plain(inputs))
            except BaseException:
                self.generator.set_state(random_state)
                self._on_prediction = None
                raise
        self.steps += 1
        self._tell(prediction)
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

    def _predict_only(self, images: Tensor) -> Prediction:
        """The prediction with nothing left behind."""
        with torch.no_grad(), preserved_buffers(self.model):
            return self._predict(images)

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """Put back everything afterwards; for a method that answers only once it has learned (OWTTT, AdaContrast)."""
        from driftgate.methods.persistence import method_tensors, restore_method

        before = {name: tensor.clone() for name, tensor in method_tensors(self).items()}
        try:
            yield
        finally:
            restore_method(self, before)

    def save(self, path: str | Path) -> None:
        """Write the method whole to ``path`` (safetensors); ``driftgate.load`` gives it back."""
        from driftgate.methods.persistence import save_method

        save_method(self, path)

    @property
    def num_bytes(self) -> int:
        """Bytes of knowledge carried across batches, beyond the network itself (optimiser state not counted)."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.memory_tensors().values())

    def memory_tensors(self) -> dict[str, Tensor]:
        """What the method remembers of past batches: mixtures, queues, teachers, thresholds."""
        return {}

    def load_memory_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Put back what ``memory_tensors`` gave."""

    def modules(self) -> dict[str, nn.Module]:
        """Networks of the method's own, beside the model; saved with it."""
        return {}

    def optimizer(self) -> torch.optim.Optimizer | None:
        """The optimiser whose state is saved, if there is one."""
        return None


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


M = TypeVar("M", bound=type[Method])

_REGISTRY: dict[str, type[Method]] = {}


def register(method: M) -> M:
    """Class decorator: make a method known by its ``name``."""
    _REGISTRY[method.name] = method
    return method


def available() -> dict[str, type[Method]]:
    """All methods by name."""
    return dict(sorted(_REGISTRY.items()))


def get_method(name: str) -> type[Method]:
    """The class of the method of that name."""
    if name not in _REGISTRY:
        raise DriftgateError(f"Expected a method out of {', '.join(available())} but got {name!r}.")
    return _REGISTRY[name]


def create(
    name: str, model: SourceModel, *, preset: str | None = None, views: ViewsChoice = None, **settings: Any
) -> Method:
    """A method by name around ``model``, which it adapts in place; settings as keywords, a preset underneath them.

    ``views`` is how the method gets a second look at a batch, if it needs one: see ``driftgate.views``. None takes
    what fits the model's inputs.
    """
    if not isinstance(model, SourceModel):
        raise DriftgateError(
            f"Expected a wrapped network but got {type(model).__name__}; pass driftgate.wrap(network, class_names=...)."
        )
    method = get_method(name)(model, resolve_settings(name, preset, settings))
    method.views = choose_views(views, model.spec)
    return method


def resolve_settings(name: str, preset: str | None, settings: dict[str, Any]) -> MethodSettings:
    """The settings of a method: its defaults, then the preset's, then those given."""
    method = get_method(name)
    if preset is not None and preset not in method.presets:
        known = ", ".join(method.presets) or "none"
        raise DriftgateError(f"Expected a preset of {name!r} out of {known} but got {preset!r}.")
    chosen = {**(method.presets[preset] if preset else {}), **settings}
    try:
        return method.Settings(**chosen)
    except ValidationError as error:
        raise DriftgateError(f"Settings of {name!r}: {describe(error, method.Settings)}") from error


def describe(error: ValidationError, settings: type[BaseModel]) -> str:
    """One line for a person out of pydantic's report."""
    parts = []
    for item in error.errors():
        field = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            parts.append(f"no setting {field!r}, expected one of {', '.join(settings.model_fields)}")
        else:
            parts.append(f"{field}: {item['msg']}, got {item['input']!r}")
    return "; ".join(parts) + "."
