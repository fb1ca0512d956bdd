"""Renders expressions.txt (one a line) and blocks.txt (one a line, as JSON) with jinja2 in the settings of HF transformers and prints templates.jsonl:
first the inputs, then each template with its text, null where jinja2 refuses it.

    python3 make_templates.py > templates.jsonl      # jinja2 3.1.6, Python 3.11
"""
import json
import pathlib

import datetime
from make_jinja import ENVIRONMENT

HERE = pathlib.Path(__file__).parent
MESSAGES = [{"role": "system", "content": " be brief \n", "n": 3, "f": 1.5},
            {"role": "user", "content": "H\u00e9llo <b> & 'w' \"q\"\tx\nline2", "tags": ["b", "A", "c"]},
            {"role": "assistant", "content": "ok",
             "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": [1.5, 1e22, None, True], "\u00e4": "\u00f6"}}}]}]
VARIABLES = {"tools": [{"name": "t1", "d": {"z": 1, "a": 2}}], "num": 7, "fl": 2.5, "lst": [3, 1, 2], "txt": "The quick brown fox"}
ENVIRONMENT.globals["strftime_now"] = lambda form: datetime.datetime(2026, 11, 27).strftime(form)

templates = ["{{ " + line + " }}" for line in (HERE / "expressions.txt").read_text().splitlines()]
templates += [json.loads(line) for line in (HERE / "blocks.txt").read_text().splitlines()]
print(json.dumps({"messages": MESSAGES, "variables": VARIABLES}, ensure_ascii=False))
for template in templates:
    try:
        text = ENVIRONMENT.from_string(template).render(messages=MESSAGES, add_generation_prompt=True, bos_token="<s>", eos_token="</s>", documents=None,
                                                        **VARIABLES)
    except Exception:
        text = None
    print(json.dumps({"template": template, "text": text}, ensure_ascii=False))
