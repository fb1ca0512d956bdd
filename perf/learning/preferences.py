"""Pairs of answers for the DPO comparison: the right sum of two digits, and one that is off by up to three."""
import json
import random


def write_pairs(path, count):
    draw = random.Random(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as out:
        for _ in range(count):
            a, b = draw.randrange(10), draw.randrange(10)
            wrong = draw.choice([a + b + off for off in (-3, -2, -1, 1, 2, 3) if a + b + off >= 0])
            out.write(json.dumps({"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": str(wrong)}) + "\n")
