"""Kalda: Apache Kafka rebuilt in Python.

The floors, from the ground up, are listed in ARCHITECTURE.md; imports go down only.
"""

__version__ = "0.1.0"
