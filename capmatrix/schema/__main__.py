"""``python -m capmatrix.schema [DIRECTORY]``: writes all JSON schemas (default: the shipped ``matrices/schema``)."""

from __future__ import annotations

import sys
from pathlib import Path

from .. import paths
from . import matrices, records

folder = Path(sys.argv[1]) if len(sys.argv) > 1 else paths.matrices_dir() / "schema"
for made in [*matrices.write(folder), records.write(folder)]:
    print(made)
