"""For every pytest run of the repository; matrices need nothing from here, the plugin's own tests need ``pytester``."""

from __future__ import annotations

import signal

pytest_plugins = ["pytester"]

# A job that a shell started in the background has SIGINT ignored, and so have its children: tests that interrupt a
# process of their own would wait for it forever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
