"""The fields of packed documents."""

from __future__ import annotations

from topologies.records import bounded, record


@record(kw_only=True)
class Packing:
    """Documents that a sequence is packed of: all of `document` tokens, or with `documents` of
    those lengths ("4096+2x2048"). A token attends to none of another document."""

    document: int = bounded(default=0, most=10_000_000)
    documents: str = ""
