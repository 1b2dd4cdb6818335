"""Methods by name: driftgate's own, those of installed packages, and those whose module was imported."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from typing import Any, TypeVar

import torch
from pydantic import ValidationError

from driftgate.methods.base import KNOWN, Method, MethodSettings, add_method
from driftgate.methods.look import Look
from driftgate.models.source_model import SourceModel
from driftgate.plugins import home_of
from driftgate.text import did_you_mean, problems
from driftgate.types import DriftgateError
from driftgate.views import ViewsChoice, choose_views

logger = logging.getLogger(__name__)

GROUP = "driftgate.methods"
"""Entry points of this group are modules or classes with methods of somebody's own."""

M = TypeVar("M", bound=type[Method])


def register(method: M) -> M:
    """The way of 0.1 to make a method known by its ``name``: a decorator."""
    warnings.warn(
        "@register is now the class's keyword: class Mine(Method, name='mine', settings=MySettings)",
        DeprecationWarning,
        stacklevel=2,
    )
    add_method(method)
    return method


@cache
def load_entry_points() -> None:
    """Import what installed packages offer in the group, once; one that fails is named in a warning and left out."""
    for point in metadata.entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # whatever it is, the other methods can be used
            logger.warning("the methods of %s (%s) cannot be imported: %s", point.name, point.value, error)


def available() -> dict[str, type[Method]]:
    """All methods by name, those of installed packages too."""
    load_entry_points()
    return dict(sorted(KNOWN.items()))


def get_method(name: str) -> type[Method]:
    """The class of the method of that name."""
    if name not in KNOWN and name not in available():
        near = did_you_mean(name, available(), "")
        raise DriftgateError(
            f"Expected a method out of {', '.join(available())} but got {name!r}; "
            + (f"{near} One" if near else "one")
            + " of your own is known once its module is imported (--import my_module), or by an entry point of the "
            f"group {GROUP!r}."
        )
    return KNOWN[name]


def look_of(name: str) -> Look:
    """How the method of that name appears in tables and charts; one that nobody knows like one of the user's own."""
    method = available().get(name)
    if method is None:
        return Look().of(name)
    return method.look.of(name, universal=method.source_free and method.universal)


def homes(names: Iterable[str]) -> tuple[str, ...]:
    """The modules to import in another process before it knows the methods ``names``; none for driftgate's own."""
    return tuple(dict.fromkeys(home_of(get_method(name)) for name in names if not _is_ours(get_method(name))))


def _is_ours(method: type[Method]) -> bool:
    return method.__module__.startswith("driftgate.")


def create(
    name: str,
    model: SourceModel,
    *,
    preset: str | None = None,
    views: ViewsChoice = None,
    device: str | torch.device | None = None,
    **settings: Any,
) -> Method:
    """A method by name around ``model``, which it adapts in place; settings as keywords, a preset underneath them.

    ``views`` is how the method gets a second look at a batch, if it needs one: see ``driftgate.views``. None takes
    what fits the model's inputs. ``device`` is where the model and all else shall be; None leaves the model where it
    is.
    """
    if not isinstance(model, SourceModel):
        raise DriftgateError(
            f"Expected a wrapped network but got {type(model).__name__}; pass driftgate.wrap(network, class_names=...)."
        )
    if device is not None:
        model.to(check_device(device))
    method = get_method(name)(model, resolve_settings(name, preset, settings))
    if method.device.type != "cpu":
        method.to(method.device)  # what was made beside the model was made on the CPU
    method.views = choose_views(views, model.spec)
    return method


def check_device(device: str | torch.device) -> torch.device:
    """The device of that name; refused where this machine has none of the kind."""
    try:
        found = torch.device(device)
        torch.zeros(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DriftgateError(
            f"Expected a device of this machine but got {str(device)!r}: {reason}; name another."
        ) from error
    if found.type == "meta":
        raise DriftgateError("Expected a device that holds values but got 'meta'; name another.")
    return found


def resolve_settings(name: str, preset: str | None, settings: dict[str, Any]) -> MethodSettings:
    """The settings of a method: its defaults, then the preset's, then the effort's, then those given."""
    method = get_method(name)
    if preset is not None and preset not in method.presets:
        known = ", ".join(method.presets) or "none"
        raise DriftgateError(
            f"Expected a preset of {name!r} out of {known} but got {preset!r}; name one of them, or none."
        )
    under = method.presets[preset] if preset else {}
    effort = getattr(method.Settings, "efforts", {}).get({**under, **settings}.get("effort"), {})
    chosen = {**under, **effort, **settings}
    try:
        return method.Settings(**chosen)
    except ValidationError as error:
        told = problems(error, lambda _: method.Settings.model_fields, "setting")
        raise DriftgateError(f"Settings of {name!r}: {told}; change them.") from error
