"""Times for people and logs; spans of time are measured with ``time.monotonic``, which nobody can set back."""

from __future__ import annotations

from datetime import datetime, timezone


def timestamp() -> str:
    """Now, as ISO 8601 says it."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")
