"""``python -m driftgate``."""

from driftgate.lab.cli import main

if __name__ == "__main__":
    main()
