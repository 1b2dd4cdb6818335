"""Commands as a user runs them, in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from driftgate.lab.cli import app


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> Any:
    """What a command that must succeed says with --json."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments: object) -> str:
    """Run a command that must fail like a user's mistake: exit code 2, one line on stderr, nothing on stdout."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("Error: ")
    return str(lines[0])


def pretrain_command(tree: Path, out: Path) -> list[object]:
    data = ["--data", "folder", "--root", tree, "--source", "day", "--split", "2/1/1"]
    return ["pretrain", *data, "--backbone", "cnn", "--batch-size", 8, "--out", out]


def adapt_command(tree: Path, model: Path, *more: object) -> list[object]:
    data = ["--data", "folder", "--root", tree, "--target", "night", "--split", "2/1/1"]
    return ["adapt", "--model", model, *data, "--batch-size", 8, *more]
