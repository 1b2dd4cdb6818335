"""The laboratory around the core: data sets, source training, benchmarks and their report, the command line."""
