#!/usr/bin/env python3
"""Runs a daemon so that all it ever starts can be ended with it: `process_tree.py COMMAND...`.

This process adopts whatever the daemon and its children leave behind (a child subreaper of Linux), even when they put
themselves into sessions of their own, as Slurm's step managers do. When its standard input ends, because the owner closed it or
died, it kills all that is below it and leaves. So nothing outlives a test, however the test itself ends.
"""

import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def children_by_parent():
    table = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:  # ended meanwhile
            continue
        fields = text[text.rindex(")") + 2:].split()  # the name before it may hold blanks and brackets
        table.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    return table


def descendants(ancestor):
    """Process ids of all that is below one process."""
    table = children_by_parent()
    found, to_visit = [], [ancestor]
    while to_visit:
        below = table.get(to_visit.pop(), [])
        found += below
        to_visit += below
    return found


def reap():
    """Collects what has ended; False when no child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def kill_all_below():
    while reap():
        for process in descendants(os.getpid()):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        select.select([], [], [], 0.02)


def handle(action):
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, action)


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        sys.exit(f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(ctypes.get_errno())}")
    handle(signal.SIG_IGN)  # a Ctrl-C is the owner's: it closes our input
    subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, preexec_fn=lambda: handle(signal.SIG_DFL))
    while reap():
        if select.select([0], [], [], 0.2)[0] and not os.read(0, 1):
            break
    kill_all_below()


class ProcessTree:
    """The owner's side: a command with all that it starts, in a session of its own."""

    def __init__(self, command, log, environment):
        with open(log, "ab") as file:
            self.process = subprocess.Popen([sys.executable, __file__, *map(str, command)], stdin=subprocess.PIPE, stdout=file,
                                            stderr=file, env=environment, start_new_session=True)

    def alive(self):
        return self.process.poll() is None

    def kill(self):
        """SIGKILL to all of it; returns when it is gone."""
        self.process.stdin.close()
        self.process.wait()


if __name__ == "__main__":
    main()
