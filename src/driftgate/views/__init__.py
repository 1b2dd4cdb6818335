"""Views: a second look at a batch, for methods that compare the two; drawn for each sample apart.

A method is given its views, it does not make them: ``driftgate.create(..., views=...)`` takes ``images``, ``rows``,
``none``, or a function of one's own; without, the model's inputs decide.
"""

from driftgate.views.choice import KINDS, OwnViews, View, Views, ViewsChoice, choose_views
from driftgate.views.images import Augmentation, ImageViews, StrongAugmentation
from driftgate.views.rows import RowView, RowViews

__all__ = [
    "KINDS",
    "Augmentation",
    "ImageViews",
    "OwnViews",
    "RowView",
    "RowViews",
    "StrongAugmentation",
    "View",
    "Views",
    "ViewsChoice",
    "choose_views",
]
