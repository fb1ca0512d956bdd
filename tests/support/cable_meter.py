"""Inside two_nodes.sh: runs a command, and writes the bytes that its node sent and took over the cable until each line of a run's metrics.

cable_meter.py OUT METRICS COMMAND...
"""

import json
import pathlib
import subprocess
import sys
import time


def on_the_cable():
    """[taken, sent] of this network namespace."""
    for line in pathlib.Path("/proc/self/net/dev").read_text().splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == "cable1":
            fields = figures.split()
            return [int(fields[0]), int(fields[8])]
    raise SystemExit("no cable1 here")


def main():
    out, metrics, *command = sys.argv[1:]
    metrics = pathlib.Path(metrics)
    seen = [on_the_cable()]
    job = subprocess.Popen(command)
    while job.poll() is None:
        lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
        if lines >= len(seen):
            seen += [on_the_cable()] * (lines + 1 - len(seen))
        time.sleep(0.002)
    pathlib.Path(out).write_text(json.dumps(seen))
    sys.exit(job.returncode)


main()
