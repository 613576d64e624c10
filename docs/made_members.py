"""What reading the sources does not show of the public names, for the pages of all calls.

The pages are made by reading: to import all of Kalda instead takes three times as long, and shows attributes without
their types. Two things that exist at run time only are added here: the methods of the admin clients, which
`kalda.client.admin.operations` makes, and the fields of values.
"""

from __future__ import annotations

from typing import Any

import griffe

ADMIN_CLIENTS = ("client.admin.admin_client", "client.admin.aio_admin")
"""Modules, below `kalda`, of classes `Admin`."""


class MadeMembers(griffe.Extension):
    """Called by griffe, which mkdocs.yml names it to."""

    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Called with the package when all its modules have been read."""
        for name in ADMIN_CLIENTS:
            module = pkg[name]
            admin = griffe.inspect(module.name, filepath=module.filepath, parent=module.parent)["Admin"]
            for method, made in admin.members.items():
                read = module["Admin"].members.get(method)
                if made.is_function and read is not None and read.is_attribute:
                    made.lineno, made.endlineno = read.lineno, read.endlineno
                    module["Admin"].set_member(method, made)

    def on_class(self, *, cls: griffe.Class, loader: griffe.GriffeLoader, **_: Any) -> None:
        """Called with each class."""
        if "NamedTuple" not in map(str, cls.bases) and "dataclass" not in cls.labels:
            return
        fields = [
            f"{each.name}: {each.annotation}" + ("" if each.value is None else f" = {each.value}")
            for each in cls.members.values()
            if isinstance(each, griffe.Attribute)
            and "instance-attribute" in each.labels
            and not each.name.startswith("_")
        ]
        if fields:
            text = f"{cls.docstring.value}\n\n" if cls.docstring else ""
            cls.docstring = griffe.Docstring(f"{text}Fields: `{', '.join(fields)}`.", parent=cls)
