"""The network that is adapted: backbone, bottleneck, classifier, and how to feed it."""

from driftgate.models.backbones import BACKBONES, UNTRAINED, Backbone, build_backbone
from driftgate.models.import_checkpoint import import_checkpoint
from driftgate.models.source_model import ModelOutput, ModelSpec, SourceModel
from driftgate.models.statistics import SourceStatistics

__all__ = [
    "BACKBONES",
    "UNTRAINED",
    "Backbone",
    "ModelOutput",
    "ModelSpec",
    "SourceModel",
    "SourceStatistics",
    "build_backbone",
    "import_checkpoint",
]
