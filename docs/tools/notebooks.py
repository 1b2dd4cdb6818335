"""Run the tutorials from start to end, each in a kernel and an empty folder of its own.

python docs/tools/notebooks.py           # all of docs/tutorials: fails where a cell fails
python docs/tools/notebooks.py --save    # and keep the outputs in the files, for the site
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

TUTORIALS = Path(__file__).resolve().parents[1] / "tutorials"
COLOUR_CODES = re.compile(r"\x1b\[[0-9;]*m")
SECONDS = 300
"""A cell may take so long; the longest takes a tenth of it."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebooks", nargs="*", type=Path, help="only these")
    parser.add_argument("--save", action="store_true", help="write the outputs into the notebooks")
    chosen = parser.parse_args()
    # A cell that starts a command (!driftgate ...) must find the one of this environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    notebooks = chosen.notebooks or sorted(TUTORIALS.glob("*.ipynb"))
    failed = [path.name for path in notebooks if not run(path, save=chosen.save)]
    print(f"{len(notebooks) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))


def run(path: Path, *, save: bool) -> bool:
    """Whether every cell of a notebook ran."""
    notebook = nbformat.read(path, as_version=4)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=SECONDS, resources={"metadata": {"path": folder}})
        try:
            client.execute()
        except CellExecutionError as error:
            print(f"{path.name} failed:\n{COLOUR_CODES.sub('', str(error))}")
            return False
    print(f"{path.name}: {time.perf_counter() - started:.0f} s")
    if save:
        nbformat.write(tidy(notebook), path)
    return True


def tidy(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Without times, colours and warnings, so that a second run changes nothing but what it computes."""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "text" in output:
                    output.text = COLOUR_CODES.sub("", output.text)
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


if __name__ == "__main__":
    main()
