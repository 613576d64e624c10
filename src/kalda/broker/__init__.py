"""The node: asyncio shells that wire the floors together and carry their decisions out."""
