"""Where ``fuzz.py`` gets its inputs: sound ones, changed in ways that readers stumble over."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-308),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "0", "nan", "gmm", "PDA", "a" * 5000, "\x00", "\x1b[2J"),
    *("\ud800", "ä\u202e", "../../etc/passwd", "1e999", [], [[]], [None], [[[[[[1]]]]]], {}, {"": None}),
    *({"a": {"b": []}}, [1] * 500),
)
WORDS = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\n", b"\r\n", b"\x1b[31m", b"{", b"}", b"[" * 300, b"]", b'"', b"'"),
    *(b":", b"- ", b"&a [*a]", b"*a", b"!!python/object/apply:os.system [x]", b"9" * 400, b"-1", b"1e999", b"NaN"),
    *(b"null", b"~", b"\xf0\x9f\x92\xa9", b"\xc3\x28", b"%s%n", b"..", b"/", b"\t", b"   ", b"0x10", b"1_000"),
)
LABELS = (
    *(b"0", b"1", b"11", b"12", b"-1", b"1.0", b"1e3", b"0x1", b"10" * 16, b"9" * 5000, b"one", b"", b"1_0", b"+1"),
    b"\xd9\xa1",
)
PATHS = (
    *(b"cat/1.png", b"dog/1.png", b"/cat/1.png", b"../cat/1.png", b"./cat/1.png", b"cat//1.png", b"cat/", b"/", b".."),
    *(b".", b"", b"cat/1.png/", b"c at/1 2.png", b"\xff\xfe/x.png", b"cat/\x00.png", b"cat/\x1b.png", b"~/x.png"),
    *(b"a/" * 400 + b"x.png", b"../" * 60 + b"etc/passwd", b"\xef\xbb\xbfcat/1.png", b"x" * 20_000, b"C:\\x.png"),
    "kätze/ü.png".encode(),
)
ODD_KEYS = ("", "seed", "name", "model", "\x1b", "x" * 300, "__class__", "format")


def list_text(draw: random.Random) -> bytes:
    """A list file: some lines ``path label``, some that are none, sometimes changed all over."""
    ends, gaps = (b"\n", b"\r\n", b"\r", b"\n\n", b""), (b" ", b"\t", b"  ", b"", b"\x0b", b"\xc2\xa0")
    lines = []
    for _ in range(draw.randrange(6)):
        sound = draw.random() < 0.6
        path = PATHS[0] if sound else draw.choice(PATHS)
        label = draw.choice(LABELS[:3] if sound else LABELS)
        lines.append(path + (b" " if sound else draw.choice(gaps)) + label + draw.choice(ends[:2] if sound else ends))
    text = b"".join(lines)
    return changed_bytes(text, draw) if draw.random() < 0.3 else text


def changed_bytes(content: bytes, draw: random.Random) -> bytes:
    """The same with one to four changes: a bit flipped, a word put in, a part left out, doubled, moved or cut off."""
    data = bytearray(content)
    for _ in range(draw.randrange(1, 5)):
        place = draw.randrange(len(data) + 1)
        end = min(len(data), place + draw.choice([1, 1, 2, 8, 100]))
        kind = draw.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            data[place:place] = draw.choice(WORDS)
        elif kind == 2:
            del data[place:end]
        elif kind == 3:
            data[place:place] = data[place:end] * draw.randrange(1, 4)
        elif kind == 4:
            data[place:end] = bytes(draw.randrange(256) for _ in range(end - place))
        elif draw.random() < 0.2:
            del data[place:]
    return bytes(data)


def changed_document(document: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """The same with one to three places changed: another value, none at all, one more, or something nested deep."""
    copied: dict[str, Any] = _copy(document)
    for _ in range(draw.randrange(1, 4)):
        _change(copied, draw)
    return copied


def _change(place: Any, draw: random.Random) -> None:
    keys = list(place) if isinstance(place, dict) else list(range(len(place)))
    if not keys:
        return
    key = draw.choice(keys)
    inner = place[key]
    if isinstance(inner, dict | list) and inner and draw.random() < 0.6:
        _change(inner, draw)
        return
    kind = draw.randrange(5)
    if kind == 0:
        del place[key]
    elif kind == 1 and isinstance(place, dict):
        place[draw.choice(ODD_KEYS)] = _copy(draw.choice(ODD_VALUES))
    elif kind == 2:
        deep: Any = []
        for _ in range(draw.choice([3, 3, 3, 3, 3, 100, 400])):  # what is deep is slow: YAML takes the square of it
            deep = [deep] if draw.random() < 0.5 else {"a": deep}
        place[key] = deep
    else:
        place[key] = _copy(draw.choice(ODD_VALUES))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return [_copy(item) for item in value] if isinstance(value, list | tuple) else value


def odd_tensor(tensor: Tensor, draw: random.Random) -> Tensor:
    """A tensor that does not belong in this place: of another type, shape or value."""
    kind = draw.randrange(6)
    if kind == 0:
        return tensor.to(draw.choice([torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool]))
    if kind == 1:
        return torch.zeros(draw.choice([(), (0,), (1,), (3, 0), (2, 2, 2), (5056,)]), dtype=tensor.dtype)
    if kind == 2:
        return tensor.reshape(-1)[: draw.randrange(tensor.numel() + 1)].clone()
    if not tensor.is_floating_point():
        return tensor + draw.choice([1, -1, 100])
    if kind == 3:
        return tensor * draw.choice([0.0, -1.0, 1e30, 1e-30])
    changed = tensor.clone()
    if changed.numel():
        changed.reshape(-1)[draw.randrange(changed.numel())] = draw.choice([float("nan"), float("inf"), -1e38, -1.0])
    return changed
