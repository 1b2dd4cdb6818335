"""Views: a second look at a batch, for methods that compare the two; drawn for each sample apart."""

from driftgate.views.images import Augmentation, StrongAugmentation

__all__ = ["Augmentation", "StrongAugmentation"]
