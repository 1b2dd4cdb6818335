"""Bodies of requests and answers, as the OpenAPI description shows them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from driftgate.serve.answers import Answer


class Error(BaseModel):
    """What every refusal looks like."""

    error: str


class Refusal(BaseModel):
    """In the place of an answer, for a picture that could not be read: HTTP's status for it, and a sentence."""

    status: int
    error: str


class Answers(BaseModel):
    """One entry a picture, in the order they came."""

    answers: list[Answer | Refusal]
    version: str


class Images(BaseModel):
    """Pictures in JSON."""

    model_config = ConfigDict(extra="forbid")

    images: list[str] = Field(min_length=1, description="pictures as files have them, in base64")


class Reason(BaseModel):
    """Why something is asked for; it goes into the log."""

    model_config = ConfigDict(extra="forbid")

    reason: str = Field(default="asked for", max_length=200)


class Judgement(BaseModel):
    """What an answer should have been: the name of a class, or any other word for unknown."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(max_length=80)
    label: str = Field(max_length=200)


class Naming(BaseModel):
    """A name for unknowns; null takes it back."""

    model_config = ConfigDict(extra="forbid")

    ids: list[str] = Field(min_length=1, max_length=1000)
    name: str | None = Field(max_length=80)


REFUSALS: dict[int | str, dict[str, Any]] = {
    code: {"model": Error} for code in (400, 401, 403, 404, 408, 413, 415, 421, 422, 429, 503, 507)
}
PICTURES = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"images": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                    "required": ["images"],
                }
            },
            "application/json": {"schema": Images.model_json_schema()},
        },
    }
}
