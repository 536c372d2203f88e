"""For every pytest run of the repository; matrices need nothing from here, the plugin's own tests need ``pytester``."""

from __future__ import annotations

pytest_plugins = ["pytester"]
