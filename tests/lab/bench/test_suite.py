from __future__ import annotations

from pathlib import Path

import pytest

from driftgate.lab.bench.plan import make_plan
from driftgate.lab.bench.suite import MethodEntry, Pair, Suite, builtin_suites, parse_seeds, parse_suite, read_suite
from driftgate.lab.data.digits import load_digits
from driftgate.lab.data.loading import resized
from driftgate.lab.pretrain import PretrainSettings
from driftgate.shifts import Shift
from driftgate.types import DriftgateError

OWN = """
name: mine
title: My own
data: folder
backbone: cnn
pairs:
  - day -> night+dusk
  - {source: dusk, targets: [night]}
shifts: [PDA, OPDA]
splits: {PDA: 2/1/0, OPDA: 1/1/1}
methods:
  - source-only
  - {name: gmm, preset: paper, settings: {lr: 1e-3}, shifts: [OPDA]}
seeds: [3, 5]
training: {epochs: 1, held_out: 0.2}
"""


def own(**changes: object) -> dict[str, object]:
    """A suite that is right, but for the changes."""
    return {"name": "mine", "data": "digits", "pairs": ["rendered -> uci"], "methods": ["source-only"], **changes}


def test_the_builtin_suites() -> None:
    assert set(builtin_suites()) == {
        "demo",
        "digits",
        "digits-long",
        "domainnet",
        "office-home",
        "office-home-160",
        "pacs",
        "visda",
        "visda-vit",
    }
    for name in builtin_suites():
        suite = read_suite(name)
        assert suite.name == name and suite.title and suite.shifts == tuple(Shift)


@pytest.mark.parametrize(
    ("name", "pairs", "batch_size", "lr", "p_reject", "epochs", "source_lr"),
    [
        ("visda", 1, 64, 0.01, 0.5, 10, 0.001),
        ("visda-vit", 1, 64, 0.01, 0.5, 10, 0.001),
        ("domainnet", 12, 64, 0.001, 0.5, 50, 0.01),
        ("office-home", 4, 32, 0.001, 0.25, 50, 0.01),
    ],
)
def test_the_papers_suites_have_what_the_paper_states(
    name: str, pairs: int, batch_size: int, lr: float, p_reject: float, epochs: int, source_lr: float
) -> None:
    suite = read_suite(name)
    assert (len(suite.pairs), suite.batch_size, len(suite.seeds)) == (pairs, batch_size, 6)
    gmm = next(entry for entry in suite.methods if entry.name == "gmm").resolve(suite.data, 4)
    assert (gmm["lr"], gmm["p_reject"], gmm["seed"]) == (lr, p_reject, 4)
    assert (gmm["reduced_dim"], gmm["decay"], gmm["init_batches"], gmm["temperature"]) == (64, 0.999, 30, 0.1)
    training = suite.training_settings(0)
    assert (training.epochs, training.lr, training.batch_size) == (epochs, source_lr, 64)
    under = {shift: {entry.name for entry in suite.methods if entry.runs_under(shift)} for shift in Shift}
    assert "shot-p" in under[Shift.PDA] and "shot-o" not in under[Shift.PDA]
    assert "shot-o" in under[Shift.ODA] & under[Shift.OPDA] and "shot-p" not in under[Shift.ODA] | under[Shift.OPDA]
    assert all(len(names) == 9 for names in under.values())


def test_office_home_and_pacs_mix_all_other_domains() -> None:
    for name in ("office-home", "pacs"):
        sources = {pair.source for pair in read_suite(name).pairs}
        for pair in read_suite(name).pairs:
            assert set(pair.targets) == sources - {pair.source} and len(sources) == 4
    ordered = {(pair.source, pair.targets) for pair in read_suite("domainnet").pairs}
    assert len(ordered) == 12 and all(len(targets) == 1 for _, targets in ordered)


def test_office_home_is_the_papers_and_the_smaller_one_differs_in_size_and_methods() -> None:
    paper, small = read_suite("office-home"), read_suite("office-home-160")
    assert (paper.data, paper.backbone, paper.input_size, paper.class_order) == (
        "office-home",
        "resnet50",
        (224, 224),
        "shared-first",
    )
    assert (resized(224), resized(160)) == (256, 183)
    assert (small.input_size, small.seeds) == ((160, 160), (0,))
    own = {"name", "title", "input_size", "methods", "seeds"}
    assert small.model_dump(exclude=own) == paper.model_dump(exclude=own)
    assert [entry for entry in small.methods if entry in paper.methods] == list(paper.methods)
    assert {entry.name for entry in small.methods} - {entry.name for entry in paper.methods} == {
        "bn-stats",
        "gmm-comet",
    }


def test_source_training_by_hand() -> None:
    suite = read_suite("office-home").with_settings(["training.epochs=8", "training.backbone_norm=running"])
    training = suite.training_settings(0)
    assert (training.epochs, training.backbone_norm, training.lr) == (8, "running", 0.01)
    assert suite.methods == read_suite("office-home").methods
    with pytest.raises(DriftgateError, match="epochs"):
        read_suite("office-home").with_settings(["training.epochs=0"])
    with pytest.raises(DriftgateError, match="the seed of source training"):
        read_suite("office-home").with_settings(["training.seed=1"])


def test_digits_is_the_demo() -> None:
    suite = read_suite("digits").select(methods=["gmm"])
    assert len(read_suite("digits").methods) == 14
    plan = make_plan(suite)
    assert len(plan.models) == len(plan.runs) == 9
    for model in plan.models:
        assert PretrainSettings(**model.training) == PretrainSettings.for_dataset("digits", seed=model.seed)
        assert (model.source, model.suite.backbone, model.per_class) == ("rendered", "cnn", None)
    assert {run.targets for run in plan.runs} == {("mnist",)} and {run.batch_size for run in plan.runs} == {64}
    from driftgate.lab.data.datasets import open_cached

    images, _ = load_digits("rendered", seed=2, per_class=500)
    domain = open_cached("digits", None).domain("rendered", seed=2)
    assert (domain.images == images).all()  # type: ignore[attr-defined]


def test_digits_long_has_two_thousand_batches_under_every_shift() -> None:
    suite = read_suite("digits-long").changed(seeds=[1], methods=["source-only"])
    assert [entry.name for entry in read_suite("digits-long").methods] == [
        "source-only",
        "bn-stats",
        "gmm-comet",
        "gmm",
    ]
    assert suite.training_settings(1) == read_suite("digits").training_settings(1), (
        "the source models are those of digits"
    )
    for run in make_plan(suite).runs:
        stream = run.open_stream((28, 28))
        assert (len(stream), stream.num_samples) == (2000, 128_000)
        assert stream.domains[0].seed == run.seed  # type: ignore[attr-defined]
    assert {run.limit for run in make_plan(suite, limit=5).runs} == {5}, "the command line has the last word"


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(OWN)
    suite = read_suite(file)
    assert suite.pairs == (Pair(source="day", targets=("night", "dusk")), Pair(source="dusk", targets=("night",)))
    assert suite.seeds == (3, 5) and suite.splits == {Shift.PDA: "2/1/0", Shift.OPDA: "1/1/1"}
    gmm = suite.methods[1]
    assert gmm.resolve("folder", 3)["lr"] == 0.001 and gmm.resolve("folder", 3)["gate"] == "frozen"
    assert suite.training_settings(3).held_out == 0.2
    assert parse_suite(suite.model_dump(mode="json"), "itself") == suite


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "no key 'colour', expected one of .*name, title, data"),
        ({"methods": [{"name": "gmm", "lr": 0.1}]}, "expected one of name, preset, settings, shifts"),
        ({"data": "imagenet"}, "data must be one of .*digits.* but is 'imagenet'"),
        ({"pairs": ["a -> b -> c"]}, "Expected a pair like 'photo -> cartoon\\+sketch'"),
        ({"pairs": ["a ->"]}, "Expected a pair like"),
        ({"pairs": ["a -> b+b"]}, "each target of a pair once"),
        ({"pairs": []}, "pairs"),
        ({"pairs": None}, "pairs: expected one or a list of them, got None"),
        ({"methods": 5}, "methods: expected one or a list of them, got 5"),
        ({"methods": ["gmm", "gmm"]}, "methods: expected each once but gmm"),
        ({"methods": [{"name": "gmm", "settings": {"seed": 3}}]}, "a method's seed is the run's"),
        ({"shifts": ["XDA"]}, "shifts.0: .*got 'XDA'; mend"),
        ({"seeds": [1, 1]}, "seeds: expected each once"),
        ({"seeds": [-1]}, "seeds.0: .*got -1"),
        ({"seeds": 0}, "seeds"),
        ({"training": {"epoch": 3}}, "epoch"),
        ({"training": {"seed": 3}}, "seed of source training"),
        ({"splits": {"PDA": "3/2/1"}}, "3/2/1 makes OPDA, not PDA"),
        ({"input_size": 4}, "input_size.*greater than or equal to 8"),
        ({"name": "../up"}, "name"),
        ({"limit": 0}, "limit: .*got 0"),
        ({"batch_size": "many"}, "batch_size: .*got 'many'"),
    ],
)
def test_what_is_wrong_is_said(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DriftgateError, match=message) as caught:
        parse_suite(own(**changes), "suite mine")
    assert "suite mine" in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DriftgateError, match="did you mean digits"):
        read_suite("digit")
    (tmp_path / "list.yaml").write_text("- a\n- b\n")
    with pytest.raises(DriftgateError, match="but got list"):
        read_suite(tmp_path / "list.yaml")
    (tmp_path / "broken.yaml").write_text("name: [")
    with pytest.raises(DriftgateError, match=r"Expected YAML in .*broken\.yaml"):
        read_suite(tmp_path / "broken.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(DriftgateError, match=r"Expected YAML in .*binary\.yaml"):
        read_suite(tmp_path / "binary.yaml")
    with pytest.raises(DriftgateError, match="'data' is missing"):
        parse_suite({"name": "mine", "pairs": ["a"], "methods": ["gmm"]}, "here")


def test_selecting_a_part() -> None:
    suite = read_suite("pacs")
    part = suite.select(methods=["gmm", "bn-stats"], shifts=["oda"], pairs=["photo"], seeds="2")
    assert [entry.name for entry in part.methods] == ["gmm", "bn-stats"]
    assert part.shifts == (Shift.ODA,) and part.seeds == (0, 1)
    assert part.pairs == tuple(pair for pair in suite.pairs if pair.source == "photo")
    # The order of the targets makes no other pair; a pair the suite has not is added.
    assert suite.select(pairs=["photo->sketch+cartoon+art_painting"]).pairs == part.pairs
    assert suite.select(pairs=["photo->sketch"]).pairs == (Pair(source="photo", targets=("sketch",)),)
    assert suite.select() == suite
    kept = read_suite("visda").select(methods=["shot-o", "bn-stats"])
    assert kept.methods[0].shifts == (Shift.ODA, Shift.OPDA) and kept.methods[1] == MethodEntry(name="bn-stats")


def test_seeds() -> None:
    assert parse_seeds("3") == (0, 1, 2) and parse_seeds("0,4") == (0, 4) and parse_seeds("4,") == (4,)
    for wrong in ("0", "", "x", "-1", "1.5", ","):
        with pytest.raises(DriftgateError, match="number of seeds"):
            parse_seeds(wrong)


def test_another_backbone_has_its_own_weights_and_size() -> None:
    suite = read_suite("visda").with_backbone(None, weights="none", input_size=96)
    assert (suite.backbone, suite.weights, suite.input_size) == ("resnet50", "none", (96, 96))
    assert suite.with_backbone(None) == suite
    other = suite.with_backbone("cnn")
    assert (other.backbone, other.weights, other.input_size) == ("cnn", None, None)
    own = suite.with_backbone("cnn", weights="mine.pth", input_size=48)  # what is given wins over the backbone's own
    assert (own.backbone, own.weights, own.input_size) == ("cnn", "mine.pth", (48, 48))
    older = suite.with_backbone("resnet50-v1")
    assert (older.backbone, older.weights, older.input_size) == ("resnet50-v1", None, (96, 96))
    with pytest.raises(DriftgateError, match=r"--weights resnet50\.safetensors"):
        make_plan(read_suite("visda"))
    with pytest.raises(DriftgateError, match=r"nowhere\.pth is none"):
        make_plan(read_suite("visda").with_backbone(None, weights="nowhere.pth"))


def test_settings_by_hand() -> None:
    suite = Suite(**own(methods=["source-only", "gmm"]))  # type: ignore[arg-type]
    changed = suite.with_settings(["gmm.lr=1e-4", "gmm.gate=frozen", "gmm.preset=paper"])
    resolved = changed.methods[1].resolve("digits", 0)
    assert (resolved["lr"], resolved["gate"], resolved["kl_form"]) == (1e-4, "frozen", "paper")
    assert changed.methods[0] == suite.methods[0]
    for wrong, message in (("gmm.lr", "METHOD.SETTING=VALUE"), ("lr=3", "METHOD.SETTING"), ("tent.lr=1", "--methods")):
        with pytest.raises(DriftgateError, match=message):
            suite.with_settings([wrong])


def test_methods_and_networks_are_looked_up_when_a_suite_is_run_not_when_it_is_read() -> None:
    suite = parse_suite(own(methods=["source-onyl"]), "here")
    with pytest.raises(DriftgateError, match="did you mean source-only"):
        make_plan(suite)
    small = own(backbone="cnn")
    for name in ("foo", "timm/foo"):
        with pytest.raises(DriftgateError, match=r"Expected a backbone|needs timm|model of timm"):
            make_plan(parse_suite({**small, "backbone": name}, "here"))
    for layers in ("nolayer", "norm,backbone.nolayer"):
        entry = {"name": "gmm", "settings": {"adapt_layers": layers}}
        with pytest.raises(DriftgateError, match=r"nolayer'; layers of this model are backbone"):
            make_plan(parse_suite({**small, "methods": [entry]}, "here"))
    entry = {"name": "gmm", "settings": {"adapt_layers": "norm, backbone.layers.0"}}
    assert make_plan(parse_suite({**small, "methods": [entry]}, "here")).runs
    with pytest.raises(DriftgateError, match="no setting 'lrr'"):
        make_plan(parse_suite(own(methods=[{"name": "gmm", "settings": {"lrr": 1}}]), "here"))
    with pytest.raises(DriftgateError, match="Expected a preset of 'gmm'"):
        make_plan(parse_suite(own(methods=[{"name": "gmm", "preset": "nice"}]), "here"))


def test_a_preset_called_like_the_data_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from driftgate.methods.gmm import GMM

    monkeypatch.setattr(GMM, "presets", {**GMM.presets, "digits": {"lr": 0.5}})
    entry = MethodEntry(name="gmm")
    assert entry.resolve("digits", 0)["lr"] == 0.5 and entry.preset_for("pacs") is None
    assert MethodEntry(name="gmm", preset="default").resolve("digits", 0)["lr"] == 0.001
    assert MethodEntry(name="gmm", settings={"lr": 0.2}).resolve("digits", 0)["lr"] == 0.2


@pytest.mark.parametrize(
    "text",
    [
        "seeds: 2147483648",
        f"seeds: {'9' * 5000}",
        f"training: {'[' * 2000}{']' * 2000}",
        "title: 2020-99-99",
        "splits: &a {PDA: *a}",
        "title: &a [*a]",
        "? [a, b]\n: 1",
    ],
)
def test_absurd_yaml_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "suite.yaml"
    file.write_text(f"name: x\ndata: digits\npairs: [a -> b]\nmethods: [gmm]\n{text}\n")
    with pytest.raises(DriftgateError, match="Expected"):
        read_suite(file)


def test_seeds_have_an_end() -> None:
    with pytest.raises(DriftgateError, match="at most 10000 seeds"):
        parse_seeds("99999999999999")
