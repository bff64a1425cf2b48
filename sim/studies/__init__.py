"""Experiments: policies x sweep x seeds, computed anywhere, each run kept as it ends."""
