"""The laboratory around the core: data sets, source training, benchmarks and their report, the command line."""

from driftgate.extras import require

require("lab", "driftgate.lab")
