#!/usr/bin/env python3
"""Over 1 MB of text in 24 languages and of code, through `trireme tokenize` and through Hugging Face `tokenizers`: the same ids and the same texts from
them, with every kind of tokenizer in tests/gold/tokenizers. Decoding is the program's streaming decoder run to its end.

    corpus.py PROGRAM        exit code 125 where the environment is missing
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

from compare import enter_environment

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = ROOT / "tests/gold/tokenizers"
LEAST = 1_000_000


def sentences(language, words, amount, rng):
    """Words of a language with punctuation, numbers, capitals and blanks as they come."""
    joint = "" if language in ("ja", "zh", "th") else " "
    stop = {"ja": "\u3002", "zh": "\u3002", "hy": "\u0589", "bn": "\u0964"}.get(language, ".")
    size, lines = 0, []
    while size < amount:
        line = []
        for _ in range(rng.randrange(3, 25)):
            word = rng.choice(words)
            kind = rng.random()
            line.append(str(rng.randrange(100_000)) if kind < 0.04 else word.capitalize() if kind < 0.1 else word + "," if kind < 0.18 else
                        f"({word})" if kind < 0.2 else f"\u201c{word}\u201d" if kind < 0.22 else word + "'s" if kind < 0.23 else
                        word + rng.choice(["  ", "\t", "\u00a0", "\U0001f642", " \u2014", "\u0301"]) if kind < 0.25 else word)
        lines.append(joint.join(line) + stop + rng.choice(["", "", " ", "\n", "\n\n", "\r\n"]))
        size += len(lines[-1].encode())
    return lines


def corpus():
    """Texts of up to some kilobytes."""
    rng = random.Random(7)
    languages = json.loads((pathlib.Path(__file__).parent / "words.json").read_text())["words"]
    texts = []
    for language, words in languages.items():
        lines = sentences(language, words.split(" "), 34_000, rng)
        while lines:
            count = rng.randrange(1, 30)
            texts.append("".join(lines[:count]))
            del lines[:count]
    for path in sorted([*(ROOT / "src/text").glob("*.?pp"), *(ROOT / "tests/interop").glob("*.py")]):
        code = path.read_text()
        texts += [code[at:at + 3000] for at in range(0, len(code), 3000)]
    return [text for text in texts if text]


def lines_of(program, folder, records, *arguments):
    (folder / "in.jsonl").write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    command = [program, "tokenize", "--input", folder / "in.jsonl", "--output", "-", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def differences_of(kind, texts, program, folder):
    from tokenizers import Tokenizer
    theirs = Tokenizer.from_file(str(KINDS / kind / "tokenizer.json"))
    ids = [encoded.ids for encoded in theirs.encode_batch(texts)]
    ours = lines_of(program, folder, [{"text": text} for text in texts], "--model", KINDS / kind, "--special-tokens", "always")
    found = [f"{kind}: ids of {text[:60]!r}" for text, want, have in zip(texts, ids, ours, strict=True) if have["ids"] != want]
    decoded = theirs.decode_batch(ids, skip_special_tokens=False)
    ours = lines_of(program, folder, [{"ids": one} for one in ids], "--model", KINDS / kind, "--decode")
    return found + [f"{kind}: text of {text[:60]!r}" for text, want, have in zip(texts, decoded, ours, strict=True) if have["text"] != want]


def main():
    program = sys.argv[-1]
    enter_environment(__file__)
    texts = corpus()
    size = sum(len(text.encode()) for text in texts)
    assert size > LEAST, size
    found = []
    with tempfile.TemporaryDirectory() as folder:
        kinds = sorted(json.loads((KINDS / "kinds.json").read_text()))
        for kind in kinds:
            found += differences_of(kind, texts, program, pathlib.Path(folder))
    print(f"{len(kinds)} tokenizers, {len(texts)} texts of {size} bytes: {len(found)} differences")
    print("\n".join(found[:20]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
