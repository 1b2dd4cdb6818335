"""The network that is adapted: backbone, bottleneck, classifier, and how to feed it."""

from driftgate.models.source_model import ModelOutput, ModelSpec, SourceModel

__all__ = ["ModelOutput", "ModelSpec", "SourceModel"]
