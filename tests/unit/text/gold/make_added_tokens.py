"""Added tokens that overlap, strip or stand at the ends: ids by HF tokenizers, one line per set of tokens.

    python3 make_added_tokens.py > added_tokens.jsonl      # tokenizers 0.22.2; panics of the library go to stderr
"""
import json
import pathlib
import random

from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).parents[4]
BASE = (ROOT / "inputs/tutorial/tokenizer/tokenizer.json").read_text()

# Content and flags: l = lstrip, r = rstrip, w = single_word, n = normalized, s = special.
SETS = [
    [("<a>", ""), ("<a><b>", ""), ("<a><b><c>", "s")],
    [("ab", ""), ("abc", ""), ("bcd", "")],
    [("<l>", "l"), ("<r>", "r"), ("<x>", "lr")],
    [("<r>", "r"), ("\n", "l"), (" ", "")],
    [("<r>", "rs"), ("\n", "lr"), ("  ", "l")],
    [("word", "w"), ("-", "")],
    [("word", "wlr"), ("_", "n")],
    [("Tok", "n"), ("caf\u00e9", "n"), ("\u65e5\u672c", "")],
    [("aa", ""), ("a", "r")],
]
# Beside the tokens themselves; marks, joiners and circled letters are word characters.
BITS = ["a", "b", "<", ">", " ", "  ", "\n", "\t", "\u00a0", "\u3000", "\u180e", "_", "-", "1", "\u00e9", "e\u0301", "\u0301",
        "\u200d", "\u24d0", "\u65e5", "\U0001f600", "\u203f"]


def tokenizer_with(tokens):
    file = json.loads(BASE)
    vocabulary = file["model"]["vocab"]
    made = []
    for content, flags in tokens:
        made.append({"id": vocabulary.get(content, 259 + len(made)), "content": content, "single_word": "w" in flags, "lstrip": "l" in flags,
                     "rstrip": "r" in flags, "normalized": "n" in flags, "special": "s" in flags})
    file["added_tokens"] += made
    return Tokenizer.from_str(json.dumps(file)), made


def ids_of(tokenizer, text):
    try:
        return tokenizer.encode(text, add_special_tokens=False).ids
    except BaseException:  # "AddedVocabulary bad split": lstrip after an rstrip that took more
        return None


for seed, tokens in enumerate(SETS):
    rng = random.Random(seed)
    tokenizer, made = tokenizer_with(tokens)
    contents = [content for content, _ in tokens]
    texts = contents + [" " + c for c in contents] + [c + " \n" for c in contents] + [c + c for c in contents]
    texts += ["".join(rng.choice(contents * 3 + BITS) for _ in range(rng.randrange(2, 12))) for _ in range(80)]
    cases = [{"text": text, "ids": ids} for text in texts if (ids := ids_of(tokenizer, text)) is not None]
    print(json.dumps({"added_tokens": made, "cases": cases}))
