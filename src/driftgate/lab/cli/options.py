"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Data = Annotated[
    str,
    typer.Option("--data", help="Data set: pacs, visda, domainnet, office-home, digits, or folder for any other tree."),
]
DataOrNot = Annotated[
    str | None,
    typer.Option("--data", help="Data set: pacs, visda, domainnet, office-home, digits, or folder for any other tree."),
]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="Folder that holds <domain>/<class>/<image>, or the data set's list files."),
]
ShiftName = Annotated[
    str | None, typer.Option("--shift", help="Category shift: PDA, ODA or OPDA. Not needed with --split.")
]
Split = Annotated[
    str | None,
    typer.Option("--split", help="Shared/source-private/target-private classes like 3/2/2, instead of the built-in."),
]
ClassOrder = Annotated[
    str,
    typer.Option("--class-order", help="Order of the classes: shared-first (as all public code) or paper."),
]
CheckpointEvery = Annotated[
    float,
    typer.Option("--checkpoint-every", min=0.0, help="Seconds between two saves of what --resume goes on from."),
]
CHECKPOINT_SECONDS = 120.0
"""As ``driftgate.checkpoint`` has it, which takes a second to import; a test compares them."""
AllowOutside = Annotated[
    bool, typer.Option("--allow-outside", help="Let list files name images that do not lie under --root.")
]
MaxPixels = Annotated[
    int, typer.Option("--max-pixels", min=1, help="Of an image; a larger one counts as broken and is not decoded.")
]
MAX_PIXELS = 50_000_000
"""As ``driftgate.models.pictures`` has it."""
Seed = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Decides everything that is drawn at random.")]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Threads that decode images.")]
Device = Annotated[
    str,
    typer.Option("--device", help="Where to compute: auto takes what is there; cpu, cuda, cuda:1, mps, or any other."),
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail at a broken image instead of skipping it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else, on stdout.")]
Network = Annotated[
    str | None,
    typer.Option(
        "--network", help="Your own network: my_module:build or path/to/file.py:build, a function that returns it."
    ),
]
ClassNames = Annotated[
    str | None,
    typer.Option("--class-names", help="Classes of --network, in the order of its outputs: a,b,c or a file of lines."),
]
NetworkSize = Annotated[
    int | None, typer.Option("--input-size", min=1, help="Side of the pictures of --network, where it does not tell.")
]
Logs = Annotated[
    list[str] | None,
    typer.Option("--log", help="Curves of every step: csv:FILE, tensorboard:DIR or mlflow:URI; repeat it for several."),
]
Imports = Annotated[
    list[str] | None,
    typer.Option("--import", help="A module or file with methods of your own, to be known by name; repeat it."),
]
ModelOrNot = Annotated[
    Path | None, typer.Option("--model", help="Source model, as pretrain or import-checkpoint wrote it.")
]
MethodName = Annotated[str, typer.Option("--method", help="Name of the method; see driftgate methods.")]
Preset = Annotated[str | None, typer.Option("--preset", help="A named set of the method's settings.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A setting of the method as key=value; repeat it for several.")
]
