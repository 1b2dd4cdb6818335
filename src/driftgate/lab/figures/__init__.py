"""Figures of finished runs: each takes a frame, as ``read_results`` gives it, and returns a figure.

The report, the documentation and users draw with the same functions; ``save_figure`` writes what they return.
"""

from driftgate.lab.figures.charts import cost, curves, curves_in, samples_used, shares, study, study_panel, tenths
from driftgate.lab.figures.style import save_figure

__all__ = ["cost", "curves", "curves_in", "samples_used", "save_figure", "shares", "study", "study_panel", "tenths"]
