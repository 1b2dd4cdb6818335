"""How a network computes: the precision a device has by itself, and one way through torch's attention."""

from __future__ import annotations

import platform
import threading
from typing import Literal, get_args

import torch

from driftgate.types import DriftgateError

X86 = ("x86_64", "AMD64")
"""What ``platform.machine`` calls Intel's and AMD's processors."""

Precision = Literal["float32", "bfloat16", "float16"]
"""What the backbone computes in; weights, head and memory are float32 always."""


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Inside, layers compute in ``precision``; nothing changes for float32."""
    low = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, low, enabled=precision != "float32")


class OneAttention:
    """Let torch's attention take the same way with and without gradients, so that ``predict`` and ``step`` agree.

    The switch is the whole process's: the first thread that comes in turns it, the last one that leaves turns it back.
    """

    def __init__(self) -> None:
        self.lock, self.inside, self.before = threading.Lock(), 0, True

    def __enter__(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.before = torch.backends.mha.get_fastpath_enabled()
                torch.backends.mha.set_fastpath_enabled(False)
            self.inside += 1

    def __exit__(self, *error: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0:
                torch.backends.mha.set_fastpath_enabled(self.before)


one_attention = OneAttention()


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse what the device does not compute in by itself."""
    if precision not in get_args(Precision):
        raise DriftgateError(
            f"Expected precision out of {', '.join(get_args(Precision))} but got {precision!r}; name one of them."
        )
    if precision == "bfloat16" and not has_bfloat16(device.type):
        raise DriftgateError(
            "Expected a machine that computes in bfloat16 but this one only emulates it, slower than float32; "
            "use precision float32."
        )
    if precision == "float16" and device.type != "cuda":
        raise DriftgateError(
            f"Expected a CUDA device for precision float16 but got {device.type}; use bfloat16, or float32."
        )


def has_bfloat16(device: str = "cpu") -> bool:
    """Whether the device multiplies matrices in bfloat16 by itself."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device != "cpu" or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    # oneDNN's answer is yes for every AVX-512, also where it emulates, three times slower than float32.
    return platform.machine() not in X86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
