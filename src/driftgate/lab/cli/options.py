"""Options: single ones that several commands have, and groups of them, each a dataclass that a command takes whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from driftgate.lab.cli.console import refuse

if TYPE_CHECKING:
    from driftgate.lab.bench.suite import Suite

CHECKPOINT_SECONDS = 120.0
"""As ``driftgate.checkpoint`` has it, which takes a second to import; a test compares them."""
MAX_PIXELS = 50_000_000
"""As ``driftgate.models.pictures`` has it."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")]
CheckpointEvery = Annotated[
    float, typer.Option("--checkpoint-every", min=0.0, help="Seconds between two saves of what --resume goes on from.")
]
Device = Annotated[
    str,
    typer.Option("--device", help="Where to compute: auto takes what is there; cpu, cuda, cuda:1, mps, or any other."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="A module or file with methods of your own, to be known by name; repeat it."),
]
InputSize = Annotated[
    int | None, typer.Option("--input-size", min=8, help="Side of the pictures; the backbone's own if not given.")
]
Precision = Annotated[
    str | None, typer.Option("--precision", help="What networks compute in: float32, bfloat16, or float16 on CUDA.")
]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Folder that holds <domain>/<class>/<image>, or the data set's list files."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Decides everything that is drawn at random.")]
Strict = Annotated[bool, typer.Option("--strict", help="Fail at a broken image instead of skipping it.")]
Weights = Annotated[
    str | None,
    typer.Option("--weights", help="File of pretrained weights (.pth, .safetensors), or none for random ones."),
]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Threads that decode images.")]

T = TypeVar("T")


def option(default: T, help: str | None = None, *names: str, **limits: Any) -> T:
    """A field of a group, an option called like it or by ``names``; ``limits`` are what ``typer.Option`` takes."""
    return field(default=default, metadata={"names": names, "help": help, **limits})


@dataclass(frozen=True, kw_only=True)
class TreeOptions:
    """Files of a data set, and how its classes are split."""

    root: Root = None
    split: str | None = option(
        None, "Shared/source-private/target-private classes like 3/2/2, instead of the built-in."
    )
    class_order: str = option("shared-first", "Order of the classes: shared-first (as all public code) or paper.")
    allow_outside: bool = option(False, "Let list files name images that do not lie under --root.", "--allow-outside")
    max_pixels: int = option(MAX_PIXELS, "Of an image; a larger one counts as broken and is not decoded.", min=1)


@dataclass(frozen=True, kw_only=True)
class DataOptions(TreeOptions):
    """A data set on the disk, and which of its classes are the source's."""

    data: str | None = option(
        None, "Data set: pacs, visda, domainnet, office-home, digits, or folder for any other tree."
    )
    shift: str | None = option(None, "Category shift: PDA, ODA or OPDA. Not needed with --split.")


@dataclass(frozen=True, kw_only=True)
class MethodOptions:
    """A method, and the model it adapts."""

    model: Path | None = option(None, "Source model, as pretrain or import-checkpoint wrote it.")
    network: str | None = option(
        None, "Your own network: my_module:build or path/to/file.py:build, a function that returns it."
    )
    class_names: str | None = option(
        None, "Classes of --network, in the order of its outputs: a,b,c or a file of lines."
    )
    network_size: int | None = option(
        None, "Side of the pictures of --network, where it does not tell.", "--input-size", min=1
    )
    method: str = option("gmm", "Name of the method; see driftgate methods.")
    preset: str | None = option(None, "A named set of the method's settings.")
    settings: list[str] | None = option(None, "A setting of the method as key=value; repeat it for several.", "--set")
    imports: Imports = None
    device: Device = "auto"


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """A plain folder of pictures."""

    images: Path | None = option(None, "A plain folder of pictures, newest last, in place of --data: no labels.")
    follow: bool = option(False, "Go on with pictures that come into --images later, until Ctrl-C.")
    idle: float | None = option(None, "End after so many seconds without a new picture.", min=0.0)
    predictions: Path | None = option(None, "File (.csv) that gets a row for every picture of --images.")


@dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How the domains of a data set are played."""

    target: list[str] | None = option(None, "Target domain; repeat it for several.")
    drop_last: bool = option(False, "Leave out an incomplete last batch.")
    order: str = option("shuffled", "shuffled, or dirichlet for classes that come together.")
    concentration: float = option(0.1, "Of the Dirichlet order; small = one class at a time.")
    arrangement: str = option("mixed", "Several targets mixed, or continual: one after another.")
    repeat: int = option(1, "Play the stream so many times; continual domains come back.", min=1)
    unknown_share: str | None = option(None, "Share of unknown samples: 0.3, or 0->0.8 to change along the stream.")
    limit: int | None = option(None, "Use at most so many images in a pass.", min=1)
    strict: Strict = False
    compile_backbone: bool = option(
        False, "Use torch.compile for the backbone if a trial shows that it is faster.", "--compile"
    )
    guard: bool = option(False, "Watch over the learning, and go back on alarm; see docs/guard.md.")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What every stream has: batches, a seed, and what is kept of it."""

    batch_size: int = option(64, min=1)
    seed: Seed = 0
    workers: Workers = 1
    logs: list[str] | None = option(
        None, "Curves of every step: csv:FILE, tensorboard:DIR or mlflow:URI; repeat it for several.", "--log"
    )
    out: Path | None = option(None, "Folder for the run record.")
    save: Path | None = option(None, "File for the adapted method (.safetensors).")
    resume: bool = option(False, "Go on with the run that was stopped in --out.")
    checkpoint_every: CheckpointEvery = CHECKPOINT_SECONDS
    max_delay: float | None = option(None, "Seconds a prediction may take once its batch has come; learning gives way.")
    as_json: AsJson = False


def names_in(text: str | None, place: str) -> list[str]:
    """Names with commas between; none if nothing was given."""
    names = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if text is not None and not names:
        refuse(f"Expected names after {place}, with commas between, but got {text!r}; or leave it out.")
    return names


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """What to take of a suite, its source models, and how to run it."""

    shifts: str | None = option(None, "Category shifts: PDA,ODA,OPDA.")
    pairs: str | None = option(None, "Pairs like photo->cartoon+sketch, or sources; separated by commas.")
    seeds: str | None = option(None, "How many seeds (3), or which ones (0,4 or 4,).")
    settings: list[str] | None = option(
        None,
        "A setting as METHOD.KEY=VALUE, like gmm.lr=0.01 or gmm.preset=paper, or of source training, like "
        "training.backbone_norm=running; repeat it.",
        "--set",
    )
    epochs: int | None = option(None, "Of source training; short for --set training.epochs=N.", min=1)
    limit: int | None = option(None, "Only the first so many batches of each stream.", min=1)
    quick_training: bool = option(False, "Source models from one epoch on 40 images a class: a rehearsal.")
    root: Root = None
    out: Path | None = option(None, "Folder of results; runs/<suite> if not given.")
    workers: int | None = option(None, "Runs at a time, one core each; as many as there are cores if not given.", min=1)
    backend: str = option("loky", "loky (this machine), ray (an existing cluster) or serial (this process).")
    device: Device = "auto"
    backbone: str | None = option(None, "Another backbone than the suite's: cnn, lite0 ...")
    weights: Weights = None
    input_size: InputSize = None
    precision: Precision = None
    model: Path | None = option(None, "A source model that is trained already, instead of training one.")
    imports: Imports = None
    dry_run: bool = option(False, "List the runs and tell how long they would take.")
    as_json: AsJson = False

    def select(self, suite: str, methods: str | None = None) -> Suite:
        """The suite of that name, narrowed and changed as they say."""
        from driftgate.lab.bench.suite import read_suite
        from driftgate.plugins import import_module

        for module in self.imports or []:
            import_module(module)
        found = read_suite(suite).with_backbone(self.backbone, self.weights, self.input_size)
        given = {"methods": methods, "shifts": self.shifts, "pairs": self.pairs}
        found = found.select(**{key: names_in(text, f"--{key}") for key, text in given.items()}, seeds=self.seeds)
        settings = [] if self.epochs is None else [f"training.epochs={self.epochs}"]
        if self.precision is not None:
            places = ["training", *(entry.name for entry in found.methods)]
            settings += [f"{place}.precision={self.precision}" for place in places]
        return found.with_settings([*(self.settings or []), *settings])


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Other methods, classes and streams than the suite's."""

    methods: str | None = option(None, "Methods, separated by commas; the suite's if not given.")
    shared: str | None = option(None, "Shared classes by name, separated by commas, instead of a split.")
    source_private: str | None = option(None, "With --shared: classes of the source alone.")
    target_private: str | None = option(None, "With --shared: unknown classes; all others if not given.")
    order: str | None = option(None, "Of the streams: shuffled, or dirichlet for classes that come together.")
    concentration: float | None = option(None, "Of the Dirichlet order; small = one class at a time.")
    arrangement: str | None = option(None, "Several targets mixed, or continual: one after another.")
    repeat: int | None = option(None, "Play each stream so many times; continual domains come back.", min=1)
    unknown_share: str | None = option(
        None, "Streams with these shares of unknown samples: 0,0.1,...,0.9; 0->0.8 changes along the stream."
    )

    def changes(self) -> dict[str, Any]:
        """What they change of a suite, by its keys."""
        parts = ("shared", "source_private", "target_private")
        classes = {key: names_in(getattr(self, key), f"--{key.replace('_', '-')}") for key in parts}
        changes = {key: getattr(self, key) for key in ("order", "concentration", "arrangement", "repeat")}
        changes |= {"unknown_shares": self.unknown_share, "classes": classes if any(classes.values()) else None}
        return {key: value for key, value in changes.items() if value is not None}


def command(app: typer.Typer, **facts: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """``app.command`` for a function that takes groups: every field of a group is an option of the command."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
        found: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(function).parameters.items():
            if name in groups:
                found += _parameters(groups[name])
            else:
                found.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))

        def called(**given: Any) -> None:
            made = {
                name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()
            }
            function(**made, **given)

        called.__doc__, called.__name__ = function.__doc__, function.__name__
        called.__signature__ = inspect.Signature(found)  # type: ignore[attr-defined]
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
        app.command(**facts)(called)
        return function

    return register


def _parameters(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    found = []
    for one in fields(group):
        kind, facts = hints[one.name], dict(one.metadata)
        if facts:  # else it is one of the single options above
            names = facts.pop("names") or [f"--{one.name.replace('_', '-')}"]
            kind = Annotated[kind, typer.Option(*names, **facts)]
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        found.append(inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    return found
