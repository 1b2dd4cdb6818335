"""Backbone weights from a file, in the naming of torchvision or timm, without a hub and without unpickling code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from driftgate.types import DriftgateError

HEADS = ("fc", "head", "heads", "classifier", "_fc", "head_dist")
"""What libraries call the ImageNet classifier on top of a backbone; it is never needed."""

WRAPPERS = ("state_dict", "model", "model_state_dict", "state_dict_ema", "model_ema")
"""Names under which training scripts store the weights beside other things."""

ARCHITECTURE_KEYS = ("arch", "architecture")
"""Where the metadata of a .safetensors file may say what network its weights are of."""

TORCHVISION_VIT = (
    (r"^class_token$", "cls_token"),
    (r"^conv_proj\.", "patch_embed.proj."),
    (r"^encoder\.pos_embedding$", "pos_embed"),
    (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_1\.", ".norm1."),
    (r"\.ln_2\.", ".norm2."),
    (r"\.self_attention\.in_proj_", ".attn.qkv."),
    (r"\.self_attention\.out_proj\.", ".attn.proj."),
    (r"\.mlp\.(?:0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:3|linear_2)\.", ".mlp.fc2."),
)
"""From torchvision's names of a vision transformer to timm's; the ResNets are named alike in both."""


def read_tensors(path: str | Path) -> dict[str, Any]:
    """The content of a .safetensors file, or of a .pth/.pt file that holds nothing but tensors and plain containers."""
    path = Path(path)
    if path.is_dir():
        raise DriftgateError(f"Expected a file of weights but {path} is a folder; name the file in it.")
    if not path.is_file():
        raise DriftgateError(
            f"Expected a file of weights at {path} but there is no such file; look at the path, or take weights none "
            "for random ones."
        )
    try:
        content: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # the unpickler stumbles over foreign bytes in any way: KeyError, IndexError, ...
        reason = (str(error).strip().splitlines() or [""])[0]
        if type(error) not in (RuntimeError, ValueError, OSError):
            reason = f"{type(error).__name__} {reason}".rstrip()
        raise DriftgateError(
            f"Expected a .safetensors file or a .pth file of plain tensors but {path} cannot be read as one: "
            f"{reason}; save the state_dict of a network there."
        ) from error
    if not isinstance(content, dict):
        raise DriftgateError(
            f"Expected a dictionary of tensors in {path} but got {type(content).__name__}; save the state_dict."
        )
    return content


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The weights in a file by name, taken out of a training script's wrapping."""
    content = read_tensors(path)
    for wrapper in WRAPPERS:
        if isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    tensors = {name: tensor for name, tensor in content.items() if isinstance(name, str) and isinstance(tensor, Tensor)}
    if not tensors:
        raise DriftgateError(
            f"Expected tensors in {path} but found {', '.join(map(str, content)) or 'nothing'}; save the state_dict "
            "of a network there."
        )
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors


def stated_version(path: str | Path) -> str | None:
    """The network's version in a file's metadata, ``1.5`` of ``arch: ResNet-50 v1.5``; None if it states none.

    Only .safetensors files have metadata; a file that cannot be read is left to ``read_tensors`` to refuse.
    """
    path = Path(path)
    if path.suffix != ".safetensors" or not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    stated = " ".join(metadata[key] for key in ARCHITECTURE_KEYS if key in metadata)
    found = re.search(r"\bv(?:ersion )?(\d+(?:\.\d+)?)", stated, re.IGNORECASE)
    return None if found is None else found[1]


def is_torchvision_transformer(tensors: dict[str, Tensor]) -> bool:
    """Whether the weights are a vision transformer's in torchvision's naming."""
    return "encoder.pos_embedding" in tensors


def translate_transformer(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A vision transformer's weights from torchvision's naming to timm's."""
    translated = {}
    for name, tensor in tensors.items():
        renamed = name
        for pattern, replacement in TORCHVISION_VIT:
            renamed = re.sub(pattern, replacement, renamed)
        translated[renamed] = tensor
    return translated


def load_weights(module: nn.Module, tensors: dict[str, Tensor], *, architecture: str, path: str | Path) -> None:
    """Fill ``module`` with ``tensors``, or refuse with one line that says why they are another architecture's.

    Tensors of another float width are converted to the module's.
    """
    expected = module.state_dict()
    # A head is left out only if the backbone has no such part: timm's ConvNeXt keeps its last norm there.
    tensors = {name: tensor for name, tensor in tensors.items() if name in expected or name.split(".")[0] not in HEADS}
    # Files from before torch 0.4.1 lack the counters of batch norm, which no forward pass reads.
    missing = [name for name in expected if name not in tensors and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in tensors if name not in expected]
    misshapen = [name for name in expected if name in tensors and tensors[name].shape != expected[name].shape]
    if missing or unexpected or misshapen:
        found = [
            *_count(missing, "missing"),
            *_count(unexpected, "unexpected"),
            *(f"{text} (e.g. {_shapes(misshapen[0], expected, tensors)})" for text in _count(misshapen, "misshapen")),
        ]
        raise DriftgateError(
            f"Expected weights of {architecture} but {path} holds another architecture's: {'; '.join(found)}; "
            "pass the backbone the file was made for."
        )
    module.load_state_dict(tensors, strict=False)


def _count(names: list[str], kind: str) -> list[str]:
    return [f"{len(names)} {kind}, first {names[0]!r}"] if names else []


def _shapes(name: str, expected: dict[str, Tensor], found: dict[str, Tensor]) -> str:
    return f"{tuple(found[name].shape)} for {tuple(expected[name].shape)}"
