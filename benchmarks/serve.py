"""Load on the service: throughput and latency of /v1/classify with learning off, on, and of the bare network.

    python benchmarks/serve.py [--backbone cnn|lite0] [--seconds 10] [--rounds 3] [--pace RATE]
    python benchmarks/serve.py [--backbone cnn|lite0] --soak MINUTES
    python benchmarks/serve.py [--backbone cnn|lite0] --kills 10
    python benchmarks/serve.py [--backbone cnn|lite0] --cpu-time 1,16,64 [--rounds 50]

Three services run side by side on the loopback and are asked in turn, round by round, so that a busy machine slows all
of them alike; only ratios are worth much. `full` keeps 16 connections busy with one picture each; `paced` sends
pictures at a third of the rate that the learning service reached, whether answers have come or not, and counts from the
moment a picture should have left; `--pace` says the rate, for a machine that others use. `--soak` keeps the learning
one busy, watches its memory, and then takes the batches of its audit log through the same method and guard once more:
every answer must be the one it gave. `--kills` kills the learning one again and again, and tells how long the next
picture waits for its answer. The client shares the machine. `--cpu-time` asks no service: it tells the
processor's time that the learner's thread takes to the answer and to the end, which other work on the machine leaves
nearly alone.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from driftgate.guard import Guard
from driftgate.methods import create
from driftgate.models import SourceModel
from driftgate.serve.decode import Pixels, decode
from driftgate.serve.keeper import SOON

CONNECTIONS = 16
WARM = 40
"""Batches that are not counted: the first are slower, and single samples wait until enough are together."""
SERVICES = {
    "bare network": ["--method", "source-only"],
    "learning off": ["--method", "gmm"],
    "learning on": ["--method", "gmm"],
}
OFF = "learning off"
"""Frozen once it has learned from a few batches: before its first ones the mixture is made anew for every answer."""


def pictures(size: int, count: int = 64) -> list[bytes]:
    """Smooth random pictures as JPEG: noise alone would be no load for a decoder."""
    random, found = np.random.default_rng(0), []
    for _ in range(count):
        small = Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8))
        buffer = BytesIO()
        small.resize((size, size), Image.Resampling.BICUBIC).save(buffer, "JPEG")
        found.append(buffer.getvalue())
    return found


class Running:
    """One service in a process of its own."""

    def __init__(self, model: Path, state: Path, options: Sequence[str]) -> None:
        with socket.socket() as line:
            line.bind(("127.0.0.1", 0))
            self.port: int = line.getsockname()[1]
        command = [sys.executable, "-m", "driftgate", "serve", "--model", str(model), "--state", str(state)]
        log = state.with_suffix(".log").open("wb")
        self.process = subprocess.Popen([*command, "--port", str(self.port), *options], stderr=log)
        for _ in range(1200):
            try:
                if self.get("/v2/health/ready")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(state.with_suffix(".log").read_text())

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    def get(self, path: str) -> tuple[int, bytes]:
        line = self.connect()
        line.request("GET", path)
        answer = line.getresponse()
        return answer.status, answer.read()

    def freeze(self) -> None:
        line = self.connect()
        line.request("POST", "/v1/freeze")
        if line.getresponse().status != 200:
            raise SystemExit("the service could not be frozen")

    def memory(self) -> float:
        """Resident megabytes."""
        text = self.get("/metrics")[1].decode()
        return next(float(row.split()[1]) for row in text.splitlines() if row.startswith("process_resident")) / 1e6


def ask(line: http.client.HTTPConnection, picture: bytes) -> str:
    """The id of the answer."""
    line.request("POST", "/v1/classify", picture, {"Content-Type": "image/jpeg"})
    answer = line.getresponse()
    body = answer.read()
    if answer.status != 200 or not json.loads(body)["answers"]:
        raise RuntimeError(f"a request was lost: {answer.status} {body[:200]!r}")
    found: str = json.loads(body)["answers"][0]["id"]
    return found


def in_threads(work: Callable[[int, list[float]], None]) -> list[float]:
    """Latencies that all threads together have measured; what goes wrong in one of them ends the measurement."""
    parts: list[list[float]] = [[] for _ in range(CONNECTIONS)]
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        for done in [pool.submit(work, number, part) for number, part in enumerate(parts)]:
            done.result()
    return [value for part in parts for value in part]


def full_load(service: Running, sent: list[bytes], seconds: float, asked: dict[str, int] | None = None) -> list[float]:
    """Every connection asks again as soon as it is answered; ``asked`` gets which picture an answer's id is of."""
    end = time.monotonic() + seconds

    def work(number: int, found: list[float]) -> None:
        line, count = service.connect(), number
        while time.monotonic() < end:
            started = time.perf_counter()
            answer = ask(line, sent[count % len(sent)])
            found.append(time.perf_counter() - started)
            if asked is not None:
                asked[answer] = count % len(sent)
            count += CONNECTIONS

    return in_threads(work)


def paced_load(service: Running, sent: list[bytes], seconds: float, rate: float) -> list[float]:
    """Pictures leave at fixed times, whatever the answers do."""
    start = time.monotonic() + 0.1

    def work(number: int, found: list[float]) -> None:
        line = service.connect()
        for count in range(number, int(rate * seconds), CONNECTIONS):
            due = start + count / rate
            time.sleep(max(due - time.monotonic(), 0.0))
            ask(line, sent[count % len(sent)])
            found.append(time.monotonic() - due)

    return in_threads(work)


def quantile(values: list[float], share: float) -> float:
    return 1000 * float(np.quantile(values, share))


def compare(services: dict[str, Running], sent: list[bytes], seconds: float, rounds: int, pace: float | None) -> None:
    """Both loads and their table; with ``pace`` the paced load alone."""
    full: dict[str, list[list[float]]] = {name: [] for name in services}
    paced: dict[str, list[float]] = {name: [] for name in services}
    for service in services.values():
        full_load(service, sent, 2.0)  # the first steps are slower
    services[OFF].freeze()
    for _ in range(0 if pace else rounds):
        for name, service in services.items():
            full[name].append(full_load(service, sent, seconds))
    rates = {name: statistics.median([len(part) / seconds for part in parts] or [1.0]) for name, parts in full.items()}
    pace = pace or rates["learning on"] / 3
    for _ in range(rounds):
        for name, service in services.items():
            paced[name] += paced_load(service, sent, seconds, pace)
    usual = {share: quantile(paced[OFF], share) for share in (0.5, 0.99)}
    print(f"{'':14s}{'full load':>30s}{f'paced at {pace:.0f}/s':>42s}")
    titles = ("rate", "of bare", "p50 ms", "p99", "p50 ms", "of off", "p99", "of off")
    print(f"{'':14s}" + "".join(f"{title:>9s}" for title in titles))
    for name, parts in full.items():
        together = [value for part in parts for value in part] or [0.0]
        middle, high = quantile(paced[name], 0.5), quantile(paced[name], 0.99)
        print(
            f"{name:14s}{rates[name]:9.1f}{rates[name] / rates['bare network']:9.2f}{quantile(together, 0.5):9.0f}"
            f"{quantile(together, 0.99):9.0f}{middle:9.1f}{middle / usual[0.5]:9.2f}"
            f"{high:9.0f}{high / usual[0.99]:9.2f}"
        )


def processor_time(model: Path, folder: Path, sizes: list[int], rounds: int) -> None:
    """Milliseconds of the processor to the answer, and in all, of batches of these sizes; the methods in turn."""
    print(f"{'batch':>5s}{'':>14s}{'to the answer':>15s}{'of off':>8s}{'in all':>9s}{'of off':>8s}")
    for size in sizes:
        guards = {}
        for name, options in SERVICES.items():
            method = create(options[1], SourceModel.load(model))
            guards[name] = Guard(method, folder / f"{size}-{name.replace(' ', '-')}")
        shape = method.model.spec.shape
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in guards}
        for seed in range(WARM + rounds):
            batch = torch.rand(size, *shape, generator=torch.Generator().manual_seed(seed))
            if seed == WARM:
                guards[OFF].freeze()
            for name, guard in guards.items():
                started, answered = time.thread_time(), list[float]()
                guard.step(batch, on_prediction=lambda _, told=answered: told.append(time.thread_time()))  # type: ignore[misc]
                spent[name].append((answered[0] - started, time.thread_time() - started))
        # To the answer the median counts; in all the mean, for not every batch is learned.
        first = {name: statistics.median(value for value, _ in found[WARM:]) for name, found in spent.items()}
        whole = {name: statistics.fmean(value for _, value in found[WARM:]) for name, found in spent.items()}
        for name in guards:
            print(
                f"{size:5d}{name:>14s}{1000 * first[name]:15.2f}{first[name] / first[OFF]:8.2f}"
                f"{1000 * whole[name]:9.2f}{whole[name] / whole[OFF]:8.2f}",
                flush=True,
            )


def soak(service: Running, sent: list[bytes], minutes: float) -> dict[str, int]:
    """Memory and answers of the learning service under full load; which picture each answer's id is of."""
    asked: dict[str, int] = {}
    full_load(service, sent, 30.0, asked)
    memory = [service.memory()]
    for _ in range(max(int(minutes * 2), 1)):
        full_load(service, sent, 30.0, asked)
        memory.append(service.memory())
        print(f"{len(memory) / 2 - 0.5:5.1f} min  {len(asked):9,d} answers  {memory[-1]:8.1f} MB", flush=True)
    print(f"memory grew by {100 * (max(memory) / memory[0] - 1):.1f} % at most; {len(asked):,} answers, none lost")
    return asked


def back_again(service: Running, sent: list[bytes], kills: int) -> None:
    """How long a picture waits that comes the moment after the service was killed."""
    waited = []
    for _ in range(kills):
        full_load(service, sent, SOON + 1.0)  # or it would be given up
        keeper = service.process.pid
        (killed,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
        os.kill(int(killed), signal.SIGKILL)
        started = time.perf_counter()
        ask(service.connect(), sent[0])
        waited.append(time.perf_counter() - started)
    print(f"{kills} kills: answered after {statistics.median(waited):.2f} s (median), {max(waited):.2f} s at most")


def repeat(model: Path, state: Path, sent: list[bytes], asked: dict[str, int]) -> None:
    """The batches of the audit log once more, without a service: how many answers differ."""
    source = SourceModel.load(model)
    inputs = torch.stack([decode(picture, source, Pixels(10**9)) for picture in sent])
    files = [*(state / f"audit.jsonl.{number}" for number in range(9, 0, -1)), state / "audit.jsonl"]
    lines = [json.loads(line) for file in files if file.exists() for line in file.read_text().splitlines()]
    if lines[0]["what"] != "start":
        raise SystemExit("the audit log has lost its beginning; soak for a shorter time")
    batches = [line["answers"] for line in lines if line["what"] == "batch"]
    guard = Guard(create("gmm", source), state / "repeated")
    wrong = 0
    for rows in batches:
        expected = guard.step(inputs[[asked[row["id"]] for row in rows]])
        pairs = zip(rows, expected.labels.tolist(), expected.novelty.tolist(), strict=True)
        wrong += sum((row["label"], row["novelty"]) != (label, novelty) for row, label, novelty in pairs)
    total = sum(map(len, batches))
    events = sum(line["what"] == "event" and line["kind"] == "alarm" for line in lines)
    print(f"{total:,} answers in {len(batches):,} batches, {events} alarms: {wrong} differ from an offline run")
    if wrong or total != len(asked):
        raise SystemExit(f"{total} answers in the log, {len(asked)} got by clients, {wrong} wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="cnn", choices=("cnn", "lite0"))
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pace", type=float, help="pictures a second of the paced load, and no full load")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of full load on the learning service instead")
    parser.add_argument("--kills", type=int, default=0, help="kills of the learning service instead")
    parser.add_argument("--cpu-time", metavar="SIZES", help="the processor's time of such batches, without a service")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = SourceModel.build(chosen.backbone, [f"class {index}" for index in range(10)], seed=0)
        model.save(folder / "model.safetensors")
        sent = pictures(model.spec.image_size[0])
        if chosen.cpu_time:
            torch.set_num_threads(1)
            sizes = [int(size) for size in chosen.cpu_time.split(",")]
            processor_time(folder / "model.safetensors", folder, sizes, chosen.rounds)
            return
        wanted = {"learning on": SERVICES["learning on"]} if chosen.soak or chosen.kills else SERVICES
        services = {
            title: Running(folder / "model.safetensors", folder / title.replace(" ", "-"), options)
            for title, options in wanted.items()
        }
        try:
            if chosen.soak:
                asked = soak(services["learning on"], sent, chosen.soak)
            elif chosen.kills:
                back_again(services["learning on"], sent, chosen.kills)
            else:
                compare(services, sent, chosen.seconds, chosen.rounds, chosen.pace)
        finally:
            for service in services.values():
                service.process.terminate()
                service.process.wait(timeout=60)
        if chosen.soak:
            repeat(folder / "model.safetensors", folder / "learning-on", sent, asked)


if __name__ == "__main__":
    main()
