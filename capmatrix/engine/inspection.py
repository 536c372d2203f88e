"""Why vLLM could not inspect a model class: it logs the cause, raises an error without it, and remembers only that."""

from __future__ import annotations

import logging
import re

_LOGGER = "vllm.model_executor.models.registry"
_INSPECTED = re.compile(r"Model architectures (\[.*?\]) failed to be inspected")

#: The last line of what was raised, by architecture.
_causes: dict[str, str] = {}


class _Keeper(logging.Handler):
    """Keeps what the registry logs of an architecture that it could not import."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and isinstance(record.args, tuple) and record.args:
            # A class is inspected in a process of its own, whose whole output is the error's text.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            _causes[str(record.args[0])] = lines[-1] if lines else type(error).__name__


def watch() -> None:
    """From now on keep the causes; once a process."""
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(handler, _Keeper) for handler in logger.handlers):
        logger.addHandler(_Keeper(logging.ERROR))


def cause(error: Exception) -> str:
    """What stands behind "failed to be inspected" in ``error``; "" where that is not what it says or none is known."""
    found = _INSPECTED.search(str(error))
    if found is None:
        return ""
    return next((text for name, text in _causes.items() if f"'{name}'" in found[1]), "")
