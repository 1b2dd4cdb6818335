"""What mkdocs does beyond its configuration: pages from notebooks, from files outside docs/ and from the source code.

* A notebook in docs/ becomes a page, its outputs as they are saved in it.
* A link that leaves docs/ (to an example, a script, CONTRIBUTING) leads to a page that shows the file.
* The reference has a page for each package of src/driftgate.
* The navigation takes pages that may or may not be there: see ``on_config``.
"""

from __future__ import annotations

import base64
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS, PACKAGE = ROOT / "docs", ROOT / "src" / "driftgate"
OUTSIDE = "repository"
"""Folder of the site for files that lie outside docs/."""

ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)((?:#[^)\s]*)?)\)")
"""A link that is none to another site: text, target, place in it."""

LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".cff": "yaml"}
FETCHED = re.compile(r'<(?:script|img|iframe|source)[^>]+src="?(https?:[^"\s>]+)|<link[^>]+href="?(https?:[^"\s>]+)')
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Leave out of the navigation what is not there, put in what was not named, and fill the reference."""
    there = {site_path(path) for path in sources()}
    reference = [{title: page} for page, title in reference_pages().items()]
    nav = [_present(entry, there | set(reference_pages())) for entry in config.nav or []]
    for entry in nav:
        if isinstance(entry, dict) and "Reference" in entry:
            entry["Reference"] = reference
    forgotten = sorted(there - set(_pages(nav)) - {path for path in there if path.startswith(OUTSIDE)})
    config.nav = [entry for entry in nav if entry] + ([{"More": forgotten}] if forgotten else [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made."""
    for path in sources():
        if path.suffix == ".ipynb":
            if (raw := files.get_file_from_path(path.relative_to(DOCS).as_posix())) is not None:
                files.remove(raw)
            text, pictures = notebook_page(path)
            for name, content in pictures.items():
                files.append(File.generated(config, f"{posixpath.dirname(site_path(path))}/{name}", content=content))
        elif DOCS in path.parents:
            continue
        else:
            text = outside_page(path)
        files.append(File.generated(config, site_path(path), content=text))
    for page, title in reference_pages().items():
        files.append(File.generated(config, page, content=reference_page(page, title)))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would fetch something from elsewhere: the site is read without a network."""
    if found := FETCHED.search(output):
        raise PluginError(f"{page.file.src_uri} would fetch {found[1] or found[2]}; put it into docs/assets.")
    return output


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let the links of a page lead to pages of the site."""
    origin = repository_path(page.file.src_uri)
    if origin is None:
        return markdown
    return LINK.sub(lambda found: site_link(origin, page.file.src_uri, found), markdown)


@cache
def sources() -> list[Path]:
    """All files that become pages: those of docs/, and those outside to which they link."""
    pages = [path for path in DOCS.rglob("*") if path.suffix in {".md", ".ipynb"} and "tools" not in path.parts]
    found = {ROOT / name: None for name in ALWAYS}
    for path in pages:
        for _, target, _ in LINK.findall(path.read_text(encoding="utf-8")):
            linked = (path.parent / target).resolve()
            if linked.is_file() and ROOT in linked.parents and DOCS not in linked.parents:
                found[linked] = None
    return [*sorted(pages), *sorted(found)]


def site_path(path: Path) -> str:
    """Where in the site the page made of a file is."""
    if DOCS in path.parents:
        inside = path.relative_to(DOCS)
        return (inside.with_suffix(".md") if inside.suffix == ".ipynb" else inside).as_posix()
    outside = f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"
    return outside if path.suffix == ".md" else f"{outside}.md"


def repository_path(page: str) -> Path | None:
    """The file that a page of the site was made of; None for one of the reference."""
    return next((path for path in sources() if site_path(path) == page), None)


def site_link(origin: Path, page: str, link: re.Match[str]) -> str:
    """A link in ``origin`` as it must be on ``page``: to a page, to a file of docs/, or the words alone."""
    text, target, place = link.groups()
    linked = (origin.parent / target).resolve()
    if linked == DOCS / "methods":
        linked = linked / "README.md"
    if linked in sources():
        return f"[{text}]({posixpath.relpath(site_path(linked), posixpath.dirname(page) or '.')}{place})"
    outside = linked.exists() and (linked.is_dir() or DOCS not in linked.parents)
    return text if outside else link[0]


def outside_page(path: Path) -> str:
    """A Markdown file as it is, any other as a listing."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return text
    return f"# {path.relative_to(ROOT).as_posix()}\n\n```{LANGUAGES.get(path.suffix, 'text')}\n{text}```\n"


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Markdown of a notebook with its saved outputs, and its pictures by file name."""
    notebook = nbformat.read(path, as_version=4)
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    said = path.stem
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            said = first_sentence(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts.extend(_output(output, path.stem, pictures, said) for output in cell.outputs)
    where = path.relative_to(ROOT).as_posix()
    parts.insert(1, f"*This page is a notebook: `{where}`. `make docs-test` runs it anew.*")
    return "\n\n".join(part for part in parts if part) + "\n", pictures


def first_sentence(text: str) -> str:
    """Of the text above a picture, for those who do not see it; headings, links and code without their marks."""
    words = re.sub(r"^#.*$", "", text, flags=re.MULTILINE).strip() or text
    plain = re.sub(r"[#*`]|\[([^\]]*)\]\([^)]*\)", lambda found: found[1] or "", words)
    return " ".join(re.split(r"(?<=[.:?])\s", plain.strip(), maxsplit=1)[0].replace("]", ")").replace("[", "(").split())


def _output(output: Any, stem: str, pictures: dict[str, bytes], said: str) -> str:
    data = output.get("data", {})
    for kind, suffix in PICTURES.items():
        if kind in data:
            name = f"{stem}_{len(pictures) + 1}.{suffix}"
            pictures[name] = base64.b64decode(data[kind]) if suffix == "png" else data[kind].encode()
            return f"![{said}]({name})"
    if "text/markdown" in data:
        return str(data["text/markdown"])
    text = output.get("text") or data.get("text/plain", "")
    return f"```text {{ .output }}\n{text.rstrip()}\n```" if text.strip() else ""


def reference_pages() -> dict[str, str]:
    """Page -> title: the public names, then each package and the modules beside them."""
    packages = sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)
    pages = {"api/index.md": "Public names"}
    for package in packages:
        name = ".".join(package.relative_to(PACKAGE).parts)
        pages[f"api/{name}.md"] = name
    return pages | {"api/modules.md": "single modules"}


def reference_page(page: str, title: str) -> str:
    """Directives for mkdocstrings."""
    if page == "api/index.md":
        names = "\n\n".join(f"::: {name}" for name in public_names())
        return f"# Public names\n\nWhat `import driftgate` offers, each where it lives.\n\n{names}\n"
    folder = PACKAGE if page == "api/modules.md" else PACKAGE.joinpath(*title.split("."))
    modules = [path.stem for path in sorted(folder.glob("*.py")) if not path.stem.startswith("_")]
    dotted = ".".join(["driftgate", *folder.relative_to(PACKAGE).parts])
    shown = "\n\n".join(f"::: {dotted}.{module}" for module in modules if module != "moved")
    heading = "Single modules" if page == "api/modules.md" else f"`{dotted}`"
    said = re.match(r'"""(.*?)"""', (folder / "__init__.py").read_text(encoding="utf-8"), flags=re.DOTALL)
    return f"# {heading}\n\n{said[1] if said else ''}\n\n{shown}\n"


def public_names() -> list[str]:
    """Full paths of the public names, as the package's own first file imports them for type checkers."""
    text = (PACKAGE / "__init__.py").read_text(encoding="utf-8")
    found = []
    for module, names in re.findall(r"^    from (driftgate\S*) import (.+)$", text, flags=re.MULTILINE):
        found += [f"{module}.{name.split(' as ')[0].strip()}" for name in names.split(",")]
    return [name for name in found if not name.split(".")[-1].isupper()]


def _present(entry: Any, there: set[str]) -> Any:
    """A navigation entry without pages that are not there; None where nothing is left."""
    if isinstance(entry, str):
        return entry if entry in there else None
    if isinstance(entry, list):
        return [kept for part in entry if (kept := _present(part, there))]
    (title, value), *_ = entry.items()
    kept = _present(value, there)
    return {title: kept} if kept or title == "Reference" else None


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, list):
        for entry in nav:
            yield from _pages(entry)
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _pages(value)
