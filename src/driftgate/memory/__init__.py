"""What survives a batch, one file each; every memory tells its ``num_bytes``."""

from driftgate.memory.gmm import MixtureEvaluation, Moments, StreamingGMM

__all__ = ["MixtureEvaluation", "Moments", "StreamingGMM"]
