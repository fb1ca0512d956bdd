#!/usr/bin/env python3
"""An environment of three turns that thinks about each, about all episodes at once:     slow_environment.py MILLISECONDS"""
import collections
import json
import select
import sys
import time

THINKS = float(sys.argv[1]) / 1000
due = collections.deque()  # (time, answer), in the order of the requests
text = b""
while True:
    wait = max(0.0, due[0][0] - time.monotonic()) if due else None
    if select.select([sys.stdin], [], [], wait)[0]:
        some = sys.stdin.buffer.raw.read(1 << 16)
        if not some:
            break
        *lines, text = (text + some).split(b"\n")
        for request in map(json.loads, lines):
            if request["type"] == "close":
                continue
            answer = {"id": request["id"]}
            if request["type"] == "step":
                answer |= {"reward": 0.0, "done": True} if request["turn"] == 2 else {"text": "0"}
            due.append((time.monotonic() + (THINKS if request["type"] == "step" else 0), answer))
    while due and due[0][0] <= time.monotonic():
        sys.stdout.write(json.dumps(due.popleft()[1]) + "\n")
    sys.stdout.flush()
