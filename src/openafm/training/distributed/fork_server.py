"""Imported by the process that keeps libraries ready, and by nobody else.

SIGTERM to all processes of a run is for the trainers, which save and end; the one that they are forked from ends with the
agent.
"""

import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
