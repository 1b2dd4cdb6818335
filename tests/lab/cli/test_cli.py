"""The commands as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lab.cli.commands import answer, refused, run

from driftgate.methods import available

COMMANDS = (
    *(["demo"], ["pretrain"], ["adapt"], ["export"], ["methods"], ["memory"], ["cost"]),
    *(["data", "check"], ["import-checkpoint"]),
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_explains_with_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert "Example:" in result.stdout and f"driftgate {' '.join(command)}" in result.stdout
    assert "--json" in result.stdout


def test_the_overview_lists_all_commands_the_demo_first() -> None:
    text = run("--help").stdout
    places = [text.index(f" {command[0]} ") for command in COMMANDS]
    assert min(places[1:]) > places[0]


def test_the_command_line_starts_without_torch() -> None:
    script = "import sys, driftgate.lab.cli; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_as_a_module_errors_are_one_line_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "driftgate", "data", "check", "pacs", "--root", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ") and len(done.stderr.splitlines()) == 1
    assert "does not exist" in done.stderr


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run("--debug", "data", "check", "pacs", "--root", tmp_path / "nowhere")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "DriftgateError"


def test_interruption_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("driftgate.lab.bench.footprint.compare", interrupted)
    result = run("memory")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Interrupted.\n")


def test_unknown_options_are_refused() -> None:
    result = run("memory", "--clases", "9")
    assert result.exit_code == 2 and "--clases" in result.stderr


def test_memory_prints_the_supplements_comparison() -> None:
    found = answer("memory", "--classes", "9, 200")
    assert set(found) == {"9", "200"} and found["9"]["mixture"]["measured_bytes"] == 77_220
    text = run("memory", "--classes", "9").stdout
    assert "94,098.23" in text and "292.57" in text and "75.41" in text
    assert "tied mixture" in text and "10.41" in text and "from 73 on" in text


@pytest.mark.parametrize("classes", ["", "9,", "0", "-3", "nine", "9;200"])
def test_memory_refuses_what_is_no_number_of_classes(classes: str) -> None:
    assert "9,200,345" in refused("memory", f"--classes={classes}")


def test_methods_lists_all_with_their_state() -> None:
    document = answer("methods", "--classes", 5)
    rows = {row["name"]: row for row in document["methods"]}
    assert set(rows) == set(available())
    assert rows["gmm"]["state_bytes"] >= 4 * 5 * (64 + 64 * 65 // 2 + 1)
    assert rows["source-only"]["state_bytes"] == 0
    assert "paper" in rows["gmm"]["presets"]
    assert all(row["summary"] for row in rows.values())


def test_data_check_reports_a_tree(tree: Path) -> None:
    document = answer("data", "check", "folder", "--root", tree, "--split", "2/1/1")
    assert document["classes"] == ["ape", "bee", "cat", "dog"]
    assert {domain["name"]: domain["images"] for domain in document["domains"]} == {"day": 48, "night": 48}
    text = run("data", "check", "folder", "--root", tree, "--split", "2/1/1").stdout
    assert "OPDA" in text and "everything is there" in text


def test_data_check_refuses_unknown_names_and_orders(tree: Path) -> None:
    assert "'imagenet'" in refused("data", "check", "imagenet", "--root", tree)
    assert "shared-first" in refused("data", "check", "folder", "--root", tree, "--class-order", "random")


def test_data_check_ends_with_1_where_something_is_amiss(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["data", "check", "folder", "--root", tree]
    assert run(*command).exit_code == 0
    for more in ([], ["--json"]):
        assert run(*command, "--split", "3/3/3", *more).exit_code == 1
    (tmp_path / "day" / "ape").mkdir(parents=True)
    (tmp_path / "day" / "ape" / "0.png").write_bytes(b"no picture")
    result = run("data", "check", "folder", "--root", tmp_path)
    assert result.exit_code == 1 and "not complete" in result.stdout and "Error" not in result.stderr
    monkeypatch.setattr("driftgate.lab.data.check.check_dataset", None)
    assert "10/5/50" in refused(*command, "--split", "3-3-3")


def test_the_demo_promises_no_exact_time() -> None:
    text = " ".join(run("demo", "--help").stdout.split())
    assert "A few minutes" in text and "two minutes" not in text


def test_methods_tells_every_setting_with_its_meaning() -> None:
    for name, method in available().items():
        told = answer("methods", name)
        assert [row["name"] for row in told["settings"]] == list(method.Settings.model_fields)
        assert all(row["meaning"] for row in told["settings"]), name
    rows = {row["name"]: row for row in answer("methods", "gmm")["settings"]}
    assert rows["decay"] == {
        "name": "decay",
        "default": 0.999,
        "type": "float >= 0.0 <= 1.0",
        "meaning": "how much of the mixture's past survives a batch (alpha).",
    }
    assert rows["momentum"]["meaning"].startswith("of SGD"), "said by the class before it, with others"
    assert rows["min_batch"]["meaning"].endswith("until so many samples are together."), "over two lines"
    printed = run("methods", "tent").stdout
    assert "adapt_layers" in printed and "preset imagenet: lr=0.00025" in printed
    assert "one of your own is known once" in refused("methods", "gnn")
