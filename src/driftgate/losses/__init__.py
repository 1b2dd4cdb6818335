"""One file a loss; each is a pure function of tensors."""

from driftgate.losses.agreement import agreement_loss, as_sure_as
from driftgate.losses.contrastive import MeanTerm, contrastive_loss
from driftgate.losses.entropy import mean_entropy, negative_marginal_entropy
from driftgate.losses.info_nce import class_aware_info_nce
from driftgate.losses.kl import KLForm, Reduction, kl_from_uniform, kl_loss
from driftgate.losses.supcon import UnknownPairs, supcon_loss

__all__ = [
    "KLForm",
    "MeanTerm",
    "Reduction",
    "UnknownPairs",
    "agreement_loss",
    "as_sure_as",
    "class_aware_info_nce",
    "contrastive_loss",
    "kl_from_uniform",
    "kl_loss",
    "mean_entropy",
    "negative_marginal_entropy",
    "supcon_loss",
]
