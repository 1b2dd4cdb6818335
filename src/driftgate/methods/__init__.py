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
from driftgate.methods.base import Method, MethodSettings
from driftgate.methods.gradient import GradientSettings
from driftgate.methods.look import Look
from driftgate.methods.one_step import OneStep
from driftgate.methods.persistence import load_method
from driftgate.methods.registry import available, create, get_method, homes, look_of, register, resolve_settings

__all__ = [
    "GradientSettings",
    "Look",
    "Method",
    "MethodSettings",
    "OneStep",
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
    "homes",
    "lead",
    "load_method",
    "look_of",
    "owttt",
    "register",
    "resolve_settings",
    "shot_o",
    "shot_p",
    "source_only",
    "tent",
]
