"""One file a loss; each is a pure function of tensors."""

from driftgate.losses.contrastive import MeanTerm, contrastive_loss
from driftgate.losses.kl import KLForm, Reduction, kl_from_uniform, kl_loss

__all__ = ["KLForm", "MeanTerm", "Reduction", "contrastive_loss", "kl_from_uniform", "kl_loss"]
