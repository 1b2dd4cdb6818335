"""``driftgate adapt --images``: one method over a plain folder of pictures, without labels, a row a picture."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.table import Table

from driftgate.checkpoint import Pace
from driftgate.files import only_writer, write_text
from driftgate.lab.cli.console import duration, note, percent, print_result
from driftgate.lab.cli.experiment import Choice, pace_rows, tell_rest, what_table
from driftgate.lab.cli.options import PictureOptions, RunOptions
from driftgate.lab.data.pictures import PictureFolder
from driftgate.log import Step, Tally
from driftgate.loggers import make_logger
from driftgate.methods import Method, load_method
from driftgate.pacing import Pacing
from driftgate.progress import ended_by_signals
from driftgate.stream import Hook, stream_steps, versions
from driftgate.types import UNKNOWN, UNLABELED, DriftgateError

RECORD = "record.json"
COLUMNS = ("file", "label", "name", "probability", "novelty", "threshold", "learned")
UNKNOWN_NAME = "unknown"
NEWS_SECONDS = 60.0
"""Between two lines about a folder that is followed."""


class PredictionsFile:
    """One row a picture, on the disk after every batch; ``done`` are the pictures that have one."""

    def __init__(self, path: Path, class_names: tuple[str, ...], *, resume: bool) -> None:
        self.path, self.done = path, list[str]()
        self.names = {UNKNOWN: UNKNOWN_NAME, UNLABELED: "", **dict(enumerate(class_names))}
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append([COLUMNS])
            return
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.reader(file)
            if tuple(next(rows, ())) != COLUMNS:
                raise DriftgateError(
                    f"Expected the columns {', '.join(COLUMNS)} in {path} but it has others; name another file."
                )
            if not resume:
                raise DriftgateError(f"Found {path}; give --resume to go on with it, or name another file.")
            self.done = [row[0] for row in rows if len(row) == len(COLUMNS)]

    def __call__(self, step: Step) -> None:
        said, threshold = step.prediction, f"{step.prediction.thresholds.prediction:.6g}"
        columns = (said.labels, said.scores.amax(dim=1), said.novelty, said.pseudo_labels)
        self._append(
            (file, label, self.names[label], f"{probability:.6g}", f"{novelty:.6g}", threshold, self.names[learned])
            for file, label, probability, novelty, learned in zip(
                step.batch["files"], *(column.tolist() for column in columns), strict=True
            )
        )

    def _append(self, rows: Iterable[Iterable[object]]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(rows)


def adapt_images(choice: Choice, images: Path, pictures: PictureOptions, run: RunOptions, max_pixels: int) -> None:
    """Predict and learn, picture by picture as they come; Ctrl-C ends it like the end of the folder."""
    started = time.perf_counter()
    method = choice.create()
    if run.resume and run.save is not None and run.save.exists():
        method = saved_method(run.save, method)
    names, file = method.model.spec.class_names, pictures.predictions
    tally, pacing = Tally(names), None if run.max_delay is None else Pacing(run.max_delay)
    with ExitStack() as stack:
        stack.enter_context(only_writer(file))
        stack.enter_context(only_writer(run.save))
        rows = None if file is None else PredictionsFile(file, names, resume=run.resume)
        hooks: list[Hook] = [stack.enter_context(make_logger(text, append=run.resume)) for text in run.logs or ()]
        hooks += [] if rows is None else [rows]
        stopped = stack.enter_context(ended_by_signals())
        folder = PictureFolder(
            images,
            method.model.spec,
            batch_size=run.batch_size,
            done=[] if rows is None else rows.done,
            follow=pictures.follow,
            idle=pictures.idle,
            stopped=stopped.is_set,
            workers=run.workers,
            max_pixels=max_pixels,
        )
        news, saving = Pace(NEWS_SECONDS), Pace(run.checkpoint_every)
        for step in stream_steps(method, folder, max_delay=pacing):
            tally.add_prediction(step.prediction)
            for hook in hooks:
                hook(step)
            if news.due():
                note(f"{tally.samples:,} pictures, {len(folder.skipped)} skipped.")
            if run.save is not None and saving.due():
                method.save(run.save)
    if run.save is not None:
        method.save(run.save)
    record = _record(method, images, tally, folder, time.perf_counter() - started)
    record |= {} if pacing is None else {"pace": pacing.as_dict()}
    path = None if run.out is None else run.out / RECORD
    if path is not None:
        write_text(path, json.dumps(record, indent=2, allow_nan=False) + "\n")
    print_result(record, _table(record), run.as_json)
    tell_rest(folder.skipped, {"rows are": file, "adapted method is": run.save, "record is": path}, "pictures")


def saved_method(path: Path, fresh: Method) -> Method:
    """The method saved in ``path``, to go on with; it must be what the options ask for, ``fresh``."""
    saved = load_method(path, model=fresh.model)
    if (saved.name, saved.settings) != (fresh.name, fresh.settings):
        raise DriftgateError(
            f"Expected to go on with {fresh.name!r} as it is set now but {path} holds {saved.name!r}, or other "
            "settings; leave --resume out, or give the same options."
        )
    return saved


def _record(method: Method, images: Path, tally: Tally, folder: PictureFolder, seconds: float) -> dict[str, Any]:
    return {
        "method": method.name,
        "settings": method.settings.model_dump(mode="json"),
        "model": method.model.spec.model_dump(mode="json"),
        "images": str(images),
        "batches": tally.batches,
        "samples": tally.samples,
        "skipped": folder.skipped,
        "without_labels": tally.as_dict(),
        "seconds": seconds,
        "state_bytes": method.num_bytes,
        "versions": versions(),
    }


def _table(record: dict[str, Any]) -> Table:
    told = record["without_labels"]
    title = (
        f"{record['method']} on {record['images']}: {record['samples']:,} pictures in {record['batches']} batches, "
        f"{len(record['skipped'])} skipped, {duration(record['seconds'])}"
    )
    rows = [
        ("rejected", percent(told["rejected_share"]), "share of pictures predicted as unknown"),
        ("learned", percent(told["learned_share"]), "share of pictures that got a pseudo-label"),
        ("novelty", f"{told['mean_novelty']:.4g}", "mean; larger = more unknown"),
    ]
    for name, value in told["mean_losses"].items():
        rows.append((f"loss {name}", f"{value:.4g}", "mean over the batches that had it"))
    rows += pace_rows(record)
    for name, share in sorted(told["class_shares"].items(), key=lambda item: -item[1])[:10]:
        if share > 0:
            rows.append((name, percent(share), "share of pictures predicted as this class"))
    return what_table(title, rows, bold="rejected")
