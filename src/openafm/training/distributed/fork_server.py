"""Preloaded by the fork server only, which keeps libraries in memory between restarts.

The fork server ignores SIGTERM: sent to all processes of a run, it makes the workers save and end, and the fork server ends
with the launcher. Workers get the default action back at the fork, so that SIGTERM also ends one that is still starting.
"""

import os
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
if hasattr(signal, "SIGUSR1"):  # schedulers send it to all processes of a job; workers that train handle it
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))
