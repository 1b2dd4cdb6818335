"""``python -m driftgate``."""

from driftgate.cli import main

if __name__ == "__main__":
    main()
