"""What is there: a report on a data set's domains, classes, images, and the splits it would be used with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel

from driftgate.lab.data.datasets import DataSet, FileData, open_dataset
from driftgate.lab.data.domains import Domain, FileDomain
from driftgate.lab.data.loading import BrokenImage, check_header, decode, load_ahead
from driftgate.models.pictures import MAX_PIXELS
from driftgate.shifts import ClassOrder, ClassSplit, Shift
from driftgate.text import few
from driftgate.types import DriftgateError


class DomainReport(BaseModel):
    """One domain: where it was found, how many images, how many of each class, which files cannot be read."""

    name: str
    origin: str
    images: int
    per_class: dict[str, int]
    unreadable: list[str]


class SplitReport(BaseModel):
    """One shift: its split, and how many images each domain would give as the source and as a target."""

    shift: str
    split: str
    order: str
    source_images: dict[str, int]
    target_images: dict[str, int]
    problem: str | None = None


class DataReport(BaseModel):
    """All that ``driftgate data check`` says."""

    name: str
    root: str | None
    classes: list[str]
    expected_classes: int | None
    domains: list[DomainReport]
    splits: list[SplitReport]
    missing: list[str]
    skipped: list[str]
    warnings: list[str]
    verified: bool

    @property
    def ok(self) -> bool:
        """Nothing missing, nothing skipped, nothing unreadable, every split fits."""
        broken = any(domain.unreadable for domain in self.domains)
        return not self.missing and not self.skipped and not broken and not any(split.problem for split in self.splits)

    def to_dict(self) -> dict[str, Any]:
        return {**self.model_dump(mode="json"), "ok": self.ok}

    def lines(self) -> list[str]:
        domains = self.domains
        there = [[one.name, f"{one.images:,}", str(len(one.unreadable)), one.origin] for one in domains]
        classes = [[name, *(f"{one.per_class[name]:,}" for one in domains)] for name in self.classes]
        splits = [
            [split.shift, split.split, f"{name} {split.source_images[name]:,} / {size:,}"]
            for split in self.splits
            for name, size in split.target_images.items()
        ]
        return [
            f"{self.name}{f' in {self.root}' if self.root else ''}: {len(self.classes)} classes",
            *_table([["domain", "images", "unreadable", "where"], *there]),
            *_table([["class", *(one.name for one in domains)], *classes]),
            *_table([["shift", "split", "images as source / as target"], *splits]),
            *([] if self.splits else ["no split built in: give one like --split 10/5/50"]),
            *(f"{split.shift}: {split.problem}" for split in self.splits if split.problem),
            *(f"unreadable: {path}" for one in domains for path in one.unreadable),
            *(f"skipped: {text}" for text in self.skipped),
            *(f"missing: {text}" for text in self.missing),
            *(f"warning: {text}" for text in self.warnings),
        ]


def check_dataset(
    name: str,
    root: Path | str | None = None,
    order: ClassOrder = "shared-first",
    *,
    custom: str | None = None,
    verify: bool = False,
    workers: int = 2,
    progress: Callable[[str, int, int], None] | None = None,
    allow_outside: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> DataReport:
    """Look at a data set and tell what is there; the options are those of ``driftgate data check``.

    ``custom`` is a split like ``10/5/50`` to look at instead of the built-in ones; ``verify`` decodes every file
    instead of looking at its header only; ``progress`` is called with domain, files done and files in all.
    """
    data = open_dataset(name, root, allow_outside=allow_outside, max_pixels=max_pixels)
    domains, absent = _open_domains(data)
    many = len(data.class_names)
    counts = {name: torch.bincount(domain.classes, minlength=many).tolist() for name, domain in domains.items()}
    reports = [
        DomainReport(
            name=domain,
            origin=data.origin(domain),
            images=len(samples),
            per_class=dict(zip(data.class_names, counts[domain], strict=True)),
            unreadable=unreadable_files(samples, verify=verify, workers=workers, progress=progress),
        )
        for domain, samples in domains.items()
    ]
    return DataReport(
        name=name,
        root=str(data.root) if isinstance(data, FileData) else None,
        classes=list(data.class_names),
        expected_classes=data.expected_classes,
        domains=reports,
        splits=_splits(data, counts, order, custom),
        missing=absent + _missing(data, counts),
        skipped=[f"{path} ({why})" for path, why in data.skipped.items()] if isinstance(data, FileData) else [],
        warnings=_warnings(data, domains),
        verified=verify,
    )


def _open_domains(data: DataSet) -> tuple[dict[str, Domain], list[str]]:
    """The domains that can be opened, and why the others cannot."""
    domains, problems = {}, []
    for name in data.domains:
        try:
            domains[name] = data.domain(name)
        except DriftgateError as error:
            problems.append(f"domain {name}: {error}")
    return domains, problems


def unreadable_files(
    domain: Domain,
    *,
    verify: bool = False,
    workers: int = 2,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[str]:
    """Files of a domain that cannot be read: by their headers, or with ``verify`` by decoding all of them."""
    if not isinstance(domain, FileDomain):
        return []

    def problem(index: int) -> str | None:
        path = domain.path(index)
        try:
            decode(path, domain.max_pixels) if verify else check_header(path, domain.max_pixels)
        except BrokenImage as error:
            return f"{error.path} ({error.reason})"
        return None

    found = []
    # Headers are read by the interpreter, where threads only get in each other's way.
    for done, text in enumerate(load_ahead(problem, range(len(domain)), workers=workers if verify else 0), start=1):
        if text is not None:
            found.append(text)
        if progress is not None:
            progress(domain.name, done, len(domain))
    return found


def _splits(data: DataSet, counts: dict[str, list[int]], order: ClassOrder, custom: str | None) -> list[SplitReport]:
    texts = [custom] if custom is not None else [data.splits[shift] for shift in Shift if shift in data.splits]
    reports = []
    for text in texts:
        split = ClassSplit.parse(text, order)
        problem = None
        try:
            data.split(None, order, text)
        except DriftgateError as error:
            problem = str(error)
        sides = {"source_images": split.source_classes, "target_images": split.target_classes}
        images = {
            side: {name: sum(sizes[i] for i in classes if i < len(sizes)) for name, sizes in counts.items()}
            for side, classes in sides.items()
        }
        reports.append(SplitReport(shift=split.shift.value, split=text, order=order, problem=problem, **images))
    return reports


def _missing(data: DataSet, counts: dict[str, list[int]]) -> list[str]:
    missing = [
        f"domain {name}: {data.where_to_put(name)}" for name in data.expected_domains if name not in data.domains
    ]
    if data.expected_classes is not None and len(data.class_names) < data.expected_classes:
        missing.append(
            f"{data.expected_classes - len(data.class_names)} of {data.expected_classes} classes in all domains; "
            "look for class folders that were not unpacked."
        )
    for domain, sizes in counts.items():
        empty = [name for name, size in zip(data.class_names, sizes, strict=True) if size == 0]
        if empty:
            where = f"({few(empty, 5)}), looked for in {data.origin(domain)}."
            missing.append(f"{len(empty)} of {len(sizes)} classes in {domain} {where}")
    return missing


def _warnings(data: DataSet, domains: dict[str, Domain]) -> list[str]:
    """What can be read but is hardly meant: a single class, or class folders that hold folders of images alone."""
    found = []
    if len(data.class_names) < 2:
        found.append(
            f"there is one class only, {data.class_names[0]!r}; expected <domain>/<class>/<image>, look at --root."
        )
    for domain in (domain for domain in domains.values() if isinstance(domain, FileDomain)):
        for index, name in enumerate(data.class_names):
            places = (domain.classes == index).nonzero().flatten().tolist()
            inside = {_folder_below(domain.path(place), name) for place in places}
            if len(inside) > 1 and None not in inside:
                names = ", ".join(sorted(folder for folder in inside if folder)[:3])
                found.append(
                    f"all images of the class {name!r} in {domain.name} lie in folders inside it ({names} ...): if "
                    f"these are the classes, move them a level up, beside {name!r}."
                )
    return found


def _folder_below(path: Path | str, class_name: str) -> str | None:
    """The folder inside the class folder that an image lies in; None where it lies in the class folder itself."""
    parts = Path(path).parent.parts
    inside = parts[len(parts) - parts[::-1].index(class_name) :] if class_name in parts else ()
    return inside[0] if inside else None


def _table(rows: list[list[str]]) -> list[str]:
    """Rows of text with aligned columns, and an empty line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, ""]
