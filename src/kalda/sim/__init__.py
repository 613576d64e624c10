"""The simulated world: disk, network and clock that fail on a seed's command.

- `disk`: files in memory that lose, tear or corrupt what was not synced
"""
