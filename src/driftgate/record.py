"""The record of a run: what ``run_stream`` writes as JSON, and what every table, figure and report reads.

Format 1 had the peak memory of the whole process, 2 that above the loaded model, 3 has the counts of every class.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

RECORD_FORMAT = 3

Numbers = list[float | None]


class _Part(BaseModel):
    """Types as JSON has them; what else a file holds is not looked at."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Protocol(_Part):
    """How the stream was made, and on which source model; older versions leave some of it out."""

    data: str | None = None
    source: str | list[str] | None = None
    target: str | list[str] | None = None
    shift: str | None = None
    split: str | None = None
    class_order: str | None = None
    seed: int | None = None
    model_id: str | None = None
    preset: str | None = None
    batch_size: int | None = None
    drop_last: bool | None = None
    limit_batches: int | None = None
    limit: int | None = None
    order: str | None = None
    concentration: float | None = None
    arrangement: str | None = None
    repeat: int | None = None
    unknown_share: str | None = None
    batches: int | None = None
    samples: int | None = None
    skipped: list[str] = []


class Network(_Part):
    """The part of a model's description that decides what may stand in one table."""

    backbone: str | None = None
    input_size: list[int] | None = None
    class_names: list[str] = []


class Seconds(_Part):
    """Time of the steps, without loading."""

    total: float | None = None
    median_per_batch: float | None = None


class Pace(_Part):
    """Of a stream that did not wait: batches that were learned from and that were not, and those predicted later than
    ``max_delay`` seconds after they came."""

    max_delay: float
    learned: int
    not_learned: int
    late: int
    largest_delay: float


class ClassCounts(_Part):
    """Samples of each source class: how many came, were right, were rejected; and how many unknown ones it took."""

    samples: list[int]
    right: list[int]
    rejected: list[int]
    unknown_taken: list[int]


class Record(_Part):
    """One method over one stream.

    A field may be missing, but not of another kind; without labels there is no score, and what follows from it is
    empty. ``id`` to ``variant`` name a run of a sweep; without them they
    follow from the protocol. ``metrics``, ``halves``, ``tenths`` and ``shares`` are fractions.
    """

    format: int = 1
    id: str | None = None
    suite: str | None = None
    source: str | list[str] | None = None
    target: str | list[str] | None = None
    shift: str | None = None
    seed: int | None = None
    study: str | None = None
    variant: str | None = None
    method: str = Field(min_length=1)
    settings: dict[str, Any] = {}
    model: Network = Network()
    protocol: Protocol
    score: str | None = None
    metrics: dict[str, float | None]
    halves: Numbers = Field(default=[], max_length=2)
    tenths: Numbers = Field(default=[], max_length=10)
    shares: dict[str, float | None] = {}
    classes: ClassCounts | None = None
    definitions: dict[str, str] = {}
    series: dict[str, Numbers] = {}
    seconds: Seconds = Seconds()
    pace: Pace | None = None
    wall_seconds: float | None = None
    state_bytes: int | None = None
    peak_memory_bytes: int | None = None
    versions: dict[str, str] = {}
    digest: str | None = None
