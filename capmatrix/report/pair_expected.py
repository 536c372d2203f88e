"""Which failures of pairs the shipped expectations name, so that a report does not show them as news."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .. import paths
from ..cell import Environment
from ..errors import InputError
from ..expect import expectation_file
from ..expect.expectations import Expectations
from ..pair import PairRecord
from ..summary import FAILED


def of(records: Iterable[PairRecord], environments: Mapping[str, Environment]) -> dict[str, str]:
    """By pair id: why a failure is expected, and its link; pairs that did not fail so are left out."""
    failed = [record for record in records if record.verdict in FAILED]
    known = _shipped() if failed else Expectations()
    out = {}
    for record in failed:
        found = known.find(record, environments.get(record.environment))
        if found is not None and record.verdict in found.verdicts:
            out[record.pair_id] = f"{found.reason} ({found.link})" if found.link else found.reason
    return out


def _shipped() -> Expectations:
    try:
        return expectation_file.load([paths.matrices_dir() / expectation_file.DIRECTORY])
    except InputError:  # a run can be read whatever a file of expectations looks like; ``expect`` tells what is wrong
        return Expectations()
