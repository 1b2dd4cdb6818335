"""Data: domains read from disk or memory, data sets by name, category shifts, streams."""

from driftgate.lab.data.check import DataReport, check_dataset
from driftgate.lab.data.datasets import DATASETS, DataSet, open_dataset
from driftgate.lab.data.domains import Domain, FileDomain, MemoryDomain
from driftgate.lab.data.loading import BrokenImage, Transform
from driftgate.lab.data.orders import StreamShare
from driftgate.lab.data.source import SourceSamples
from driftgate.lab.data.streams import DomainStream, TensorStream
from driftgate.shifts import ClassSplit, Shift
from driftgate.types import Batch, Stream

__all__ = [
    "DATASETS",
    "Batch",
    "BrokenImage",
    "ClassSplit",
    "DataReport",
    "DataSet",
    "Domain",
    "DomainStream",
    "FileDomain",
    "MemoryDomain",
    "Shift",
    "SourceSamples",
    "Stream",
    "StreamShare",
    "TensorStream",
    "Transform",
    "check_dataset",
    "open_dataset",
]
