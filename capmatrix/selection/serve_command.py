"""A ``vllm serve`` command line: what its user set, and recommended flags added where the user set nothing. Pure.

As vLLM's parser reads it (vllm 0.32.0, ``vllm/utils/argparse_utils.py``): ``--flag value`` or ``--flag=value``,
underscores for dashes, JSON for a nested configuration or dotted keys (``--speculative-config.method eagle3``);
of two the same, the later counts; dotted keys outrank JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from ..errors import InputError

_SHORT = {"-sc": "--speculative-config", "-tp": "--tensor-parallel-size", "-ac": "--attention-config"}
#: Shorthands for keys of the speculative configuration.
_SPEC = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
SPECULATIVE = "--speculative-config"
_ATTENTION = "--attention-config"


class Given(NamedTuple):
    """What a command line sets. ``values`` by flag; ``nested`` by flag and key; ``at`` is where a flag's JSON stands.

    ``dotted`` are the nested flags that are given by dotted keys. ``config_file`` says that a ``--config`` file may
    set more.
    """

    values: dict[str, str]
    nested: dict[str, dict[str, Any]]
    at: dict[str, int]
    dotted: frozenset[str]
    config_file: bool


class Addition(NamedTuple):
    """One addition: the option in words, its value, and the words of the command with it."""

    option: str
    value: str
    words: list[str]


def parse(words: Sequence[str]) -> Given:
    """What ``words`` set. InputError where a nested configuration is no JSON object."""
    values: dict[str, str] = {}
    nested: dict[str, dict[str, Any]] = {}
    by_key: dict[str, dict[str, Any]] = {}
    at: dict[str, int] = {}
    for i, word in enumerate(words):
        if word == "--":
            break
        if not word.startswith("-"):
            continue
        flag, equals, value = word.partition("=")
        head, dot, key = flag.partition(".")
        name = _SHORT.get(head, head.replace("_", "-") if head.startswith("--") else head)
        value = value if equals else (words[i + 1] if i + 1 < len(words) else "")
        if dot:
            by_key.setdefault(name, {})[key.replace("-", "_")] = value
        elif name in (SPECULATIVE, _ATTENTION):
            nested[name], at[name] = _json(name, value), i if equals else i + 1
        elif name in _SPEC:
            by_key.setdefault(SPECULATIVE, {})[_SPEC[name]] = value
        else:
            values[name] = value
    for name, keys in by_key.items():
        nested[name] = nested.get(name, {}) | keys
    return Given(values, nested, at, frozenset(n for n in by_key if _dotted(words, n)), "--config" in values)


def _dotted(words: Sequence[str], name: str) -> bool:
    shorts = [short for short, long in _SHORT.items() if long == name]
    return any(w.replace("_", "-").startswith(tuple(f"{n}." for n in (name, *shorts))) for w in words)


def _json(flag: str, value: str) -> dict[str, Any]:
    try:
        found = json.loads(value)
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error}", key=flag, value=value) from None
    if not isinstance(found, dict):
        raise InputError("must be a JSON object", key=flag, value=value)
    return {str(key).replace("-", "_"): content for key, content in found.items()}


def add_target_backend(words: Sequence[str], backend: str) -> Addition | None:
    """The command with ``--attention-backend``; None where its user chose one, in whatever way."""
    given = parse(words)
    chosen = given.nested.get(_ATTENTION, {})
    if "--attention-backend" in given.values or "backend" in chosen or "backend_per_kind" in chosen:
        return None
    return Addition("--attention-backend", backend, _insert(words, ["--attention-backend", backend]))


def add_drafter_backend(words: Sequence[str], backend: str) -> Addition | None:
    """The command with ``speculative_config.attention_backend``; None where its user chose one, or drafts nothing.

    Within the user's own JSON only that key is added; the rest stays as it was written.
    """
    given = parse(words)
    if SPECULATIVE not in given.nested or "attention_backend" in given.nested[SPECULATIVE]:
        return None
    option = "speculative_config.attention_backend"
    if SPECULATIVE in given.dotted or SPECULATIVE not in given.at:
        return Addition(option, backend, _insert(words, [f"{SPECULATIVE}.attention_backend", backend]))
    at = given.at[SPECULATIVE]
    changed = list(words)
    flag, equals, _ = words[at].partition("=") if words[at].startswith("-") else ("", "", "")
    text = words[at][len(flag) + len(equals) :]
    closed = text.rstrip()
    separator = ", " if _json(SPECULATIVE, text) else ""
    addition = f'{separator}"attention_backend": {json.dumps(backend)}'
    changed[at] = f"{flag}{equals}{closed[:-1].rstrip()}{addition}}}"
    return Addition(option, backend, changed)


def _insert(words: Sequence[str], new: Sequence[str]) -> list[str]:
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *new, *words[at:]]


def is_serve(words: Sequence[str]) -> bool:
    """Whether the command starts a vLLM server."""
    called = any(one.rpartition("/")[2] == "vllm" and two == "serve" for one, two in pairwise(words))
    return called or any(word.startswith("vllm.entrypoints") for word in words)


def set_environment(
    environment: Mapping[str, str], wanted: Sequence[tuple[str, str]]
) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The environment with what the choice needs, and what of it was added: what the user set stays."""
    added = [(name, value) for name, value in wanted if name not in environment]
    return {**environment, **dict(added)}, added
