#!/usr/bin/env python3
# A reward plugin: one JSON object per line in, one per line out, in any order. Here: 1 when the label stands in the
# response. In a deck: [[reward.source]] kind = "plugin", command = ["python3", "inputs/plugins/reward.py"].
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    reward = 1.0 if request["label"] and request["label"] in request["response"] else 0.0
    print(json.dumps({"id": request["id"], "reward": reward}), flush=True)
