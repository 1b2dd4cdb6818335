"""driftgate: online source-free universal domain adaptation."""

from driftgate.methods import Method, available, create
from driftgate.methods import load_method as load
from driftgate.models import SourceModel
from driftgate.stream import run_stream
from driftgate.types import UNKNOWN, UNLABELED, DivergedError, DriftgateError, Prediction

__version__ = "0.1.0"

__all__ = [
    "UNKNOWN",
    "UNLABELED",
    "DivergedError",
    "DriftgateError",
    "Method",
    "Prediction",
    "SourceModel",
    "__version__",
    "available",
    "create",
    "load",
    "run_stream",
]
