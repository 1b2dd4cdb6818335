"""How unknown a sample looks (scores), and where unknown begins (gates)."""

from driftgate.novelty.gate import FrozenGate, Gate, MixtureGate, TrackingGate, make_gate
from driftgate.novelty.rejection import entropy_prediction
from driftgate.novelty.scores import SCORES, MixtureView, ScoreInputs, get_score

__all__ = [
    "SCORES",
    "FrozenGate",
    "Gate",
    "MixtureGate",
    "MixtureView",
    "ScoreInputs",
    "TrackingGate",
    "entropy_prediction",
    "get_score",
    "make_gate",
]
