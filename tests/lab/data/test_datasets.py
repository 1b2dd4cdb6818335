from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driftgate.lab.data.datasets import DataSet, open_dataset
from driftgate.lab.data.loading import Transform
from driftgate.shifts import Shift
from driftgate.types import DriftgateError

MakeTree = Callable[[Path, dict[str, int]], Path]

SPLITS = {
    "domainnet": ("200/145/0", "200/0/145", "150/50/145"),
    "visda": ("6/6/0", "6/0/6", "6/3/3"),
    "office-home": ("25/40/0", "25/0/40", "10/5/50"),
    "pacs": ("4/3/0", "4/0/3", "3/2/2"),
    "digits": ("6/4/0", "6/0/4", "4/3/3"),
}
CLASSES = {"domainnet": 345, "visda": 12, "office-home": 65, "pacs": 7}
DOMAINS = {
    "domainnet": ("clipart", "painting", "real", "sketch"),
    "visda": ("train", "validation"),
    "office-home": ("art", "clipart", "product", "real_world"),
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
}


def make_dataset(name: str, root: Path, make_tree: MakeTree) -> DataSet:
    for domain in DOMAINS[name]:
        make_tree(root / domain, {f"class{index:03d}": 1 for index in range(CLASSES[name])})
    return open_dataset(name, root)


@pytest.mark.parametrize("name", ["domainnet", "visda", "office-home", "pacs"])
def test_splits_of_the_paper(name: str, tmp_path: Path, make_tree: MakeTree) -> None:
    data = make_dataset(name, tmp_path, make_tree)
    assert data.domains == DOMAINS[name]
    assert tuple(str(data.split(shift)) for shift in Shift) == SPLITS[name]
    for shift in Shift:
        split = data.split(shift.value.lower(), "paper")
        assert split.shift is shift and split.order == "paper" and split.num_classes == CLASSES[name]


def test_digits_need_no_folder() -> None:
    data = open_dataset("digits")
    assert tuple(str(data.split(shift)) for shift in Shift) == SPLITS["digits"]
    assert data.targets("rendered") == ("mnist",)
    assert data.targets("mnist") == ("rendered", "uci")
    domain = data.domain("uci")
    assert len(domain) == len(domain.classes) == 1797
    assert domain.load(0, Transform((28, 28))).shape == (3, 28, 28)
    first, again, other = (data.domain("rendered", seed=seed) for seed in (0, 0, 1))
    same = [bool((first.load(7, t) == again.load(7, t)).all()) for t in [Transform((28, 28))]]
    assert same == [True]
    assert any((first.load(i, Transform((28, 28))) != other.load(i, Transform((28, 28)))).any() for i in range(20))


@pytest.mark.parametrize(
    ("name", "folder", "domain"),
    [
        ("office-home", "Real World", "real_world"),
        ("office-home", "RealWorld", "real_world"),
        ("office-home", "Realworld", "real_world"),
        ("office-home", "Real_World", "real_world"),
        ("office-home", "Art", "art"),
        ("pacs", "Art-Painting", "art_painting"),
        ("domainnet", "Clipart", "clipart"),
        ("visda", "Validation", "validation"),
    ],
)
def test_usual_spellings(name: str, folder: str, domain: str, tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / folder, {"a": 2, "b": 1})
    data = open_dataset(name, tmp_path)
    assert data.domains == (domain,)
    assert data.domain(folder) is data.domain(domain)
    assert data.domain(domain).classes.tolist() == [0, 0, 1]


@pytest.mark.parametrize("inner", ["VISDA-C", "visda-2017", "VisDA", "data/visda"])
def test_folder_above_the_data_set(inner: str, tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / inner / "train", {"a": 1})
    make_tree(tmp_path / "unrelated", {"b": 1})
    data = open_dataset("visda", tmp_path)
    assert data.domains == ("train",)
    assert data.class_names == ("a",)


def test_targets(tmp_path: Path, make_tree: MakeTree) -> None:
    data = make_dataset("office-home", tmp_path / "o", make_tree)
    assert data.targets("Clipart") == ("art", "product", "real_world")
    data = make_dataset("visda", tmp_path / "v", make_tree)
    assert data.targets("train") == ("validation",)


def test_glc_lists_inside_the_domains(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "Painting", {"The_Wall": 2, "axe": 2, "bee": 1})
    (tmp_path / "Painting" / "image_unida_list.txt").write_text("axe/image_00001.jpg 1\nThe_Wall/image_00000.jpg 0\n")
    make_tree(tmp_path / "clipart", {"The_Wall": 1, "axe": 1, "bee": 1})
    data = open_dataset("domainnet", tmp_path)
    assert data.class_names == ("The_Wall", "axe", "bee")
    painting = data.domain("painting")
    assert painting.classes.tolist() == [1, 0]
    assert painting.describe(0).endswith("Painting/axe/image_00001.jpg")
    assert data.domain("clipart").classes.tolist() == [0, 1, 2]


@pytest.mark.parametrize("prefix", ["validation/", "", "/gpfs/me/VISDA-C/validation/"])
def test_lists_beside_the_domains(prefix: str, tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "VISDA-C" / "validation", {"bus": 1, "car": 2})
    lines = [f"{prefix}bus/image_00000.jpg 0", f"{prefix}car/image_00001.jpg 1"]
    (tmp_path / "VISDA-C" / "validation_list.txt").write_text("\n".join(lines))
    data = open_dataset("visda", tmp_path)
    domain = data.domain("validation")
    assert data.class_names == ("bus", "car") and domain.classes.tolist() == [0, 1]
    assert domain.load(1, Transform((8, 8))).shape == (3, 8, 8)


def test_label_out_of_range(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "train", {"bus": 1})
    (tmp_path / "train_list.txt").write_text("train/bus/image_00000.jpg 0\ntrain/bus/image_00000.jpg 12\n")
    with pytest.raises(DriftgateError, match=r"from 0 to 11 in line 2 of .*train_list\.txt but got 12"):
        open_dataset("visda", tmp_path)


def test_classes_of_all_domains_count(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "day", {"cat": 1, "dog": 1})
    make_tree(tmp_path / "night", {"ant": 1, "dog": 2, "nothing": 0})
    data = open_dataset("folder", tmp_path)
    assert data.class_names == ("ant", "cat", "dog")
    assert data.domain("day").classes.tolist() == [1, 2]
    assert data.domain("night").classes.tolist() == [0, 2, 2]
    assert str(data.split("OPDA", custom="1/1/1")) == "1/1/1"
    with pytest.raises(DriftgateError, match="give --split"):
        data.split("OPDA")


def test_lists_without_class_folders_go_by_numbers(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path, {"pool": 3})
    (tmp_path / "day_list.txt").write_text("pool/image_00000.jpg 2\npool/image_00001.jpg 0\n")
    data = open_dataset("folder", tmp_path)
    assert data.domains == ("day",)
    assert data.class_names == ("class_000", "class_001", "class_002")


def test_wrong_root(tmp_path: Path, make_tree: MakeTree) -> None:
    with pytest.raises(DriftgateError, match="does not exist; give its path with --root"):
        open_dataset("visda", tmp_path / "nowhere")
    make_tree(tmp_path / "cats", {"a": 1})
    with pytest.raises(DriftgateError, match=r"train, validation.*but found cats"):
        open_dataset("visda", tmp_path)
    with pytest.raises(DriftgateError, match="give --root"):
        open_dataset("visda")
    with pytest.raises(DriftgateError, match="is a file"):
        open_dataset("visda", tmp_path / "cats" / "a" / "image_00000.jpg")


def test_root_without_domains(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path, {"cat": 1, "dog": 1})
    with pytest.raises(DriftgateError, match="folder of the domain's name around"):
        open_dataset("folder", tmp_path)


def test_missing_domain(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "Painting", {"a": 1})
    data = open_dataset("domainnet", tmp_path)
    with pytest.raises(DriftgateError, match=r"only painting is there; put its images into .*sketch/<class>/"):
        data.domain("sketch")
    with pytest.raises(DriftgateError, match="out of painting but got 'moon'"):
        data.domain("moon")
    with pytest.raises(DriftgateError, match="target domain beside painting"):
        data.targets("painting")


def test_same_domain_twice(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "Real_World", {"a": 1})
    make_tree(tmp_path / "RealWorld", {"a": 1})
    with pytest.raises(DriftgateError, match="found RealWorld and Real_World"):
        open_dataset("office-home", tmp_path)


def test_class_counts_that_do_not_fit(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "photo", dict.fromkeys("abcdef", 1))
    data = open_dataset("pacs", tmp_path)
    with pytest.raises(DriftgateError, match=r"at least 7 classes for the split 3/2/2 but pacs has 6"):
        data.split("OPDA")
    assert str(data.split("OPDA", custom="2/2/2")) == "2/2/2"
    with pytest.raises(DriftgateError, match="2/0/2 makes ODA"):
        data.split("OPDA", custom="2/0/2")
    assert data.split(custom="2/0/2").shift is Shift.ODA
    with pytest.raises(DriftgateError, match="PDA, ODA, OPDA"):
        data.split("XDA")
    make_tree(tmp_path / "sketch", dict.fromkeys("ghi", 1))
    with pytest.raises(DriftgateError, match="Expected 7 classes in pacs but found 9"):
        open_dataset("pacs", tmp_path)


def test_unknown_name() -> None:
    with pytest.raises(DriftgateError, match="domainnet, visda, office-home, pacs, digits, folder"):
        open_dataset("imagenet")


def test_real_pacs(pacs_root: Path) -> None:
    data = open_dataset("pacs", pacs_root)
    assert data.class_names == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert [len(data.domain(name)) for name in data.domains] == [2048, 2344, 1670, 3929]
    assert data.domain("photo").load(0, Transform((112, 112))).shape == (3, 112, 112)
