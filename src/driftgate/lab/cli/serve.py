"""``driftgate serve``, a service that adapts, and ``watch``, the same without HTTP for a folder of pictures."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import note, refuse

if TYPE_CHECKING:
    from driftgate.methods import Method
    from driftgate.serve.service import Service, ServiceSettings

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
DEMO_STATE = Path("runs/serve-demo")

State = Annotated[
    Path | None, typer.Option("--state", help="Folder for state, snapshots and log; without, nothing is kept.")
]
SaveEvery = Annotated[int, typer.Option("--save-every", min=1, help="Steps between two saves of the state.")]


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Where it listens, to whom, and how it gathers batches."""

    host: str = options.option("127.0.0.1", "Address to listen on.")
    port: int = options.option(8000, min=0, max=65535)
    allowed_host: list[str] | None = options.option(None, "Name it may be called by; repeat it for several.")
    name: str = options.option("driftgate", "Name of the model in paths.")
    api_key_file: Path | None = options.option(None, "File of keys, one a line; one must come with every request.")
    images: bool = options.option(True, "Keep recent unknowns for the gallery.", "--images/--no-images")
    batch_size: int = options.option(64, "Samples of a batch at most.", min=1)
    max_delay: float = options.option(20.0, "Milliseconds a sample waits for company.", min=0.0)
    queue_size: int = options.option(1024, "Samples that may wait.", min=1)
    save_every: SaveEvery = 100
    max_body: float = options.option(32.0, "Megabytes of a request.", min=0.001)
    frozen: bool = options.option(False, "Start without learning.")
    revive: bool = options.option(True, "Start again at once where it is killed.", "--revive/--no-revive")
    ray: bool = options.option(False, "Run on Ray Serve: one learner, several predictors.")
    predictors: int = options.option(2, "Replicas that answer, with --ray.", min=1)
    publish_every: int = options.option(10, "Steps between two states that predictors take, with --ray.", min=1)

    def settings(self) -> ServiceSettings:
        """What they say; warns of a door that is open to all."""
        from driftgate.serve.engine import EngineSettings
        from driftgate.serve.safety import read_keys
        from driftgate.serve.service import ServiceSettings

        open_to_all = self.host not in ("127.0.0.1", "::1", "localhost")
        keys = () if self.api_key_file is None else read_keys(self.api_key_file)
        if open_to_all and not keys:
            note("Everybody who reaches this address may use the service and turn it back; see --api-key-file.")
        return ServiceSettings(
            name=self.name,
            engine=EngineSettings(
                batch_size=self.batch_size,
                max_delay=self.max_delay / 1000,
                queue_size=self.queue_size,
                save_every=self.save_every,
                frozen=self.frozen,
            ),
            keep_images=self.images,
            keys=keys,
            hosts=tuple(self.allowed_host) if self.allowed_host else None if open_to_all else LOOPBACK,
            max_body=round(self.max_body * 1e6),
        )


@options.command(
    app,
    epilog="Example: [bold]driftgate serve --model source.safetensors --method gmm --state state --port 8000[/bold]",
)
def serve(
    *,
    chosen: options.MethodOptions,
    state: State = None,
    demo: Annotated[bool, typer.Option("--demo", help="Serve digits, with a stream that plays itself.")] = False,
    served: ServiceOptions,
) -> None:
    """Answer pictures over HTTP, and learn from them: class or unknown.

    A page at the root shows what is going on, /metrics is for Prometheus, /v2 speaks the Open Inference Protocol.
    """
    from driftgate.extras import require

    require("serve", "driftgate serve")
    if demo == (chosen.model is not None or chosen.network is not None) or (demo and served.ray):
        refuse("Expected either --model, --network or --demo, which plays on one machine alone; give one of them.")
    settings = served.settings()
    # With Ray the file is opened by processes of their own, wherever they run.
    fresh = partial(fresh_method, replace(chosen, model=None if chosen.model is None else chosen.model.resolve()))
    with ExitStack() as stack:
        if state is None and not demo:
            note("Nothing of this is kept; --state DIR would.")
            state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftgate-")))
        if served.ray:
            _on_ray(fresh, state or DEMO_STATE, settings, served)
        else:
            _here(None if demo else fresh, state or DEMO_STATE, settings, served)


def _here(fresh: Callable[[], Method] | None, folder: Path, settings: ServiceSettings, served: ServiceOptions) -> None:
    """Serve on this machine, the demo where there is no method, until SIGTERM or SIGINT."""
    from driftgate.serve.keeper import go_on_in_a_kept_process, open_door, preload
    from driftgate.serve.server import run
    from driftgate.serve.service import Service

    with open_door(served.host, served.port) as door:
        if served.revive and hasattr(os, "fork"):
            preload("driftgate.lab.cli.experiment", "driftgate.lab.serve_demo")
            go_on_in_a_kept_process()
        service = _demo(folder, settings) if fresh is None else Service(fresh(), folder, settings)
        tell_start(service.engine.folder.problems, service.engine.folder.lost)
        host = f"[{served.host}]" if ":" in served.host else served.host
        note(f"Version {service.version} of {service.engine.method.name} at http://{host}:{door.getsockname()[1]}/")
        run(service, door)


def fresh_method(chosen: options.MethodOptions) -> Method:
    """The method that the options name; with Ray it is made anew in every process."""
    from driftgate.lab.cli.experiment import make_choice

    return make_choice(chosen).create()


def _on_ray(fresh: Callable[[], Method], folder: Path, settings: ServiceSettings, served: ServiceOptions) -> None:
    """Serve on Ray until SIGTERM or SIGINT."""
    from driftgate.progress import ended_by_signals

    try:
        from driftgate.serve.ray_app import RaySettings, connect, deploy, withdraw
    except ImportError:
        refuse("driftgate serve --ray needs Ray Serve; pip install 'driftgate[ray]'.")
    chosen = RaySettings(predictors=served.predictors, publish_every=served.publish_every)
    connect(chosen.predictors)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # where Ray has put an answer of its own
    with ended_by_signals() as stopped:
        try:
            started = deploy(fresh, folder, settings, chosen, host=served.host, port=served.port)
            tell_start(started["problems"], started["lost"])
            note(f"Version {started['version']}, {chosen.predictors} predictors at http://{served.host}:{served.port}/")
            stopped.wait()
        finally:
            withdraw()


def tell_start(problems: Sequence[str], lost: int) -> None:
    """What a user should know of the state it starts from."""
    for problem in problems:
        note(problem)
    if lost:
        note(f"{lost} steps were not saved when the last service ended; they are lost.")


def _demo(folder: Path, settings: ServiceSettings) -> Service:
    from driftgate.lab.serve_demo import GUARD, demo_model, play
    from driftgate.methods import create
    from driftgate.serve.service import Service

    file = folder / "model.safetensors"
    if not file.exists():
        note("Training a small network on typeset digits, once: some 20 seconds.")
    source = demo_model(file)
    service = Service(create("gmm", source), folder / "state", settings.model_copy(update={"guard": GUARD}))
    play(service)
    return service


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
    idle: Annotated[
        float | None, typer.Option(min=0.0, help="End after so many seconds without a new picture.")
    ] = None,
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
