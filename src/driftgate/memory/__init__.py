"""What survives a batch, one file each; every memory tells its ``num_bytes``."""

from driftgate.memory.gmm import CovarianceForm, MixtureEvaluation, Moments, StreamingGMM
from driftgate.memory.neighbors import cosine_similarity, mean_over, nearest, nearest_but_first, nearest_others
from driftgate.memory.prototypes import RunningPrototypes, class_means, one_hot_weights, surest_samples
from driftgate.memory.queue import RingQueue
from driftgate.memory.teacher import MeanTeacher, ModelCopy

__all__ = [
    "CovarianceForm",
    "MeanTeacher",
    "MixtureEvaluation",
    "ModelCopy",
    "Moments",
    "RingQueue",
    "RunningPrototypes",
    "StreamingGMM",
    "class_means",
    "cosine_similarity",
    "mean_over",
    "nearest",
    "nearest_but_first",
    "nearest_others",
    "one_hot_weights",
    "surest_samples",
]
