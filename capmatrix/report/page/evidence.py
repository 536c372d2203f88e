"""Everything known of each record, compressed in chunks that a page decodes when a record is opened."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ... import codec
from ...cell import Record
from ..rerun import commands

#: Records of a chunk: small enough that opening one is instant, large enough that their likeness compresses.
CHUNK = 256


def chunks(records: Sequence[tuple[Record, Mapping[str, Any]]]) -> Iterator[str]:
    """Base64 of gzip of a JSON list, one for every ``CHUNK`` records, in their order.

    An entry is ``{"record": ..., "commands": [[title, command], ...]}``: the record as a run file has it
    (docs/records.md), and what runs the cell again, given the header of its run.
    """
    for start in range(0, len(records), CHUNK):
        part = [
            b'{"record":%s,"commands":%s}' % (codec.encode(record), codec.encode(commands(record, header)))
            for record, header in records[start : start + CHUNK]
        ]
        packed = gzip.compress(b"[%s]" % b",".join(part), 6, mtime=0)
        yield base64.b64encode(packed).decode("ascii")
