"""What the random walks of consumer groups (KIP-848) have in common: topics that grow and go, and what the coordinator
does in the background."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from groups_world import World

TOPICS = ("t", "u", "v")


class GroupWalk:
    """One walk, by its random numbers."""

    random: random.Random
    world: World
    background: deque[Any]
    """Steps of what is done in the background."""
    made: int
    """What was made by now: members and changes of topics have numbers."""

    def on_elected(self) -> None:
        """The world has another coordinator."""
        self.world.runtime.timers.run = self.background.append  # type: ignore[assignment]

    def change_topic(self, removal: float) -> tuple[str, bool]:
        """Make a topic where there is none, else remove it, with this probability, or add a partition to it. Returns
        its name, and whether it was made."""
        topics, name = self.world.topics, self.random.choice(TOPICS)
        if name not in topics.ids:
            topics.add(name, self.random.randint(1, 5), generation=self.made + self.random.randint(2, 1_000))
            return name, True
        if self.random.random() < removal:
            topics.remove(name)
        else:
            topics.partitions[name] += 1
        return name, False

    def work(self) -> None:
        """One step of what is done in the background."""
        if self.background:
            steps = self.background.popleft()
            try:
                next(steps)
            except StopIteration:
                return
            self.background.append(steps)

    def all_partitions(self) -> list[tuple[str, int]]:
        """Those of all topics that there are, in order."""
        topics = self.world.topics
        return [(name, index) for name in TOPICS if name in topics.ids for index in range(topics.partitions[name])]
