"""Data: domains read from disk or memory, data sets by name, category shifts, streams."""

from driftgate.data.check import DataReport, check_dataset
from driftgate.data.datasets import DATASETS, DataSet, open_dataset
from driftgate.data.domains import Domain, FileDomain, MemoryDomain
from driftgate.data.loading import BrokenImage, Transform
from driftgate.data.shifts import ClassSplit, Shift
from driftgate.data.source import SourceSamples
from driftgate.data.streams import Batch, DomainStream, Stream, TensorStream

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
    "TensorStream",
    "Transform",
    "check_dataset",
    "open_dataset",
]
