#!/usr/bin/env python3
# A reward plugin: 1 when math-verify (pip install math-verify) counts the answer as equal to the label, as TRL and verl
# use it; rule = "math" does the same without Python. In a deck:
#   [[reward.source]]
#   kind = "plugin"
#   command = ["python3", "inputs/plugins/math_verify.py"]
import json
import pathlib
import sys

# The package has the name of this file, whose folder Python searches first.
sys.path = [place for place in sys.path if pathlib.Path(place or ".").resolve() != pathlib.Path(__file__).resolve().parent]
try:
    from math_verify import parse, verify
except ImportError:
    sys.exit("math_verify.py: the package math-verify is missing: pip install math-verify, or use rule = \"math\"")


def right(response, label):
    gold = parse("\\boxed{" + label.rsplit("####", 1)[-1] + "}")
    return bool(gold) and verify(gold, parse(response))


for line in sys.stdin:
    request = json.loads(line)
    if not request["label"]:
        sys.exit(f"math_verify.py: request {request['id']} has no label to compare with: check data.label_key")
    print(json.dumps({"id": request["id"], "reward": float(right(request["response"], request["label"]))}), flush=True)
