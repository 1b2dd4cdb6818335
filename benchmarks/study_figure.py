"""The studies of a sweep in one picture, each as the report draws it, with the paper's finding below.

driftgate ablate losses,decay --suite digits --shifts OPDA --seeds 3
python benchmarks/study_figure.py runs/digits docs/ablations.png
"""

from __future__ import annotations

import argparse
import math
import textwrap

from matplotlib.figure import Figure

from driftgate.lab.bench.results import read_results
from driftgate.lab.bench.studies import STUDIES
from driftgate.lab.bench.tables import study_title
from driftgate.lab.figures import save_figure, study_panel
from driftgate.lab.figures.style import SIZE, styled

COLUMNS = 3
TEXT_WIDTH, TITLE_WIDTH = 58, 42


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of results")
    parser.add_argument("picture", help="file to write")
    parser.add_argument("--shift", default="OPDA", help="draw the runs of this shift")
    arguments = parser.parse_args()
    (suite,) = read_results([arguments.folder])
    drawn = {study: runs[runs["shift"] == arguments.shift] for study, runs in suite.studies.items()}
    drawn = {
        study: drawn[study] for study in [*STUDIES, *sorted(set(drawn) - set(STUDIES))] if len(drawn.get(study, ()))
    }
    columns = min(COLUMNS, len(drawn))
    rows = math.ceil(len(drawn) / columns)
    with styled():
        figure = Figure(figsize=(columns * SIZE[0], rows * (SIZE[1] + 0.6)), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flatten()
        for axes, (study, runs) in zip(panels, drawn.items(), strict=False):
            study_panel(axes, runs)
            title = "\n".join(textwrap.wrap(study_title(study), TITLE_WIDTH))
            axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=22)
            found = STUDIES[study].paper if study in STUDIES else None
            words = f"The paper, on VisDA-C OPDA: {found}" if found else ""
            axes.set_xlabel("\n".join(textwrap.wrap(words, TEXT_WIDTH)), fontsize=9, loc="left")
        for axes in panels[len(drawn) :]:
            axes.remove()
        save_figure(figure, arguments.picture, dpi=110)


if __name__ == "__main__":
    main()
