"""The catch-up of a controller that is far behind: it is made from the loader's image, and does not replay the log.

A node that comes back may have a million records to replay. Where both its loader and its controller replayed them, the
node would take twice as long to be ready. So a controller that lags more than `MAX_REPLAYED_RECORDS` behind is
suspended as a listener. Once the loader has nearly caught up, the controller's state is made from the loader's image,
in steps, and the controller goes on with the batches after it.

The image is immutable, and the steps are run in the background: the loader may receive more batches in between, which
the controller then receives from the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kalda.base.background import Background, Priority, Steps
from kalda.base.errors import ApiError
from kalda.base.scheduling import Pending
from kalda.broker.quorum.raft_listeners import Listener, RaftListeners, Registration
from kalda.metadata.image import MetadataImage
from kalda.metadata.loader import MetadataLoader

if TYPE_CHECKING:
    from kalda.controller.quorum_controller import QuorumController

log = logging.getLogger("kalda.quorum")

MAX_REPLAYED_RECORDS = 20_000
"""Some 0.2 s of replay."""


class ControllerCatchUp:
    """Registers the controller's listener, and resumes it where it was suspended."""

    def __init__(
        self,
        controller: QuorumController,
        listener: Listener,
        loader: MetadataLoader,
        listeners: RaftListeners,
        background: Background,
        *,
        leader_high_watermark: Callable[[], int | None],
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        """`listener` feeds `controller`. `leader_high_watermark` is where the loader's replay ends."""
        self._controller = controller
        self._loader = loader
        self._listeners = listeners
        self._background = background
        self._leader_high_watermark = leader_high_watermark
        self._on_fatal = on_fatal
        self._loading: Pending[None] | None = None
        """The load of an image. While it is set the registration is suspended, so that no batch changes the
        controller."""
        self.steps_taken = 0
        self._registration: Registration = listeners.register(listener, suspend_beyond_lag=self._max_lag)

    @property
    def is_suspended(self) -> bool:
        """Whether the controller lacks what the loader may have."""
        return self._registration.is_suspended

    def on_loaded(self, next_offset: int) -> None:
        """The loader has received everything before `next_offset`. Begins to load its image where that pays."""
        if not self.is_suspended or self._loading is not None:
            return
        if (self._leader_high_watermark() or next_offset) - next_offset > MAX_REPLAYED_RECORDS // 2:
            return
        image = self._loader.image
        if image.provenance.is_batch_aligned and image.offset >= self._registration.next_offset:
            log.info("the controller is made from the image at %s", image.provenance)
            self._loading = self._background.run(self._load(image), Priority.MAINTENANCE)
            self._loading.then(partial(self._on_image_loaded, image.provenance.snapshot_offset))
        else:
            # The image ends in the middle of a batch, where a metadata transaction began that is still open.
            self._listeners.resume(self._registration, None)

    def close(self) -> None:
        """Take no more steps."""
        if self._loading is not None:
            self._loading.abandon()

    def _max_lag(self) -> int:
        """As many records as take as long to replay as an image takes to load."""
        return max(MAX_REPLAYED_RECORDS, len(self._loader.image.topics.by_id))

    def _load(self, image: MetadataImage) -> Steps[None]:
        for _ in self._controller.load_image(image):
            self.steps_taken += 1
            yield

    def _on_image_loaded(self, end_offset: int, _: None, error: ApiError | None) -> None:
        self._loading = None
        if error is None:
            self._listeners.resume(self._registration, end_offset)
        else:
            self._on_fatal(error.__cause__ or error)
