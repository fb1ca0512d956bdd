#!/usr/bin/env python3
"""Writes cases.json: what vLLM's parsers "hermes" and "llama3_json", and transformers' parser of responses, take for a tool call.

    make.py VLLM     VLLM: a checkout of vLLM (its functions extract_tool_calls are run, nothing else of it); needs pydantic, regex,
                     transformers and jmespath

`vllm`: the calls, null where it takes the turn for a text. `transformers`: the same, by a template of responses with these tags.
"""

import ast
import json
import logging
import pathlib
import sys
import types

import pydantic
import regex
from transformers.utils.chat_parsing import parse_response

HERE = pathlib.Path(__file__).resolve().parent
CALL = '{"name": "add", "arguments": {"a": 1, "b": 2}}'


def tagged(*calls):
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


HERMES = [
    tagged(CALL), "I add.\n" + tagged(CALL), tagged(CALL) + "\nDone.", tagged(CALL, CALL), f"<tool_call>{CALL}</tool_call>", f"<tool_call>\n{CALL}", "No call.",
    "", "<tool_call></tool_call>", "<tool_call>\n</tool_call>", "<tool_call>", tagged(CALL) + "<tool_call>", tagged("add(1, 2)"), tagged('{"name": "add"}'),
    tagged('{"arguments": {}}'), tagged('{"name": "add", "parameters": {"a": 1}}'), tagged('{"name": 3, "arguments": {}}'), tagged('{"name": null, "arguments": {}}'),
    tagged('{"name": "add", "arguments": null}'), tagged('{"name": "add", "arguments": []}'), tagged('{"name": "add", "arguments": 7}'),
    tagged('{"name": "add", "arguments": "{\\"a\\": 1}"}'), tagged('{"name": "add", "arguments": "one"}'), tagged('{"name": "add", "arguments": {"a": 1,}}'),
    tagged("{'name': 'add', 'arguments': {}}"), tagged('{"name": "add", "arguments": {"a": 1}'), tagged('{"name": "add", "arguments": {"a": 1}}}'),
    tagged(f"[{CALL}]"), tagged('"add"'), tagged(CALL + "\n" + CALL), tagged('{"name": "add", "arguments": {"a": 1}, "id": "x"}'),
    tagged('{"arguments": {"a": 1}, "name": "add"}'), tagged('{"name": "add", "name": "sub", "arguments": {"a": 1, "a": 2}}'), tagged('{"name": "", "arguments": {}}'),
    tagged('{"name": "say", "arguments": {"text": "</tool_call>"}}'), tagged('{"name": "say", "arguments": {"text": "a\\n\\u00e9 \\ud83d\\ude00 \\"q\\""}}'),
    tagged('{"name": "say", "arguments": {"text": "a\nb"}}'), tagged('{"name": "say", "arguments": {"text": "é 日本"}}'),
    tagged('{"name": "add", "arguments": {"a": 123456789012345678901234567890, "b": 1.0, "c": 1e3, "d": -0.5}}'), tagged('{"name": "add", "arguments": {"a": 01}}'),
    tagged('{"name": "add", "arguments": {"a": true, "b": null, "c": [1, {"d": []}]}}'), f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>", f"<TOOL_CALL>{CALL}</TOOL_CALL>",
    f"<tool_call>{CALL}<tool_call>{CALL}</tool_call>", f"{CALL}</tool_call>", CALL, "<tool_call> " + CALL + " \t\r\n</tool_call>", tagged(CALL, "{}", CALL),
    tagged('{"name": "add", "arguments": {}} and more'), tagged("// add\n" + CALL), "<tool_call >" + CALL + "</tool_call>", tagged('{"name": "add", "arguments": ""}'),
]
PARAMETERS = '{"name": "add", "parameters": {"a": 1, "b": 2}}'
LLAMA = [
    PARAMETERS, "<|python_tag|>" + PARAMETERS, CALL, "  \n" + PARAMETERS + "\n", PARAMETERS + "; " + PARAMETERS, PARAMETERS + ";" + PARAMETERS + " ; " + CALL, "I add. " + PARAMETERS,
    PARAMETERS + " That is all.", '{"type": "function", "name": "add", "parameters": {"a": 1}}', "No call.", "", "The set {1, 2} has two.", '{"answer": 42}', "{", "{}",
    '{"name": "add"}', '{"parameters": {}}', '{"name": "add", "parameters": {"a": 1}', '{"name": "add", "parameters": {"a": 1}}}', "<|python_tag|>print(1)", "<|python_tag|>",
    "<|python_tag|>{", '{"name": "add", "parameters": "a"}', '{"name": "add", "parameters": null}', '{"name": 1, "parameters": {}}', f"[{PARAMETERS}]",
    '{"name": "add", "parameters": {"a": {"b": {"c": [{"d": 1}]}}}}', '{"name": "say", "parameters": {"text": "{not; json}"}}', '{"name": "say", "parameters": {"text": "a } b { \\" }"}}',
    '{"function": "add", "parameters": {}}', '{"function": {"name": "add", "arguments": {}}}', '{"name": "add", "arguments": {"a": 1}, "parameters": {"a": 2}}',
    "{'name': 'add', 'parameters': {}}", PARAMETERS + "\n" + PARAMETERS, PARAMETERS + ' {"x": 1}', '{"x": 1} ' + PARAMETERS, "{1, 2} " + PARAMETERS, PARAMETERS + " {1, 2}",
    "<function=add>{\"a\": 1}</function>", '{"name": "add", "parameters": {"a": 1.50, "b": 12345678901234567890123}}', '{"name": "add", "parameters": {"a": 1, "a": 2}}',
    '```json\n{"name": "add", "parameters": {"a": 1}}\n```',
]
TEMPLATE = {"start_anchor": "<|im_start|>assistant\n", "fields": {
    "content": {"content": "text"}, "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True}}}


class FunctionCall(pydantic.BaseModel):
    name: str
    arguments: str


class ToolCall(pydantic.BaseModel):
    type: str
    function: FunctionCall


def vllm_parser(file, **members):
    """The function extract_tool_calls of a parser's class, with the members that its constructor would set."""
    tree = ast.parse(file.read_text())
    function = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "extract_tool_calls")
    function.returns = None
    for argument in function.args.args:
        argument.annotation = None
    logger = logging.getLogger("vllm")
    logger.disabled = True
    scope = {"json": json, "re": regex, "logger": logger, "FunctionCall": FunctionCall, "ToolCall": ToolCall, "ExtractedToolCallInformation": types.SimpleNamespace,
             "envs": types.SimpleNamespace(VLLM_TOOL_PARSE_REGEX_TIMEOUT_SECONDS=1)}
    exec(compile(ast.Module([function], []), str(file), "exec"), scope)
    return lambda text: scope["extract_tool_calls"](types.SimpleNamespace(**members), text, None)


def calls_of(result):
    if not result.tools_called:
        return None
    return [{"name": call.function.name, "arguments": json.loads(call.function.arguments)} for call in result.tool_calls]


def by_transformers(text):
    """What it reads between the tags, where that is calls by its chat templates: it looks at the JSON alone."""
    try:
        calls = parse_response(text, TEMPLATE, prefix="").get("tool_calls")
    except ValueError:
        return None
    fit = calls and all(isinstance(call, dict) and isinstance(call.get("name"), str) and "arguments" in call for call in calls)
    return [{"name": call["name"], "arguments": call["arguments"]} for call in calls] if fit else None


def main():
    parsers = pathlib.Path(sys.argv[1]) / "vllm/tool_parsers"
    hermes = vllm_parser(parsers / "hermes_tool_parser.py", tool_call_start_token="<tool_call>",
                         tool_call_regex=regex.compile(r"<tool_call>(.*?)</tool_call>|<tool_call>(.*)", regex.DOTALL))
    llama = vllm_parser(parsers / "llama_tool_parser.py", bot_token="<|python_tag|>", tool_call_start_regex=regex.compile(r"\{"), json_decoder=json.JSONDecoder())
    cases = [{"form": "hermes", "text": text, "vllm": calls_of(hermes(text)), "transformers": by_transformers(text)} for text in HERMES]
    cases += [{"form": "llama3", "text": text, "vllm": calls_of(llama(text))} for text in LLAMA]
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (HERE / "cases.json").write_text(f"[\n{lines}\n]\n")
    print(len(cases), "cases,", sum(case["vllm"] is not None for case in cases), "with calls")


main()
