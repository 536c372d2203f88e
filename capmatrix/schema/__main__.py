"""``python -m capmatrix.schema [DIRECTORY]``: writes all JSON schemas (default: the shipped ``matrices/schema``)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .. import errors, paths
from . import matrices, records

parser = argparse.ArgumentParser(prog="python -m capmatrix.schema", description="Write all JSON schemas.")
shipped = paths.matrices_dir() / "schema"
parser.add_argument("directory", nargs="?", type=Path, default=shipped, help="where (default: the shipped ones)")
folder = parser.parse_args().directory
try:
    written = [*matrices.write(folder), records.write(folder)]
except OSError as error:
    print(errors.InputError(f"cannot write: {error.strerror or error}", file=folder), file=sys.stderr)
    sys.exit(errors.EXIT_USAGE)
for made in written:
    print(errors.printable(str(made)))
