"""``python -m capmatrix.schema [DIRECTORY]``: writes all JSON schemas (default: the shipped ``matrices/schema``)."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import paths
from . import matrices, records

parser = argparse.ArgumentParser(prog="python -m capmatrix.schema", description="Write all JSON schemas.")
shipped = paths.matrices_dir() / "schema"
parser.add_argument("directory", nargs="?", type=Path, default=shipped, help="where (default: the shipped ones)")
folder = parser.parse_args().directory
for made in [*matrices.write(folder), records.write(folder)]:
    print(made)
