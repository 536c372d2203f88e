"""Where data files are looked for, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from capmatrix import paths


def test_checkout_uses_the_repositorys_own_files() -> None:
    root = Path(__file__).resolve().parents[2]
    assert paths.matrices_dir() == root / "matrices"
    assert paths.drafters_dir() == root / "matrices" / "drafters"


def test_installed_package_uses_its_own_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "capmatrix"
    # A folder of that name beside the package belongs to somebody else.
    (package.parent / "matrices").mkdir(parents=True)
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.matrices_dir() == package / "_matrices"
