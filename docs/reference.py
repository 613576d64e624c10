"""Pages that are made of the tables in the sources: one for each kind of configuration."""

from __future__ import annotations

import importlib
from typing import Any

from mkdocs.structure.files import File, Files

TABLES = {
    "producer": ("producer", "PRODUCER", "Producer keys"),
    "consumer": ("consumer", "CONSUMER", "Consumer keys"),
    "admin": ("admin", "ADMIN", "Admin keys"),
    "topic": ("topic", "TOPIC", "Topic keys"),
    "broker": ("broker", "BROKER", "Broker keys"),
    "group": ("group", "GROUP", "Group keys"),
}


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs when it has collected the pages."""
    for name in TABLES:
        files.append(File.generated(config, f"configs/{name}.md", content=page(name)))
    return files


def page(name: str) -> str:
    """A table of all keys of a kind."""
    from kalda.base.configs.definition import to_text
    from kalda.base.configs.describe import documentation
    from kalda.base.configs.documentation import CLIENT

    module, table, title = TABLES[name]
    definition = getattr(importlib.import_module(f"kalda.base.configs.{module}"), table)
    kind = {"topic": "topic", "broker": "broker", "group": "group"}.get(name)
    lines = [f"# {title}", "", "| key | type | default | what it does |", "| --- | --- | --- | --- |"]
    for key_name in definition.names():
        key = definition[key_name]
        if key.internal:
            continue
        default = key.default
        if default is None:
            shown = ""
        elif isinstance(default, bool | int | float | str | tuple):
            shown = to_text(",".join(default) if isinstance(default, tuple) else default)
        else:
            shown = "(required)"
        text = CLIENT[key_name] if kind is None else documentation(kind, key_name) or ""
        cells = (f"`{key_name}`", key.type.name.lower(), f"`{shown}`" if shown else "", text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"
