"""``driftgate adapt --data``: one method over one labelled stream, scored and recorded."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from driftgate.guard import Guard
from driftgate.lab.cli import experiment
from driftgate.lab.cli.console import kibibytes, note, percent, print_result, progress_bars
from driftgate.lab.cli.experiment import Choice
from driftgate.lab.cli.options import DataOptions, RunOptions, StreamOptions
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.data.streams import DomainStream
from driftgate.lab.files import file_sha256
from driftgate.loggers import make_logger
from driftgate.models import SourceModel
from driftgate.shifts import ClassSplit
from driftgate.stream import LONG_STREAM, run_stream
from driftgate.types import DriftgateError

PLAYING = ("order", "concentration", "arrangement", "repeat")
RECORD, PROGRESS, GUARD = "record.json", "progress.safetensors", "guard"
SHARES = {
    "true": "of unknown samples in the stream",
    "rejected": "of samples predicted as unknown",
    "estimated": "of unknown samples, as the method estimates it; mean over the stream",
}


def adapt_domains(choice: Choice, data: DataOptions, played: StreamOptions, run: RunOptions) -> None:
    """Predict, score and learn; a run that was stopped goes on."""
    if data.data is None or not played.target:
        raise DriftgateError(
            "Expected --data and --target but one is missing; give both, or --images with a plain folder of pictures."
        )
    if run.resume and run.out is None:
        raise DriftgateError("Expected --out with --resume but got none; name the folder of the run that was stopped.")
    if run.resume and played.guard:
        raise DriftgateError("Expected --guard without --resume: what it knows is in no checkpoint; leave one out.")
    if run.resume and run.max_delay is not None:
        raise DriftgateError("Expected --max-delay without --resume: learning hangs on the clock; leave one out.")
    checkpoint = None if run.out is None else experiment.progress_file(run.out / PROGRESS, run.resume)
    checkpoint = None if played.guard or run.max_delay is not None else checkpoint
    stream, classes, source = open_stream(choice, data, played, run)
    method = choice.create(source)
    compiled = played.compile_backbone and _try_to_compile(source, run.batch_size)
    protocol = _protocol(choice, data, played, run, stream)
    with experiment.resumable(checkpoint, run.save):
        with progress_bars() as report, ExitStack() as stack:
            guard = Guard(method, _new_folder(run.out, stack)) if played.guard else None
            label = f"{method.name} on {', '.join(protocol['target'])}"
            result = run_stream(
                method,
                stream,
                classes,
                protocol=protocol,
                checkpoint=checkpoint,
                checkpoint_every=run.checkpoint_every,
                on_step=[stack.enter_context(make_logger(text, append=run.resume)) for text in run.logs or ()],
                on_batch=lambda log: report(label, len(log), len(stream)),
                learner=guard,
                max_delay=run.max_delay,
            )
        if guard is not None:
            result.record["guard"] = guard.record()
        result.record["compiled"], result.record["device"] = compiled, str(method.device)
        if run.out is not None:
            result.save(run.out / RECORD)
        if run.save is not None:
            method.save(run.save)
    print_result(result.record, _table(result.record), run.as_json)
    experiment.tell_rest(stream.skipped, {"record is": run.out and run.out / RECORD, "adapted method is": run.save})


def open_stream(
    choice: Choice, data: DataOptions, played: StreamOptions, run: RunOptions
) -> tuple[DomainStream, ClassSplit, SourceModel]:
    """The stream that the options name, its classes, and the model it is for."""
    dataset, classes = experiment.open_split(data)
    source = choice.open_model()
    source.check_class_names(experiment.source_class_names(dataset, classes))
    share = None if played.unknown_share is None else StreamShare.parse(played.unknown_share)
    classes = classes if share is None else share.scored(classes)
    stream = DomainStream(
        [dataset.domain(name, seed=run.seed) for name in experiment.split_names(played.target or [])],
        classes,
        input_size=source.spec.image_size,
        batch_size=run.batch_size,
        seed=run.seed,
        drop_last=played.drop_last,
        unknown_share=share,
        strict=played.strict,
        workers=run.workers,
        limit=played.limit,
        pin=source.mean.device.type == "cuda",
        **{name: getattr(played, name) for name in PLAYING},
    )
    return stream, classes, source


def _protocol(
    choice: Choice, data: DataOptions, played: StreamOptions, run: RunOptions, stream: DomainStream
) -> dict[str, Any]:
    """What must be the same for a stopped run to go on: all that decides the numbers, but not where the files lie."""
    domains, file = stream.domains, choice.given.model
    return {
        "data": data.data,
        "target": [domain.name for domain in domains],
        "images_per_target": [len(domain) for domain in domains],
        "class_order": stream.split.order,
        "model_file": None if file is None else file.name,
        "model_sha256": None if file is None else file_sha256(file),
        "network": choice.given.network,
        "preset": choice.given.preset,
        "seed": run.seed,
        "batch_size": run.batch_size,
        "drop_last": played.drop_last,
        **{name: getattr(played, name) for name in PLAYING},
        "concentration": played.concentration if played.order == "dirichlet" else None,
        "unknown_share": played.unknown_share and str(StreamShare.parse(played.unknown_share)),
        "limit": played.limit,
        "compile": played.compile_backbone,
    }


def _new_folder(out: Path | None, stack: ExitStack) -> Path:
    """For the snapshots of a guard: an empty one in ``out``, or one that goes with the run."""
    if out is None:
        return Path(stack.enter_context(TemporaryDirectory()))
    folder = out / GUARD
    if folder.exists() and any(folder.iterdir()):
        raise DriftgateError(f"Expected no snapshots in {folder} but it has some; remove it, or name another --out.")
    return folder


def _try_to_compile(source: SourceModel, batch_size: int) -> bool:
    """Whether the backbone is compiled from here on."""
    from driftgate.models.compiling import compile_if_faster

    note("Compiling the backbone; this may take minutes.")
    trial = compile_if_faster(source, batch_size)
    times = f"{trial.plain_seconds:.3f} s plain"
    if trial.compiled_seconds is not None:
        times += f", {trial.compiled_seconds:.3f} s compiled"
    note(f"torch.compile is {'on' if trial.used else f'off, {trial.reason}'} (forward and backward: {times}).")
    return trial.used


def _table(record: dict[str, Any]) -> Table:
    protocol, shares = record["protocol"], record["shares"]
    title = (
        f"{record['method']} on {', '.join(protocol['target'])}, {protocol['shift']} {protocol['split']}, "
        f"{protocol['samples']:,} images in {protocol['batches']} batches"
    )
    rows = [(name, percent(value), record["definitions"][name]) for name, value in record["metrics"].items()]
    rows.append(("halves", " / ".join(map(percent, record["halves"])), "the score of each half"))
    if protocol["batches"] >= LONG_STREAM:
        rows.append(("tenths", " ".join(map(percent, record["tenths"])), "the score of each tenth"))
    rows += [(f"{name} share", percent(shares[name]), told) for name, told in SHARES.items() if name in shares]
    milliseconds, peak = 1000 * record["seconds"]["median_per_batch"], record["peak_memory_bytes"] / 2**20
    rows += [
        ("ms per batch", f"{milliseconds:.0f}", f"median; predict and learn, on {record['device']}"),
        ("state KiB", kibibytes(record["state_bytes"]), "carried across batches, beyond the network"),
        ("peak MiB", f"{peak:,.0f}", "largest memory above that of the loaded model"),
        *experiment.pace_rows(record),
    ]
    if "guard" in record:
        told = "; ".join(event["reason"] for event in record["guard"]["events"] if event["kind"] != "snapshot")
        rows.append(("alarms", str(record["guard"]["alarms"]), told or "of the guard: all was well"))
    return experiment.what_table(title, rows, bold=record["score"])
