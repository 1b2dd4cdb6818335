"""A data set whose classes stand in an order of the user's, and parts of domains."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from driftgate.lab.data.datasets import DataSet, open_dataset
from driftgate.lab.data.domains import Domain
from driftgate.lab.data.loading import Transform
from driftgate.types import DriftgateError


class PartOfDomain(Domain):
    """Some samples of a domain, perhaps with other class indices."""

    def __init__(self, domain: Domain, places: Tensor, classes: Tensor) -> None:
        self.domain, self.name, self.places, self.classes = domain, domain.name, places, classes

    def describe(self, index: int) -> str:
        return self.domain.describe(int(self.places[index]))

    def load(self, index: int, transform: Transform) -> Tensor:
        return self.domain.load(int(self.places[index]), transform)


def few_per_class(domain: Domain, count: int | None) -> Domain:
    """The domain, or the first ``count`` images of each of its classes, for a quick training."""
    if count is None:
        return domain
    classes = domain.classes
    places = torch.cat([(classes == label).nonzero().flatten()[:count] for label in torch.unique(classes)])
    places = places.sort().values
    return PartOfDomain(domain, places, classes[places])


class NamedClasses(DataSet):
    """A data set with ``first`` as its first classes; the others follow in their own order."""

    def __init__(self, data: DataSet, first: Sequence[str]) -> None:
        missing = [name for name in first if name not in data.class_names]
        twice = [name for name in first if list(first).count(name) > 1]
        if missing or twice:
            what = f"{missing[0]!r} is none of them" if missing else f"{twice[0]!r} is there twice"
            raise DriftgateError(
                f"Expected each class once out of {', '.join(data.class_names)} but {what}; mend the names of classes."
            )
        self.data, self.name, self.domains = data, data.name, data.domains
        self.expected_domains, self.expected_classes, self.aliases = data.expected_domains, None, data.aliases
        self.class_names = (*first, *(name for name in data.class_names if name not in first))
        self.splits = data.splits
        self._index = torch.tensor([self.class_names.index(name) for name in data.class_names])

    def domain(self, name: str, *, seed: int = 0) -> Domain:
        domain = self.data.domain(name, seed=seed)
        return PartOfDomain(domain, torch.arange(len(domain)), self._index[domain.classes])

    def origin(self, name: str) -> str:
        return self.data.origin(name)

    def where_to_put(self, name: str) -> str:
        return self.data.where_to_put(name)


@lru_cache(maxsize=8)
def open_cached(name: str, root: str | None, classes: tuple[str, ...] = ()) -> DataSet:
    """A data set, opened once a process: a worker does many runs on the same one. ``classes`` stand first in it."""
    return NamedClasses(open_cached(name, root), classes) if classes else open_dataset(name, root)
