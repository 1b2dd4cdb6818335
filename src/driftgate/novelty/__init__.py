"""How unknown a sample looks (scores), and where unknown begins (gates)."""

from driftgate.novelty.gate import FrozenGate, Gate, MixtureGate, TrackingGate, make_gate
from driftgate.novelty.scores import SCORES, ScoreInputs, get_score

__all__ = ["SCORES", "FrozenGate", "Gate", "MixtureGate", "ScoreInputs", "TrackingGate", "get_score", "make_gate"]
