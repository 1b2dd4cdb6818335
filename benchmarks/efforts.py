"""What every effort of `gmm` and four other methods cost, as a multiple of one inference, and what they gain for it.

    python benchmarks/efforts.py cost --out runs/efforts/lite0.json                       # EfficientNet-Lite0, 112 px
    python benchmarks/efforts.py cost --backbone resnet50-v1 --size 160 --batch-size 32 --rounds 2 --out ...
    driftgate bench digits --methods source-only,gmm,comet-f,adacontrast,tent,shot-o --out runs/digits
    driftgate bench digits --methods gmm --set gmm.effort=light --out runs/digits-light   # and frozen
    python benchmarks/efforts.py table runs/digits runs/digits-light runs/digits-frozen
    python benchmarks/efforts.py figure docs/efforts.png --costs runs/efforts/*.json --scores runs/digits*

Every configuration runs in a process of its own, and they take their steps in turns. Time is that of the processor, one
thread, so that a busy machine does not blur it; a ratio is that of sums over the same rounds. The gain of a run is what
it has above source-only on the same stream; the share is that of the mean over all streams to the mean of `full`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from driftgate.lab.bench.names import method_color
from driftgate.lab.bench.step_cost import INFERENCE, LOW, Builder, Setting, effort_settings, measure, method_stepper
from driftgate.lab.figures import save_figure
from driftgate.lab.figures.style import INK, SOFT, styled
from driftgate.models import UNTRAINED

OTHERS = ("tent", "shot-o", "comet-f", "adacontrast")
METHOD = "gmm"
TARGETS = {"light": (0.90, 2.5, 0.15), "frozen": (0.40, 1.15, None)}
"""Effort -> at least this share of the full gain, at most so many inferences, and this share of the full peak."""


def configurations(precision: str) -> dict[str, Builder]:
    def build(name: str) -> Builder:
        return partial(method_stepper, name=name, settings={"precision": precision})

    efforts = effort_settings(METHOD, None, {"precision": precision})
    return {
        INFERENCE: build("source-only"),
        **{
            name: partial(method_stepper, name=METHOD, settings=chosen.model_dump()) for name, chosen in efforts.items()
        },
        **{name: build(name) for name in OTHERS},
    }


def cost(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the processes too
    size = (arguments.size, arguments.size)
    setting = Setting(arguments.backbone, arguments.classes, size, arguments.batch_size, arguments.weights)
    chosen = configurations(arguments.precision)
    if arguments.only:
        chosen = {name: chosen[name] for name in [INFERENCE, *arguments.only.split(",")]}
    told = {name: value for name, value in vars(arguments).items() if name not in ("run", "out", "weights", "only")}
    rows: dict[str, Any] = {}
    if arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        rows = before["costs"] if before["setting"] == told else {}
    costs = measure(chosen, setting, steps=arguments.rounds, warmup=1, on_step=tell, cpu_time=True)
    for item in costs:
        ratio = sum(item.seconds) / sum(costs[0].seconds)
        rows[item.label] = {"seconds": item.seconds, "to_inference": ratio, "peak_bytes": item.peak_bytes}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"setting": told, "costs": rows}, indent=1) + "\n")
    full = rows.get("full", rows[INFERENCE])["peak_bytes"]
    print(f"\n{told}\n\n| | seconds | to inference | peak MiB above the model | to full |\n|---|---|---|---|---|")
    for name, row in rows.items():
        print(
            f"| {name} | {mean(row['seconds']):.3f} | {row['to_inference']:.2f} | {row['peak_bytes'] / 2**20:,.0f} | "
            f"{row['peak_bytes'] / full:.2f} |"
        )


def tell(label: str, turn: int, turns: int) -> None:
    print(f"\r\033[Kround {turn} of {turns}: {label}", end="", file=sys.stderr, flush=True)


Cell = tuple[Any, ...]
Shares = dict[str, tuple[float, float, int]]


def read_scores(folders: list[Path]) -> dict[str, dict[Cell, float]]:
    """Of every row of the picture the score of every stream, in percent."""
    scores: dict[str, dict[Cell, float]] = defaultdict(dict)
    for file in sorted(file for folder in folders for file in (folder / "records").glob("*.json")):
        record = json.loads(file.read_text())
        protocol = record["protocol"]
        name = record["method"]
        row = record["settings"].get("effort", "full") if name == METHOD else name
        cell = (str(protocol.get("source")), str(protocol.get("target")), protocol["shift"], protocol["seed"])
        scores[INFERENCE if name == "source-only" else row][cell] = 100 * record["metrics"][record["score"]]
    return scores


def shares(scores: dict[str, dict[Cell, float]]) -> Shares:
    """Of every row the mean score, the share of the full gain, and the streams that source-only and full have too."""
    source, full = scores[INFERENCE], scores["full"]
    found = {}
    for name, cells in scores.items():
        common = [cell for cell in cells if cell in source and cell in full]
        score = mean(cells[cell] for cell in common)
        below, above = mean(source[cell] for cell in common), mean(full[cell] for cell in common)
        found[name] = score, (score - below) / (above - below), len(common)
    return found


def table(arguments: argparse.Namespace) -> None:
    scores = read_scores(arguments.folders)
    shifts = sorted({cell[2] for cells in scores.values() for cell in cells}, key=("PDA", "ODA", "OPDA").index)
    print(f"| | {' | '.join(shifts)} | mean | share of the full gain | streams |")
    print("|---" * (len(shifts) + 4) + "|")
    for name, (score, share, count) in shares(scores).items():
        parts = [mean(value for cell, value in scores[name].items() if cell[2] == shift) for shift in shifts]
        print(
            f"| {name} | {' | '.join(f'{part:.1f}' for part in parts)} | {score:.1f} | {100 * share:.0f} % | {count} |"
        )


def figure(arguments: argparse.Namespace) -> None:
    found = shares(read_scores(arguments.scores))
    found[LOW] = found["full"]  # the same weights, tested
    files = [json.loads(file.read_text()) for file in arguments.costs]
    with styled():
        drawn = Figure(figsize=(10.4, 4.3 * len(files)), layout="constrained")
        panels = drawn.subplots(len(files), 2, squeeze=False, sharey=True)
        for row, told in zip(panels, files, strict=True):
            setting, costs = told["setting"], told["costs"]
            where = f"{setting['backbone']}, {setting['size']} px, {setting['batch_size']} images"
            times = {name: cost["to_inference"] for name, cost in costs.items()}
            peaks = {name: cost["peak_bytes"] / 2**20 for name, cost in costs.items()}
            panel(row[0], times, found, "time of a batch, in inferences", where)
            panel(row[1], peaks, found, "peak memory above the model, MiB", "")
            row[0].set_ylabel("share of the full gain, %")
        save_figure(drawn, arguments.picture, dpi=130)


def panel(
    axes: Axes, across: dict[str, float], found: dict[str, tuple[float, float, int]], words: str, title: str
) -> None:
    """A point a row; those of the dial are joined."""
    from adjustText import adjust_text

    dial = [INFERENCE, "frozen", "light", "full"]
    line = [(across[name], 100 * found[name][1]) for name in dial if name in across and name in found]
    axes.plot(*zip(*line, strict=True), color=method_color(METHOD), linewidth=1.4, alpha=0.5, zorder=2)
    axes.axhline(0, color=SOFT, linewidth=0.8, zorder=1)
    texts = []
    for name in (name for name in across if name in found):
        mine = name in (*dial, LOW)
        color = method_color(METHOD if mine else name)
        place = across[name], 100 * found[name][1]
        inside = "white" if name in (INFERENCE, LOW) else color
        axes.scatter(*place, s=52 if mine else 38, zorder=3, linewidth=1.5, facecolor=inside, edgecolor=color)
        label = "source-only" if name == INFERENCE else f"gmm {name}" if mine else name
        texts.append(axes.text(*place, label, fontsize=9, color=INK if mine else SOFT, weight="bold" if mine else None))
    axes.set_xscale("log")
    low, high = min(across.values()), max(across.values())
    axes.set_xlim(low / 1.25, high * 1.6)
    ticks = [tick for step in (1, 2, 5) for power in range(5) if low / 1.2 <= (tick := step * 10**power) <= high * 1.5]
    axes.set_xticks(sorted(ticks), [f"{tick:,}" for tick in sorted(ticks)])
    axes.minorticks_off()
    axes.set_xlabel(words)
    axes.set_title(title)
    adjust_text(texts, ax=axes, expand=(1.15, 1.5))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    costs = commands.add_parser("cost", help="measure, into a file")
    costs.set_defaults(run=cost)
    costs.add_argument("--backbone", default="lite0")
    costs.add_argument("--weights", default=UNTRAINED, help="file of the backbone's weights")
    costs.add_argument("--size", type=int, default=112)
    costs.add_argument("--classes", type=int, default=200)
    costs.add_argument("--batch-size", type=int, default=64)
    costs.add_argument("--rounds", type=int, default=4, help="an even number: every second batch teaches at light")
    costs.add_argument("--precision", default="float32")
    costs.add_argument("--only", help="configurations beside the inference, with commas between; adds to the file")
    costs.add_argument("--out", type=Path, required=True)
    tables = commands.add_parser("table", help="scores and shares of the gain, from folders of results")
    tables.set_defaults(run=table)
    tables.add_argument("folders", type=Path, nargs="+")
    figures = commands.add_parser("figure", help="gain against time and memory")
    figures.set_defaults(run=figure)
    figures.add_argument("picture")
    figures.add_argument("--costs", type=Path, nargs="+", required=True)
    figures.add_argument("--scores", type=Path, nargs="+", required=True)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
