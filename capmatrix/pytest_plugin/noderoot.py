"""One root folder for pytest and all its xdist nodes.

Each node works out its root folder anew, from the command line's words that are paths of files just then: a run file
in another folder, made meanwhile, moves it for the nodes that start later, and node ids with it. So the nodes are
told what the controller found.
"""

from __future__ import annotations

import pytest


def tell_nodes(config: pytest.Config) -> None:
    """Have the nodes started from now on use this configuration's root folder and configuration file."""
    given = config.invocation_params
    words = [f"--rootdir={config.rootpath}"]
    if config.inipath is not None:
        words.append(f"--config-file={config.inipath}")
    said = [str(word) for word in given.args]
    # The last of each counts, but what stands after "--" is no option.
    end = said.index("--") if "--" in said else len(said)
    args = [*said[:end], *words, *said[end:]]
    config.invocation_params = pytest.Config.InvocationParams(args=args, plugins=given.plugins, dir=given.dir)
