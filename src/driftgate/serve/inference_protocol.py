"""The Open Inference Protocol (KServe's version 2): tensors in, tensors out, as JSON or with binary parts behind it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from driftgate.models import SourceModel
from driftgate.serve.answers import Answer
from driftgate.text import problems
from driftgate.types import DriftgateError

HEADER_LENGTH = "Inference-Header-Content-Length"
INPUT_TYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
OUTPUTS = {"label": "INT64", "name": "BYTES", "probability": "FP32", "novelty": "FP64"}
OUTPUT_TYPES = {"INT64": np.int64, "FP32": np.float32, "FP64": np.float64}
MOST_DIMENSIONS = 8


class InputTensor(BaseModel):
    """One input: its values as ``data``, flat or nested, or ``binary_data_size`` bytes behind the JSON."""

    name: str
    shape: list[int] = Field(max_length=MOST_DIMENSIONS)
    datatype: str
    parameters: dict[str, Any] = {}
    data: list[Any] | None = None


class WantedOutput(BaseModel):
    """One output that is asked for."""

    name: str
    parameters: dict[str, Any] = {}


class InferRequest(BaseModel):
    """The JSON of a request."""

    model_config = ConfigDict(allow_inf_nan=True)  # refused later, with a better sentence

    id: str | None = None
    parameters: dict[str, Any] = {}
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[WantedOutput] | None = None


def describe_model(model: SourceModel, name: str, version: str) -> dict[str, Any]:
    """What ``GET /v2/models/{name}`` says."""
    spec = model.spec
    return {
        "name": name,
        "versions": [version],
        "platform": "driftgate",
        "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, *spec.shape]}],
        "outputs": [{"name": output, "datatype": datatype, "shape": [-1]} for output, datatype in OUTPUTS.items()],
        "parameters": {"class_names": ",".join(spec.class_names)},
    }


def read_request(body: bytes, header_length: str | None, most_values: int) -> tuple[InferRequest, Tensor]:
    """The request and its tensor; ``DriftgateError`` says what is wrong."""
    length = len(body)
    if header_length is not None:
        if not header_length.isdigit() or int(header_length) > len(body):
            raise DriftgateError(f"Expected {HEADER_LENGTH} up to the body's {len(body)} bytes, got {header_length!r}.")
        length = int(header_length)
    try:
        request = InferRequest.model_validate_json(body[:length])
    except ValidationError as error:
        raise DriftgateError(f"Expected a request of the Open Inference Protocol but {problems(error)}.") from error
    wrong = [output.name for output in request.outputs or [] if output.name not in OUTPUTS]
    if wrong:
        raise DriftgateError(f"Expected outputs out of {', '.join(OUTPUTS)} but got {wrong[0]!r}.")
    return request, torch.from_numpy(_array(request.inputs[0], body[length:], most_values))


def _array(tensor: InputTensor, binary: bytes, most_values: int) -> NDArray[Any]:
    """The values of an input, in its shape."""
    if tensor.datatype not in INPUT_TYPES:
        raise DriftgateError(f"Expected a datatype out of {', '.join(INPUT_TYPES)} but got {tensor.datatype!r}.")
    if any(side < 0 for side in tensor.shape) or math.prod(tensor.shape) > most_values:
        raise DriftgateError(f"Expected a shape of at most {most_values:,} values but got {tensor.shape}.")
    dtype, count = np.dtype(INPUT_TYPES[tensor.datatype]), math.prod(tensor.shape)
    if "binary_data_size" in tensor.parameters:
        size = tensor.parameters["binary_data_size"]
        if size != len(binary) or size != count * dtype.itemsize:
            raise DriftgateError(
                f"Expected {count * dtype.itemsize} bytes for {tensor.datatype} {tensor.shape} but binary_data_size is "
                f"{size} and {len(binary)} bytes came."
            )
        return np.frombuffer(binary, dtype.newbyteorder("<")).astype(dtype).reshape(tensor.shape)
    try:
        values = np.array(tensor.data if tensor.data is not None else [], dtype=dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise DriftgateError(f"Expected data of {tensor.datatype}, flat or nested evenly: {error}.") from error
    if values.size != count:
        raise DriftgateError(f"Expected {count} values for the shape {tensor.shape} but got {values.size}.")
    return values.reshape(tensor.shape)


def write_response(request: InferRequest, answers: Sequence[Answer], model_name: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the answer; outputs are binary where the request says so."""
    wanted = request.outputs or [WantedOutput(name=name) for name in OUTPUTS]
    by_default = bool(request.parameters.get("binary_data_output", False))
    outputs, parts = [], []
    for output in wanted:
        values = [getattr(answer, output.name) for answer in answers]
        described: dict[str, Any] = {
            "name": output.name,
            "datatype": OUTPUTS[output.name],
            "shape": [len(answers)],
        }
        if output.parameters.get("binary_data", by_default):
            parts.append(_bytes(values, OUTPUTS[output.name]))
            described["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            described["data"] = values
        outputs.append(described)
    version = answers[0].version
    document: dict[str, Any] = {"model_name": model_name, "model_version": version, "outputs": outputs}
    document["parameters"] = {"request": answers[0].id.rpartition("-")[0]}
    if request.id is not None:
        document["id"] = request.id
    head = json.dumps(document).encode()
    if not parts:
        return head, {"Content-Type": "application/json"}
    headers = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))}
    return b"".join([head, *parts]), headers


def _bytes(values: list[Any], datatype: str) -> bytes:
    if datatype == "BYTES":  # each behind its length in four bytes
        encoded = [value.encode() for value in values]
        return b"".join(len(value).to_bytes(4, "little") + value for value in encoded)
    return np.array(values, dtype=np.dtype(OUTPUT_TYPES[datatype]).newbyteorder("<")).tobytes()
