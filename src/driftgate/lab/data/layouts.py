"""How the paper's data sets lie on the disk: names of folders, spellings of domains, places of list files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import yaml
from pydantic import BaseModel, Field

from driftgate.lab.data.domains import Skipped, class_folders, image_paths, visible_folders
from driftgate.shifts import Shift
from driftgate.text import few
from driftgate.types import DriftgateError

FOLDER_LISTS = ("image_unida_list.txt",)
"""List file inside a domain's folder (GLC, LEAD)."""

LIST_ENDING = "_list.txt"
"""Ending of a list file beside the domains' folders (SHOT: ``Art_list.txt``, AdaContrast: ``train_list.txt``)."""

COMMON_FOLDERS = frozenset({"kfold", "images", "data"})
"""Names of folders that archives put around the domains."""


def plain(name: str) -> str:
    """A name without what spellings differ in: case, blanks, underscores, hyphens."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


class Recipe(BaseModel, frozen=True, extra="forbid"):
    """What is known of a data set before looking: its domains, number of classes, and the paper's splits."""

    domains: tuple[str, ...]
    num_classes: int
    splits: dict[Shift, str]
    folders: frozenset[str]
    aliases: dict[str, str] = Field(default_factory=dict)

    def canonical(self, spelling: str) -> str | None:
        """The domain that is meant, if any."""
        names = {plain(name): name for name in self.domains} | self.aliases
        return names.get(plain(spelling))


def _read_recipes() -> dict[str, Recipe]:
    text = resources.files("driftgate.lab.data").joinpath("recipes.yaml").read_text(encoding="utf-8")
    return {name: Recipe(**facts) for name, facts in yaml.safe_load(text).items()}


RECIPES = _read_recipes()


@dataclass(frozen=True)
class Place:
    """Where a domain lies: a folder of class folders, or a list file and the folders its paths may start from."""

    name: str
    folder: Path | None
    list_file: Path | None
    bases: tuple[Path, ...]


def find_places(
    name: str, root: Path, recipe: Recipe | None, skipped: Skipped | None = None
) -> tuple[Path, dict[str, Place]]:
    """The folder that holds the domains (``root``, or one of the usual folders inside it), and each domain's place."""
    if not root.is_dir():
        found = "is a file" if root.exists() else "does not exist"
        raise DriftgateError(f"Expected a folder with the data ({name}) but {root} {found}; give its path with --root.")
    known = frozenset() if recipe is None else recipe.folders | COMMON_FOLDERS

    def usual(folder: Path) -> list[Path]:
        """The folders inside that archives put around the domains."""
        return [folder / name for name in visible_folders(folder, skipped) if known and plain(name) in known]

    inner = usual(root)
    for base in [root, *inner, *(innermost for folder in inner for innermost in usual(folder))]:
        places = _places(base, recipe, skipped)
        if places:
            wanted = recipe.domains if recipe else sorted(places)
            return base, {domain: places[domain] for domain in wanted if domain in places}
    raise DriftgateError(_nothing_found(name, root, recipe))


def where_to_put(root: Path, domain: str) -> str:
    """One sentence: the places a missing domain is looked for."""
    return (
        f"put its images into {root / domain}/<class>/, or a list of 'path label' lines into "
        f"{root / domain / FOLDER_LISTS[0]} or {root / (domain + LIST_ENDING)}."
    )


def _places(base: Path, recipe: Recipe | None, skipped: Skipped | None) -> dict[str, Place]:
    files = sorted(path.name for path in base.glob(f"*{LIST_ENDING}") if os.path.isfile(path))
    lists = _named([name.removesuffix(LIST_ENDING) for name in files], recipe, base)
    folders, places = _named(visible_folders(base, skipped), recipe, base), {}
    for domain in {**folders, **lists}:
        folder = base / folders[domain] if domain in folders else None
        inside = [folder / name for name in FOLDER_LISTS if os.path.isfile(folder / name)] if folder else []
        if folder is not None and inside:
            places[domain] = Place(domain, folder, inside[0], (folder, base))
        elif domain in lists:
            bases = (base, *([folder] if folder else []), base.parent)
            places[domain] = Place(domain, folder, base / (lists[domain] + LIST_ENDING), bases)
        elif folder is not None and class_folders(folder, skipped):
            places[domain] = Place(domain, folder, None, ())
    return places


def _named(found: list[str], recipe: Recipe | None, base: Path) -> dict[str, str]:
    """Domain -> name on the disk; without a recipe every name is a domain."""
    named: dict[str, str] = {}
    for name in found:
        domain = recipe.canonical(name) if recipe else name
        if domain is None:
            continue
        if domain in named:
            raise DriftgateError(
                f"Expected one {domain} under {base} but found {named[domain]} and {name}; remove or rename one."
            )
        named[domain] = name
    return named


def _nothing_found(name: str, root: Path, recipe: Recipe | None) -> str:
    inside = visible_folders(root)
    here = few(inside) or "no folders"
    if recipe is not None:
        return (
            f"Expected the domains of {name} ({', '.join(recipe.domains)}) in {root} but found {here}; --root is "
            "the folder that holds <domain>/<class>/<image>."
        )
    if any(next(image_paths(root / folder), None) is not None for folder in inside):
        return (
            f"Expected <domain>/<class>/<image> in {root} but found images directly in {here}; "
            "put a folder of the domain's name around the class folders."
        )
    return f"Expected <domain>/<class>/<image> in {root} but found {here} and no images; look at --root."
