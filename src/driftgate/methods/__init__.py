"""Methods by name. Importing this package registers all of them."""

from driftgate.methods import (
    adacontrast,
    bn_stats,
    comet,
    glc,
    glc_plus,
    gmm,
    gmm_comet,
    lead,
    owttt,
    shot_o,
    shot_p,
    source_only,
    tent,
)
from driftgate.methods.base import Method, MethodSettings, available, create, get_method, register, resolve_settings
from driftgate.methods.persistence import load_method

__all__ = [
    "Method",
    "MethodSettings",
    "adacontrast",
    "available",
    "bn_stats",
    "comet",
    "create",
    "get_method",
    "glc",
    "glc_plus",
    "gmm",
    "gmm_comet",
    "lead",
    "load_method",
    "owttt",
    "register",
    "resolve_settings",
    "shot_o",
    "shot_p",
    "source_only",
    "tent",
]
