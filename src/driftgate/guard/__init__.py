"""The guard: health without labels, snapshots, and the way back; see ``Guard``."""

from driftgate.guard.evidence import SignalHealth
from driftgate.guard.guard import Event, Guard, GuardSettings, Health
from driftgate.guard.snapshots import Snapshot

__all__ = ["Event", "Guard", "GuardSettings", "Health", "SignalHealth", "Snapshot"]
