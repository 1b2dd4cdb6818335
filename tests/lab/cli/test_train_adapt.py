"""``pretrain``, ``adapt`` and ``import-checkpoint`` as a user runs them."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.cli.commands import adapt_command, answer, pretrain_command, refused, run
from torch import nn

from driftgate.lab.cli import adapt_domains
from driftgate.log import StreamLog
from driftgate.methods import Method, load_method
from driftgate.models import SourceModel
from driftgate.models.resnet import ResNet50


def test_pretrain_reports_and_writes_a_model(trained: Path) -> None:
    out, document = trained, json.loads((trained.parents[1] / "told.json").read_text())
    model = SourceModel.load(out)
    assert model.spec.class_names == ("ape", "bee", "cat")
    assert model.spec.input_size == (28, 28)
    assert document["shift"] == "OPDA" and document["settings"]["epochs"] == 2
    assert 0.0 <= document["held_out_accuracy"] <= 1.0
    card = out.with_name(f"{out.name}.md")
    assert {path.name for path in out.parent.iterdir()} == {out.name, card.name}
    assert f"| accuracy, held out | {100 * document['held_out_accuracy']:.1f} % |" in card.read_text(encoding="utf-8")


def test_pretrain_refuses_mistakes_and_writes_nothing(tree: Path, tmp_path: Path) -> None:
    command = pretrain_command(tree, tmp_path / "source.safetensors")
    assert "out of cnn" in refused(*command, "--backbone", "alexnet")
    assert "'dusk'" in refused(*command, "--source", "dusk")
    assert "'day' 2 times" in refused(*command, "--source", "day")
    assert "--weights none" in refused(*command, "--backbone", "resnet50")
    assert "9 classes" in refused(*command, "--split", "3/3/3")
    assert "--resume" in refused(*command, "--resume")
    assert "is a folder" in refused(*pretrain_command(tree, tmp_path))
    assert "lr" in refused(*command, "--lr", "-1")
    assert list(tmp_path.iterdir()) == []


def test_a_stopped_training_is_not_overwritten(tree: Path, tmp_path: Path) -> None:
    progress = tmp_path / "model.v1.progress.safetensors"
    progress.write_bytes(b"hours of work")
    assert "--resume" in refused(*pretrain_command(tree, tmp_path / "model.v1"))
    assert "there is none" in refused(*pretrain_command(tree, tmp_path / "model.v2"), "--resume")
    assert progress.read_bytes() == b"hours of work"


def test_adapt_writes_record_and_method(tree: Path, trained: Path, tmp_path: Path) -> None:
    out, saved = tmp_path / "run", tmp_path / "adapted.safetensors"
    settings = ["--set", "reduced_dim=8", "--set", "gate=frozen", "--set", "max_grad_norm=null"]
    result = run(*adapt_command(tree, trained, *settings, "--seed", 3, "--out", out, "--save", saved, "--json"))
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record == json.loads((out / "record.json").read_text())
    assert record["settings"]["reduced_dim"] == 8 and record["settings"]["gate"] == "frozen"
    assert record["settings"]["seed"] == record["protocol"]["seed"] == 3
    assert record["protocol"]["target"] == ["night"] and record["protocol"]["samples"] == 36
    assert record["protocol"]["class_order"] == "shared-first"
    assert record["protocol"]["model_sha256"] == hashlib.sha256(trained.read_bytes()).hexdigest()
    assert record["protocol"]["images_per_target"] == [48]
    assert str(saved) in result.stderr
    assert record["protocol"]["skipped"] == []
    assert [path.name for path in out.iterdir()] == ["record.json"]
    method = load_method(saved)
    assert method.name == "gmm" and method.steps == record["protocol"]["batches"] == 5


def test_adapt_takes_presets_orders_and_several_targets(tree: Path, trained: Path) -> None:
    more = ["--target", "day", "--arrangement", "continual", "--order", "dirichlet", "--drop-last", "--limit", 40]
    record = answer(*adapt_command(tree, trained, *more, "--preset", "released"))
    assert record["protocol"]["target"] == ["night", "day"]
    assert record["protocol"]["samples"] == 32  # 20 of each domain, of which 2 full batches of 8
    assert record["settings"]["decay"] == 1.0 and record["protocol"]["preset"] == "released"


def test_adapt_plays_again_and_with_a_share_of_unknown(tree: Path, trained: Path) -> None:
    more = ["--method", "source-only", "--repeat", 2]
    usual = answer(*adapt_command(tree, trained, "--method", "source-only"))
    again = answer(*adapt_command(tree, trained, *more))
    assert again["protocol"]["samples"] == 2 * usual["protocol"]["samples"] and again["protocol"]["repeat"] == 2
    half = answer(*adapt_command(tree, trained, *more, "--unknown-share", "0.5"))
    assert half["protocol"]["unknown_share"] == "0.5" and half["shares"]["true"] == 0.5
    none = answer(*adapt_command(tree, trained, *more, "--unknown-share", "0"))
    assert none["shares"]["true"] == 0 and none["score"] == "accuracy"
    assert "unknown share from 0 to 1" in refused(*adapt_command(tree, trained), "--unknown-share", "most")


def test_adapt_prints_a_table(tree: Path, trained: Path) -> None:
    result = run(*adapt_command(tree, trained, "--method", "source-only"))
    assert result.exit_code == 0
    assert "h_score" in result.stdout and "harmonic mean" in result.stdout


def test_adapt_resumes_a_stopped_run(
    tree: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command(name: str) -> list[object]:
        return adapt_command(tree, trained, "--set", "reduced_dim=4", "--out", tmp_path / name)

    whole = answer(*command("whole"))
    original = adapt_domains.run_stream

    def stopped(*arguments: Any, **keywords: Any) -> Any:
        def stop(log: StreamLog) -> None:
            if len(log) == 3:
                raise KeyboardInterrupt

        return original(*arguments, **{**keywords, "on_batch": stop, "checkpoint_every": 0})

    with monkeypatch.context() as patched:
        patched.setattr(adapt_domains, "run_stream", stopped)
        interrupted = run(*command("stopped"))
    assert interrupted.exit_code == 130
    assert interrupted.stderr.startswith("Interrupted. ") and len(interrupted.stderr.splitlines()) == 1
    assert "--resume" in interrupted.stderr and "progress.safetensors" in interrupted.stderr
    names = sorted(path.name for path in (tmp_path / "stopped").iterdir())
    assert names == ["progress.safetensors", "progress.safetensors.log"]
    assert "--resume" in refused(*command("stopped"))
    resumed = answer(*command("stopped"), "--resume")
    for name in ("metrics", "series", "halves", "settings"):
        assert resumed[name] == whole[name]
    assert [path.name for path in (tmp_path / "stopped").iterdir()] == ["record.json"]


def test_progress_outlives_results_that_could_not_be_saved(
    tree: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("No space left on device")

    original = adapt_domains.run_stream
    often = lambda *arguments, **keywords: original(*arguments, **{**keywords, "checkpoint_every": 0})  # noqa: E731
    adapt = adapt_command(
        tree, trained, "--method", "source-only", "--out", tmp_path / "run", "--save", tmp_path / "saved"
    )
    pretrain = [*pretrain_command(tree, tmp_path / "model"), "--epochs", 1]
    with monkeypatch.context() as patched:
        patched.setattr(adapt_domains, "run_stream", often)
        patched.setattr(Method, "save", full)
        patched.setattr(SourceModel, "save", full)
        for command in (adapt, pretrain):
            result = run(*command)
            assert result.exit_code == 2 and "No space left" in result.stderr
    assert (tmp_path / "run" / "progress.safetensors").exists()
    for command in (adapt, pretrain):
        assert run(*command, "--resume").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.md", "run", "saved"]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["record.json"]


def test_adapt_refuses_mistakes_and_writes_nothing(tree: Path, trained: Path, tmp_path: Path) -> None:
    model, out = trained, tmp_path / "run"
    command = [*adapt_command(tree, model), "--out", out]
    assert "source classes of the model" in refused(*command, "--split", "2/0/2")
    assert "no setting 'learning_rate'" in refused(*command, "--set", "learning_rate=1")
    assert "use --seed" in refused(*command, "--set", "seed=7")
    assert "no batch is left" in refused(*command, "--limit", 5, "--drop-last")
    assert "'night' 2 times" in refused(*command, "--target", "night")
    assert f"{tree} is a folder" in refused(*adapt_command(tree, tree), "--out", out)
    assert "key=value" in refused(*command, "--set", "lr")
    assert "preset" in refused(*command, "--preset", "mine")
    assert "'tint'" in refused(*command, "--method", "tint")
    assert "'sorted'" in refused(*command, "--order", "sorted")
    assert "CUDA" in refused(*command, "--precision", "float16")
    assert "no such file" in refused(*adapt_command(tree, tmp_path / "missing.safetensors"), "--out", out)
    assert "--out" in refused(*adapt_command(tree, model), "--resume")
    assert "there is none" in refused(*command, "--resume")
    assert list(tmp_path.iterdir()) == []


def test_broken_images_are_skipped_and_named_or_refused(tree: Path, trained: Path, tmp_path: Path) -> None:
    import shutil

    broken = tmp_path / "tree"
    shutil.copytree(tree, broken)
    (broken / "night" / "ape" / "0.png").write_bytes(b"no picture")
    result = run(*adapt_command(broken, trained, "--method", "source-only", "--json"))
    record = json.loads(result.stdout)
    assert [Path(path).name for path in record["protocol"]["skipped"]] == ["0.png"]
    assert "1 images could not be read" in result.stderr
    assert "0.png" in refused(*adapt_command(broken, trained, "--method", "source-only", "--strict"))


def test_import_checkpoint_writes_a_model(tmp_path: Path) -> None:
    norm, linear = nn.BatchNorm1d(256), nn.Linear(2048, 256)
    torch.save(
        {
            "backbone_state_dict": ResNet50().state_dict(),
            "feature_extractor_state_dict": {
                **{f"bottleneck.{name}": value for name, value in linear.state_dict().items()},
                **{f"bn.{name}": value for name, value in norm.state_dict().items()},
            },
            "classifier_state_dict": {
                "fc.weight_g": torch.ones(3, 1),
                "fc.weight_v": torch.randn(3, 256),
                "fc.bias": torch.zeros(3),
            },
        },
        tmp_path / "source_ckpt.pt",
    )
    out = tmp_path / "source.safetensors"
    command = ["import-checkpoint", tmp_path / "source_ckpt.pt", "--out", out]
    assert "3 class names" in refused(*command, "--class-names", "a,b")
    assert not out.exists()
    document = answer(*command, "--class-names", "a, b, c")
    assert document["model"]["class_names"] == ["a", "b", "c"]
    assert SourceModel.load(out).spec.class_names == ("a", "b", "c")


@pytest.mark.parametrize("ending", ["txt", "pt", "safetensors"])
def test_files_that_are_no_weights_are_refused(ending: str, tree: Path, tmp_path: Path) -> None:
    text, out = tmp_path / f"hello.{ending}", tmp_path / "out"
    for content in (b"hello world", b"", b"\x80\x02.", b"PK\x03\x04"):
        text.write_bytes(content)
        assert text.name in refused("import-checkpoint", text, "--out", out)
        assert text.name in refused(*pretrain_command(tree, out), "--weights", text)
    assert "is a folder" in refused("import-checkpoint", tmp_path, "--out", out)
    assert not out.exists()


def test_seeds_are_as_large_as_torch_takes_them(tree: Path, trained: Path) -> None:
    command = adapt_command(tree, trained, "--method", "gmm", "--limit", 8, "--set", "reduced_dim=2")
    for seed in (-1, 2**63, 99999999999999999999999):
        result = run(*command, f"--seed={seed}")
        assert result.exit_code == 2 and "--seed" in result.stderr and result.stdout == ""
    assert answer(*command, "--seed", 2**63 - 1)["protocol"]["seed"] == 2**63 - 1


def test_places_that_take_no_files_are_refused_before_the_work(
    tree: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")

    def unreachable(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr("driftgate.lab.data.datasets.FileData", unreachable)
    monkeypatch.setattr("driftgate.lab.bench.sweep.run_sweep", unreachable)

    def commands(place: Path) -> list[tuple[list[object], Path]]:
        return [
            (adapt_command(tree, trained, "--out", place), place),
            (adapt_command(tree, trained, "--save", place / "saved"), place / "saved"),
            (pretrain_command(tree, place / "model"), place / "model"),
            (["import-checkpoint", trained, "--out", place / "model"], place / "model"),
            (["demo", "--out", place], place),
        ]

    for command, given in commands(tmp_path / "file"):
        assert f"write {given} but" in refused(*command)

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", denied)  # the superuser may write where others may not
    for command, given in commands(tmp_path / "new" / "place"):
        message = refused(*command)
        assert f"write {given} but" in message and "Permission denied" in message
    assert os.listdir(tmp_path) == ["file"]


def test_import_checkpoint_refuses_other_files(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "other.pt")
    assert "backbone_state_dict" in refused("import-checkpoint", tmp_path / "other.pt", "--out", tmp_path / "out")
    message = refused(
        "import-checkpoint", tmp_path / "other.pt", "--out", tmp_path / "o", "--class-names", "a", "--data", "digits"
    )
    assert "both" in message
    assert [path.name for path in tmp_path.iterdir()] == ["other.pt"]
