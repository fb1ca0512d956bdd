#!/usr/bin/env python3
"""Writes the data of the tutorials into inputs/tutorial/data. Deterministic; the files are part of the repository."""
import json
import pathlib
import random

FOLDER = pathlib.Path(__file__).parent / "data"
QUESTION = "{a} + {b} = ?\nAnswer with a number."


def write(name, rows):
    with open(FOLDER / name, "w") as out:
        for row in rows:
            out.write(json.dumps(row) + "\n")


def tiny():
    """Sums of one-digit numbers for a byte-level model that starts from random weights."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    draw = random.Random(1)
    examples = [draw.choice(pairs) for _ in range(4000)]
    write("tiny-sft.jsonl", ({"prompt": f"{a}+{b}=", "response": str(a + b)} for a, b in examples))
    write("tiny-prompts.jsonl", ({"prompt": f"{a}+{b}=", "label": str(a + b)} for a, b in pairs))


def tiny_preferences():
    """Every sum against the other numbers below 20 and some longer or missing answers. Held-out pairs have sums that training has
    seen, with mistakes that it has not."""
    draw = random.Random(3)
    rows = []
    for a in range(10):
        for b in range(10):
            right = str(a + b)
            wrong = [str(n) for n in range(20)] + [right + str(draw.randrange(10)), str(draw.randrange(20, 100)), ""]
            rows += [{"prompt": f"{a}+{b}=", "chosen": right, "rejected": text} for text in wrong if text != right]
    draw.shuffle(rows)
    write("tiny-pairs.jsonl", rows[:-200])
    write("tiny-pairs-held-out.jsonl", rows[-200:])


def arithmetic():
    """Sums of one-digit numbers as chat questions. Training and held-out questions share no pair of numbers."""
    draw = random.Random(2)
    pairs = [(a, b) for a in range(10) for b in range(10)]
    draw.shuffle(pairs)

    def rows(some):
        for a, b in some:
            yield {"messages": [{"role": "user", "content": QUESTION.format(a=a, b=b)}], "label": str(a + b)}

    write("arithmetic.jsonl", rows(pairs[:80]))
    write("arithmetic-held-out.jsonl", rows(pairs[80:]))


def calculator():
    """Episodes with a calculator for the byte-level model: it asks for a sum between << and >> and repeats what it is told."""
    draw = random.Random(6)
    pairs = [(a, b) for a in range(10) for b in range(10)]

    def turns(*said):
        return [{"role": role, "content": content} for role, content in said]

    def episode(a, b):
        return turns(("user", f"{a}+{b}="), ("assistant", f"<<{a}+{b}>>"), ("tool", str(a + b)), ("assistant", str(a + b)))

    write("calculator.jsonl", ({"messages": turns(("user", f"{a}+{b}=")), "label": str(a + b)} for a, b in pairs))
    write("calculator-sft.jsonl", ({"messages": episode(a, b)} for a, b in draw.sample(pairs, len(pairs))))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    tiny()
    tiny_preferences()
    arithmetic()
    calculator()
