"""The network that is adapted, whole or as backbone, bottleneck and classifier, and how to feed it."""

from driftgate.models.backbones import BACKBONES, UNTRAINED, Backbone, build_backbone
from driftgate.models.import_checkpoint import import_checkpoint
from driftgate.models.input import InputSpec, Resize
from driftgate.models.source_model import ModelOutput, SourceModel
from driftgate.models.spec import ModelSpec
from driftgate.models.statistics import SourceStatistics, source_statistics
from driftgate.models.wrap import WrappedModel, wrap

__all__ = [
    "BACKBONES",
    "UNTRAINED",
    "Backbone",
    "InputSpec",
    "ModelOutput",
    "ModelSpec",
    "Resize",
    "SourceModel",
    "SourceStatistics",
    "WrappedModel",
    "build_backbone",
    "import_checkpoint",
    "source_statistics",
    "wrap",
]
