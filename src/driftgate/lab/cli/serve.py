"""``driftgate serve``: a service that adapts."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from driftgate.lab.cli import options
from driftgate.lab.cli.app import app
from driftgate.lab.cli.console import note

if TYPE_CHECKING:
    from driftgate.serve.service import Service, ServiceSettings
    from driftgate.serve.state_folder import StateFolder

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
DEMO_STATE = Path("runs/serve-demo")

State = Annotated[
    Path | None, typer.Option("--state", help="Folder for state, snapshots and log; without, nothing is kept.")
]
SaveEvery = Annotated[int, typer.Option("--save-every", min=1, help="Steps between two saves of the state.")]


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Where it listens, to whom, and how it gathers batches."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535)] = 8000
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", help="Name it may be called by; repeat it for several.")
    ] = None
    name: Annotated[str, typer.Option("--name", help="Name of the model in paths.")] = "driftgate"
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="File of keys, one a line; one must come with every request.")
    ] = None
    images: Annotated[bool, typer.Option("--images/--no-images", help="Keep recent unknowns for the gallery.")] = True
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Samples of a batch at most.")] = 64
    max_delay: Annotated[
        float, typer.Option("--max-delay", min=0.0, help="Milliseconds a sample waits for company.")
    ] = 20.0
    queue_size: Annotated[int, typer.Option("--queue-size", min=1, help="Samples that may wait.")] = 1024
    save_every: SaveEvery = 100
    max_body: Annotated[float, typer.Option("--max-body", min=0.001, help="Megabytes of a request.")] = 32.0
    frozen: Annotated[bool, typer.Option("--frozen", help="Start without learning.")] = False

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
    from driftgate.lab.cli.experiment import make_choice
    from driftgate.serve.server import run
    from driftgate.serve.service import Service
    from driftgate.types import DriftgateError

    if demo == (chosen.model is not None or chosen.network is not None):
        raise DriftgateError("Expected either --model, --network or --demo; give one of them.")
    settings = served.settings()
    with ExitStack() as stack:
        if demo:
            service = _demo(state or DEMO_STATE, settings)
        else:
            folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driftgate-")))
            choice = make_choice(chosen)
            service = Service(choice.create(choice.open_model()), folder, settings)
        tell_start(service.engine.folder)
        if state is None and not demo:
            note("Nothing of this is kept; --state DIR would.")
        note(f"Version {service.engine.version} of {chosen.method} at http://{served.host}:{served.port}/")
        run(service, served.host, served.port)


def tell_start(folder: StateFolder) -> None:
    """What a user should know of the state it starts from."""
    for problem in folder.problems:
        note(problem)
    if folder.lost:
        note(f"{folder.lost} steps were not saved when the last service ended; they are lost.")


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
