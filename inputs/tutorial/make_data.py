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


def wrong_answer(draw, total):
    """A mistake of the kinds that a half-trained model makes: near misses, lost and added digits, digits at random."""
    text = str(total)
    kind = draw.randrange(4)
    if kind == 0:
        answer = str(max(0, total + draw.choice([-10, -2, -1, 1, 2, 10])))
    elif kind == 1:
        answer = draw.choice([text[:-1], text[1:]])
    elif kind == 2:
        answer = text + str(draw.randrange(10))
    else:
        answer = str(draw.randrange(19))
    return answer if answer != text else wrong_answer(draw, total)


def tiny_preferences():
    """Right against wrong answers. Held-out pairs have sums that training has seen, with mistakes that it has not."""
    draw = random.Random(3)
    pairs = {}
    while len(pairs) < 2200:
        a, b = draw.randrange(10), draw.randrange(10)
        wrong = wrong_answer(draw, a + b)
        pairs[a, b, wrong] = {"prompt": f"{a}+{b}=", "chosen": str(a + b), "rejected": wrong}
    rows = list(pairs.values())
    draw.shuffle(rows)
    write("tiny-pairs.jsonl", rows[:2000])
    write("tiny-pairs-held-out.jsonl", rows[2000:])


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


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    tiny()
    tiny_preferences()
    arithmetic()
