"""Federated class-incremental learning by exact sums."""

__version__ = "0.1.0"
