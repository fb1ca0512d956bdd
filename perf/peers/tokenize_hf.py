"""Hugging Face `tokenizers` on one thread, one text: MB of text a second.

    tokenize_hf.py TOKENIZER_FOLDER TEXT_FILE encode|decode
"""

import json
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import Tokenizer  # noqa: E402

folder, file, what = sys.argv[1:]
tokenizer = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
text = pathlib.Path(file).read_bytes().decode()
ids = tokenizer.encode(text, add_special_tokens=False).ids
best = 1e9
until = time.perf_counter() + 2
while time.perf_counter() < until:
    start = time.perf_counter()
    if what == "encode":
        tokenizer.encode(text, add_special_tokens=False)
    else:
        tokenizer.decode(ids, skip_special_tokens=False)
    best = min(best, time.perf_counter() - start)
print(json.dumps({"MB/s": len(text.encode()) * 1e-6 / best}))
