"""Data: domains read from disk or memory, data sets by name, streams."""

from driftgate.lab.data.datasets import open_dataset
from driftgate.lab.data.domains import MemoryDomain
from driftgate.lab.data.loading import Transform
from driftgate.lab.data.streams import DomainStream, TensorStream
from driftgate.types import Batch, Stream

__all__ = ["Batch", "DomainStream", "MemoryDomain", "Stream", "TensorStream", "Transform", "open_dataset"]
