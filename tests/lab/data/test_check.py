from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from driftgate.lab.data.check import DataReport, check_dataset

MakeTree = Callable[[Path, dict[str, int]], Path]


@pytest.fixture(scope="module")
def visda_report(visda_root: Path) -> DataReport:
    return check_dataset("visda", visda_root)


def targets(report: DataReport, domain: str) -> dict[str, int]:
    return {split.shift: split.target_images[domain] for split in report.splits}


def test_visda_target_sizes_shared_first(visda_report: DataReport) -> None:
    assert targets(visda_report, "validation") == {"PDA": 28_978, "ODA": 55_388, "OPDA": 41_043}
    assert visda_report.ok and visda_report.missing == []
    validation = visda_report.domains[1]
    assert validation.images == 55_388 and validation.per_class["car"] == 10_401


def test_visda_target_sizes_in_the_order_of_the_paper(visda_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "driftgate.lab.data.check.check_header", lambda path, max_pixels: None
    )  # headers were read above
    report = check_dataset("visda", visda_root, "paper")
    assert targets(report, "validation") == {"PDA": 26_410, "ODA": 55_388, "OPDA": 43_577}


def test_report_for_people_and_programs(visda_report: DataReport) -> None:
    text = "\n".join(visda_report.lines())
    assert "55,388" in text and "28,978" in text and "41,043" in text and "skateboard" in text
    found = json.loads(json.dumps(visda_report.to_dict()))
    assert found["ok"] is True and found["splits"][2]["split"] == "6/3/3"
    assert DataReport.model_validate({key: value for key, value in found.items() if key != "ok"}) == visda_report


def test_what_is_missing_and_where_to_put_it(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "train", {"bus": 2, "car": 1})
    make_tree(tmp_path / "Validation", {"bus": 2, "car": 0})
    report = check_dataset("visda", tmp_path)
    text = "\n".join(report.lines())
    assert not report.ok
    assert "10 of 12 classes in all domains" in text
    assert "1 of 2 classes in validation (car)" in text
    assert "PDA: Expected at least 12 classes for the split 6/6/0 but visda has 2" in text
    (tmp_path / "only").mkdir()
    make_tree(tmp_path / "only" / "train", {"bus": 1})
    report = check_dataset("visda", tmp_path / "only")
    assert any("domain validation" in line and "validation/<class>/" in line for line in report.missing)


def test_a_tree_that_is_hardly_meant_is_warned_of(tmp_path: Path, make_tree: MakeTree) -> None:
    """``domain/images/class`` reads as one class called images, and everything would seem to be there."""
    for domain in ("day", "night"):
        make_tree(tmp_path / "deep" / domain / "images", {"bus": 2, "car": 1})
        make_tree(tmp_path / "flat" / domain, {"bus": 2, "car": 1})
    text = "\n".join(check_dataset("folder", tmp_path / "deep").lines())
    assert "there is one class only, 'images'" in text and "lie in folders inside it (bus, car ...)" in text
    assert check_dataset("folder", tmp_path / "flat").warnings == []


def test_unreadable_files(tmp_path: Path, make_tree: MakeTree, make_picture: Callable[..., Path]) -> None:
    make_tree(tmp_path / "day", {"cat": 3, "dog": 3})
    (tmp_path / "day" / "cat" / "text.jpg").write_text("no image")
    whole = make_picture(tmp_path / "day" / "dog" / "half.jpg", size=(256, 256))
    whole.write_bytes(whole.read_bytes()[:-500])
    by_header = check_dataset("folder", tmp_path)
    assert [line.split(" (")[0] for line in by_header.domains[0].unreadable] == [str(tmp_path / "day/cat/text.jpg")]
    seen: list[tuple[str, int, int]] = []
    by_pixels = check_dataset("folder", tmp_path, verify=True, progress=lambda *place: seen.append(place))
    found = [Path(line.split(" (")[0]).name for line in by_pixels.domains[0].unreadable]
    assert found == ["text.jpg", "half.jpg"] and not by_pixels.ok
    assert seen == [("day", done, 8) for done in range(1, 9)]
    assert any("half.jpg" in line for line in by_pixels.lines())


def test_custom_split(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "day", {"a": 1, "b": 2, "c": 4})
    assert "give one like --split 10/5/50" in "\n".join(check_dataset("folder", tmp_path).lines())
    (split,) = check_dataset("folder", tmp_path, custom="1/1/1").splits
    assert (split.shift, split.source_images, split.target_images) == ("OPDA", {"day": 3}, {"day": 5})
    (split,) = check_dataset("folder", tmp_path, "paper", custom="1/1/1").splits
    assert split.target_images == {"day": 6}
    (split,) = check_dataset("folder", tmp_path, custom="2/1/1").splits
    assert split.problem is not None and "at least 4 classes" in split.problem


def test_list_without_images_is_reported(tmp_path: Path, make_tree: MakeTree) -> None:
    make_tree(tmp_path / "day", {"a": 1, "b": 1})
    (tmp_path / "night_list.txt").write_text("night/a/1.jpg 0\nnight/b/1.jpg 1\n")
    report = check_dataset("folder", tmp_path)
    assert [domain.name for domain in report.domains] == ["day"]
    assert any("put the images beside the list" in line for line in report.missing)


def test_digits() -> None:
    report = check_dataset("digits")
    assert report.ok and report.root is None
    assert targets(report, "mnist") == {"PDA": 3000, "ODA": 5000, "OPDA": 3500}
