"""Experiments on top of the library: the demo, the memory comparison, and their pictures."""
