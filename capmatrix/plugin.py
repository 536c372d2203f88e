"""The pytest plugin's doorstep: it is loaded in every project, so it only looks whether matrices are asked for.

Options are registered, and the rest of the plugin imported, only where the command line (or
``testpaths``) asks for a matrix file; see ``pytest_plugin.arguments``. Every other pytest project sees
no option, no hook and no file collected.
"""

from __future__ import annotations

from typing import Any

import pytest

#: Registered options end up under these names in ``config.option``.
_MARK = "capmatrix_engine"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options, where matrices are asked for; pytest parses the command line after this."""
    from .pytest_plugin.arguments import command_line, mentions_matrix

    if mentions_matrix(command_line(early_config, args), early_config.invocation_params.dir):
        from .pytest_plugin import guard_items
        from .pytest_plugin.options import add_options

        add_options(parser)
        guard_items.add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Register the rest of the plugin, where matrices or derived tables are asked for."""
    if _wanted(config):
        from .pytest_plugin.session import MatrixPlugin

        config.pluginmanager.register(MatrixPlugin(config), "capmatrix-session")
    if hasattr(config.option, _MARK):
        from .pytest_plugin.arguments import table_files

        tables = table_files(config.args, config.invocation_params.dir)
        if tables:
            from .pytest_plugin.guard_items import plugin_for

            config.pluginmanager.register(plugin_for(config, tables), "capmatrix-guard")


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> Any:
    """``-n auto``: one node a worker slot (GPUs, or what memory allows); 0, which is no node, for a single slot."""
    if not _wanted(config):
        return None
    from .workers import slots

    count = slots.count()
    return count if count > 1 else 0


def _wanted(config: pytest.Config) -> bool:
    if not hasattr(config.option, _MARK):
        return False
    from .pytest_plugin.arguments import matrix_files

    return bool(matrix_files(config.args, config.invocation_params.dir))
