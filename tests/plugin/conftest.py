"""The ``project`` fixture of the plugin's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plugin_project import Project, eventually


@pytest.fixture
def project(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Project]:
    """An empty project; nothing of its runs may be left at the end, neither processes nor folders."""
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("t")))
    made = Project(pytester, monkeypatch)
    yield made
    eventually(lambda: not made.processes())
    assert made.session_dirs() == []
