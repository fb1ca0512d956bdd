#!/usr/bin/env python3
# An environment with a tool (docs/user/environments.md): the policy may call calculator(expression), and is rewarded when the last
# number of its answer is the label. In a deck: [environment] command = ["python3", "inputs/plugins/calculator.py"], tool_calls = "hermes".
import ast, json, operator, re, sys
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.USub: operator.neg}


def value(node):
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, (ast.BinOp, ast.UnaryOp)) and type(node.op) in OPERATORS:
        parts = (node.left, node.right) if isinstance(node, ast.BinOp) else (node.operand,)
        return OPERATORS[type(node.op)](*(value(part) for part in parts))
    raise ValueError("only numbers, + - * / and brackets")


def result(arguments):  # an object, or the text that tool_pattern found
    try:
        text = str(arguments["expression"] if isinstance(arguments, dict) else arguments)
        return str(value(ast.parse(text[:200], mode="eval").body))
    except Exception as error:
        return f"error: {error}"


episodes = {}
for request in map(json.loads, sys.stdin):
    answer, calls = {"id": request["id"]}, request.get("calls", [])
    if request["type"] == "reset":
        episodes[request["episode"]] = request
    elif request["type"] == "step" and (calls or "error" in request):
        said = [result(call["arguments"]) for call in calls] + ([request["error"]] if "error" in request else [])
        chat = "messages" in episodes[request["episode"]]  # a plain prompt goes on with plain text
        answer |= {"messages": [{"role": "tool", "content": text} for text in said]} if chat else {"text": "\n" + "\n".join(said) + "\n"}
        bad = [i for i, text in enumerate(said) if text.startswith("error: ")]
        answer |= {"failed": bad, "metrics": {"calls": len(calls)}}
    else:
        right = re.findall(r"-?\d+(?:\.\d+)?", request.get("text", ""))[-1:] == [episodes.pop(request["episode"])["label"]]
        answer |= {"reward": float(right), "done": True, "metrics": {"calls": 0}}
    if request["type"] != "close":
        print(json.dumps(answer), flush=True)
