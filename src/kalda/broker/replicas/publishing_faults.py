"""Unexpected exceptions while an image of the metadata is applied to this broker.

An image is applied in sections: one config, one partition, one coordinator. Where one section raises, the others are
applied all the same, and the fault is logged with its cause and counted, as in Apache Kafka. A fault while the first
image is applied is raised: a broker that begins without a part of its partitions must not serve.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

log = logging.getLogger("kalda.publisher")

P = ParamSpec("P")
R = TypeVar("R")


class PublishingFaults:
    """Contains the faults of one broker."""

    def __init__(self) -> None:
        self.count = 0
        """Kafka's metric metadata-apply-error-count."""

    def contain(self, section: str, apply: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """The result of `apply`; None where it raised. `section` completes the sentence "cannot ..."."""
        try:
            return apply(*args, **kwargs)
        except Exception as error:
            self.add(section, error)
            return None

    def add(self, section: str, error: BaseException) -> None:
        """Log and count a fault."""
        self.count += 1
        log.error(
            "cannot %s: %s; the rest of the metadata is applied", section, error or type(error).__name__, exc_info=error
        )
