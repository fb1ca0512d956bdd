"""Prints chats.jsonl: records of data sets, rendered by transformers as TRL asks it to, for the templates below.

    python3 make_chats.py TRL/trl/data_utils.py > chats.jsonl      # transformers 5.15, jinja2 3.1, TRL 1.16 (its data_utils.py alone)

A row has `template`, `kwargs` and `date` of the run, `form` (prompt, sft or pair), the `record`, and what TRL makes of it: `text` of a prompt;
`parts` of sft (prompt, answer) and of a pair (prompt, chosen, rejected); null where transformers refuses.
"""
import datetime
import importlib.util
import json
import sys

from transformers.utils import chat_template_utils

SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
DATE = "2026-03-09"


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*map(int, DATE.split("-")))


chat_template_utils.datetime = Clock


class Tokenizer:
    """What TRL asks of a tokenizer, by transformers' own renderer."""

    def __init__(self, template):
        self.template = template

    def apply_chat_template(self, messages, tools=None, documents=None, tokenize=False, **kwargs):
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=tools, documents=documents, chat_template=self.template, **{**SPECIAL, **kwargs}
        )
        return rendered[0]


def load_trl(path):
    spec = importlib.util.spec_from_file_location("data_utils", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOLS = [
    {"type": "function", "function": {"name": "calc", "description": "adds", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "größe", "description": "<&>", "parameters": {}}},
]
DOCUMENTS = [{"title": "T", "text": "a \"b\""}, {"title": "U", "text": "c"}]
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]}
NO_CONTENT = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"a": [1.5, None]}}}]}

USER = {"role": "user", "content": "1+1="}
SYSTEM = {"role": "system", "content": "be brief"}


def answer(text, **more):
    return {"role": "assistant", "content": text, **more}


TEMPLATES = {
    # case 14: tools, with documents
    "tools": "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }}{% endfor %}</tools>\n{% endif %}"
    "{% if documents %}{% for d in documents %}[{{ d.title }}:{{ d['text'] }}]{% endfor %}{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    # case 16: the date, asked for without `is defined`
    "date": "{%- set today = strftime_now('%Y-%m-%d') %}{{- bos_token }}[SYSTEM]It is {{ today }}.[/SYSTEM]"
    "{% for m in messages %}[INST]{{ m.content }}[/INST]{% endfor %}",
    # and as Llama 3.2 and others do
    "dates": "{%- if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}|{{ strftime_now(\"%B %d, %Y\") }}|{{ strftime_now('%A %a %-d %e %j %U %H:%M:%S %p %y %% %x %f%z') }}"
    "{%- else %}26 Jul 2024{%- endif %}\n{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}",
    # case 22, and its neighbours
    "choose": "{%- set code = tools | selectattr('type', 'equalto', 'code_interpreter') | list | length > 0 -%}{{ code }}"
    "{{ documents | rejectattr('title') | list | length }}{{ none | select | list | length }}{{ false | reject('none') | list | length }}"
    "{{ 0 | select('string') | list | length }}{{ '' | reject | list | length }}{{ nope | selectattr('x', 'defined') | list | length }}"
    "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}",
    # ChatML with variables
    "chatml": "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}",
    "kwargs": "{{ system | default('-') }}/{{ n | default(0) + 1 }}/{{ style | default({}) | tojson }}/{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    # contents that are trimmed, as Llama 3 does
    "trim": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>\n\n{{ m.content | trim }}<|eos|>{% endfor %}{% if add_generation_prompt %}<assistant>\n\n{% endif %}",
    # parts are looped over, as in Gemma 3
    "parts": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for part in m['content'] %}{{ part['text'] | trim }}{% endfor %}{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    "calls": "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{{ '|' if m.content is none else '?' }}{{ m.content is defined }}{% else %}{{ m.content }}{% endif %}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    # case 24: DeepSeek R1 Distill, QwQ, and a template that keeps thoughts
    "r1": "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}{% else %}{% set c = m.content %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}<A>{{ c }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<A><think>\n{% endif %}",
    "qwq": "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ m.content }}{% endif %}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    "keeps": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ eos_token }}\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
    "reason": "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}",
    "drops": "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else '' }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
}

ROWS = []


def add(form, template, record, kwargs=None):
    ROWS.append((form, template, record, kwargs or {}))


for given in [{}, {"tools": TOOLS}, {"documents": DOCUMENTS}, {"tools": TOOLS[:1], "documents": DOCUMENTS[:1]}, {"tools": []}, {"tools": None}, {"tools": json.dumps(TOOLS)}]:
    add("prompt", "tools", {"messages": [USER], **given})
    add("prompt", "choose", {"messages": [SYSTEM, USER], **given})
add("prompt", "tools", {"prompt": [USER], "tools": TOOLS})
add("sft", "tools", {"prompt": [USER], "response": [answer("2")], "tools": TOOLS})
add("pair", "tools", {"prompt": [USER], "chosen": [answer("2")], "rejected": [answer("3")], "tools": TOOLS})
for template in ["date", "dates"]:
    add("prompt", template, {"messages": [USER]})
    add("prompt", template, {"messages": [SYSTEM, USER]})
add("pair", "dates", {"prompt": [USER], "chosen": [answer("2")], "rejected": [answer("3")]})
for kwargs in [{}, {"enable_thinking": False}, {"enable_thinking": True}]:
    add("prompt", "chatml", {"messages": [USER]}, kwargs)
    add("prompt", "chatml", {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}, kwargs)
    add("prompt", "chatml", {"messages": [USER], "chat_template_kwargs": {}}, kwargs)
for kwargs in [{"system": "x", "n": 41}, {"style": {"a": [1, None, "é"]}}, {"bos_token": "<s>"}, {"n": 1.5}]:
    add("prompt", "kwargs", {"messages": [USER]}, kwargs)
    add("prompt", "kwargs", {"messages": [USER], "chat_template_kwargs": {"system": "y"}}, kwargs)
# case 27: a last turn of the assistant is continued
for template in ["chatml", "kwargs", "trim", "parts", "keeps", "calls", "r1", "tools"]:
    for text in ["The answer is", "So: ", " \nx\n", "Let me see <think>\n", "1+1=", ""]:
        add("prompt", template, {"messages": [USER, answer(text)]})
    add("prompt", template, {"messages": [SYSTEM, USER, answer("2"), {"role": "user", "content": "again"}, answer("I said")]})
    add("prompt", template, {"prompt": [USER, answer("Half of")]})
add("prompt", "trim", {"messages": [USER, {"role": "tool", "content": "2"}]})
add("prompt", "parts", {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]}]})
# case 28: parts, where the template knows them
for content in [[{"type": "text", "text": " 1+1="}], [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}], []]:
    add("prompt", "parts", {"messages": [{"role": "user", "content": content}]})
# case 29
for call in [CALL, NO_CONTENT, {**CALL, "content": ""}]:
    add("prompt", "calls", {"messages": [USER, call, {"role": "tool", "content": "2"}]})
    add("sft", "calls", {"prompt": [USER], "response": [call]})
# case 24
THOUGHT = "<think>\nhm\n</think>\n\n2"
for template in ["r1", "qwq", "keeps", "chatml", "trim"]:
    # A content that begins as the opening continues ("<b>", or none before "<|eos|>") departs from TRL, which cuts inside it: chats_test.cpp has it.
    for text in ["2", THOUGHT, "é", "x <think>"] if template in ("r1", "qwq") else [THOUGHT] if template == "keeps" else ["2", "<b>2</b>", THOUGHT, ""]:
        add("sft", template, {"prompt": [USER], "response": [answer(text)]})
        add("pair", template, {"prompt": [SYSTEM, USER] if template != "r1" else [USER], "chosen": [answer(text)], "rejected": [answer("3" if template != "keeps" else "<think>\n3")]})
add("sft", "reason", {"prompt": [USER], "response": [answer("2", reasoning_content="hm")]})
add("sft", "reason", {"prompt": [USER], "response": [answer("2")]})
add("pair", "reason", {"prompt": [USER], "chosen": [answer("2", reasoning_content="hm")], "rejected": [answer("3")]})
add("pair", "reason", {"prompt": [USER], "chosen": [answer("2")], "rejected": [answer("3", reasoning_content="so")]})
# cases 26, 55, A7: whole chats
for prompt in [{}, {"prompt": "1+1="}, {"prompt": "something else", "prompt_id": "p"}, {"prompt": "1+1=", "messages": [USER, answer("2")]}]:
    for template in ["chatml", "trim", "r1"]:
        add("pair", template, {**prompt, "chosen": [USER, answer("2")], "rejected": [USER, answer("3")], "score_chosen": 7.5})
        add("pair", template, {**prompt, "chosen": [USER, answer("a"), USER, answer("2")], "rejected": [USER, answer("a"), USER, answer("3")]})


def made(trl, form, template, record, kwargs):
    tokenizer = Tokenizer(TEMPLATES[template])
    if "response" in record:
        record = {("completion" if k == "response" else k): v for k, v in record.items()}
    tools = record.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools  # as TRL's trainers do
    own = record.get("chat_template_kwargs") or {}
    more = {k: v for k, v in {**kwargs, "documents": record.get("documents")}.items() if k not in own}
    if form == "prompt":
        chat = record.get("prompt") or record["messages"]
        example = {"prompt": chat, "chat_template_kwargs": own}
    elif form == "sft":
        example = {"prompt": record["prompt"], "completion": record["completion"]}
    else:
        example = trl.maybe_extract_prompt({k: record[k] for k in ("prompt", "chosen", "rejected") if k in record})
    out = trl.apply_chat_template(example, tokenizer, tools=tools, **more)
    if form == "prompt":
        return {"text": out["prompt"]}
    return {"parts": [out[k] for k in ("prompt", "completion", "chosen", "rejected") if k in out]}


def main():
    trl = load_trl(sys.argv[1])
    for form, template, record, kwargs in ROWS:
        try:
            result = made(trl, form, template, record, kwargs)
        except Exception as error:
            print(f"{template} {json.dumps(record)}: {type(error).__name__}", file=sys.stderr)
            result = {"text": None}
        print(json.dumps({"form": form, "template": TEMPLATES[template], "kwargs": kwargs, "date": DATE, "record": record, **result}, ensure_ascii=False))


main()
