"""``driftgate watch``: a folder where pictures arrive, answered by the engine of the service, without HTTP."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import note
from driftgate.lab.cli.serve import SaveEvery, State, tell_start

FACTS = ("label", "name", "probability", "novelty", "learned_from", "version")


@options.command(
    app,
    epilog="Example: [bold]driftgate watch camera/ --model source.safetensors --state state --out labels.jsonl[/bold]",
)
def watch(
    *,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder where pictures arrive.")],
    chosen: options.MethodOptions,
    state: State = None,
    out: Annotated[
        Path | None, typer.Option(help="File for the lines, else stdout; what it names is not asked again.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures of a batch at most.")] = 64,
    save_every: SaveEvery = 100,
    idle: options.Idle = None,
    workers: options.Workers = 1,
) -> None:
    """Label the pictures of a folder as they arrive, and learn from them: a JSON line a picture.

    Ends with Ctrl-C or SIGTERM, and goes on from --state when it is started again.
    """
    from driftgate.lab.cli.experiment import make_choice
    from driftgate.lab.data.pictures import PictureFolder
    from driftgate.progress import ended_by_signals
    from driftgate.serve.engine import Engine, EngineSettings
    from driftgate.serve.state_folder import StateFolder

    fresh = make_choice(chosen).create()
    with ExitStack() as stack:
        stopped = stack.enter_context(ended_by_signals())
        place = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftgate-")))
        kept = StateFolder(place)
        started = kept.start(fresh)
        tell_start(kept.problems, kept.lost)
        # The folder gathers the batches already, so that none waits for company.
        limits = EngineSettings(batch_size=batch_size, queue_size=batch_size, max_delay=0.0, save_every=save_every)
        engine = stack.enter_context(Engine(started, kept, limits))
        lines = None if out is None else stack.enter_context(out.open("a", encoding="utf-8"))
        pictures = PictureFolder(
            folder,
            started.model.spec,
            batch_size=batch_size,
            done=_done(out),
            follow=True,
            idle=idle,
            stopped=stopped.is_set,
            workers=workers,
        )
        for batch in pictures:
            answers = engine.submit(started.model.prepare(batch["images"])).result()
            for file, answer in zip(batch["files"], answers, strict=True):
                facts = {"file": file, **{name: getattr(answer, name) for name in FACTS}}
                print(json.dumps(facts), file=lines, flush=True)  # without a file to stdout
    note(f"Version {engine.version}; {len(pictures.skipped)} pictures could not be read.")


def _done(out: Path | None) -> list[str]:
    """Pictures that an earlier watch has answered; its last line may have been cut off by a kill."""
    if out is None or not out.exists():
        return []
    text = out.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        out.write_text(text, encoding="utf-8")
    return [json.loads(line)["file"] for line in text.splitlines()]
