#!/usr/bin/env python3
"""Finds public functions that the program does not use: declared in include/trireme, named nowhere in src, include or perf but where they are
declared and defined. A reader's eye for C++, no parser: names, not overloads. unwired.json lists exceptions with the reason.

    check_unwired.py ROOT           check the tree at ROOT
    check_unwired.py --self-test    made-up trees with and without a caller
"""

import collections
import json
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CODE = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
KEYWORDS = set("if for while switch return sizeof alignof decltype static_assert requires noexcept defined catch operator assert".split())
QUALIFIERS = r"(?:\[\[\w+\]\]\s*)?(?:template\s*<[^>]*>\s*)?(?:(?:static|virtual|inline|constexpr|explicit|friend)\s+)*"
TYPE = r"(?!return\b|co_return\b|throw\b|else\b)[A-Za-z_][\w:<>,&* ]*?[\s&*>]"
DECLARATION = re.compile(rf"\s*{QUALIFIERS}{TYPE}([a-z_]\w*)\s*\(")


def code_of(path):
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.S)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', re.sub(r"//[^\n]*", "", text))
    return [line for line in text.split("\n") if not line.lstrip().startswith("#")]


def declared(root):
    """Name -> public headers that declare a function of that name."""
    names = collections.defaultdict(set)
    for path in sorted((root / "include/trireme").rglob("*.hpp")):
        for line in code_of(path):
            match = DECLARATION.match(line)
            if match and match[1] not in KEYWORDS:
                names[match[1]].add(path)
    return names


def is_use(line, name, in_its_header):
    """Whether a line that names the function uses it, rather than declares, overrides or defines it."""
    if in_its_header:
        return not re.match(rf"\s*{QUALIFIERS}{TYPE}{name}\s*\(", line)
    if line[:1] in (" ", "\t"):
        return not re.match(rf"\s+(?:virtual\s+|static\s+)?{TYPE}{name}\s*\([^;]*\)[^;=]*override", line)
    if re.search(rf"\{{.*\b{name}\b", line):  # the body of a function on one line
        return True
    # Column 0 of a source file: a definition, or the head of one that is continued.
    return not re.search(rf"[\s&*>:]{name}\s*\(", line) and bool(re.search(rf"[(,]\s*{name}\b", line))


def unwired(root):
    names = declared(root)
    waiting = set(names)
    files = [path for area in ("src", "include", "perf") if (root / area).exists()
             for path in sorted((root / area).rglob("*")) if path.suffix in CODE]
    for path in files:
        for line in code_of(path):
            for name in waiting.intersection(re.findall(r"\b[a-z_]\w*\b", line)):
                if is_use(line, name, path in names[name]):
                    waiting.discard(name)
    return {name: sorted(str(path.relative_to(root)) for path in names[name]) for name in sorted(waiting)}


def check(root, allowed):
    found = unwired(root)
    problems = [f"{', '.join(headers)}: {name}() is called by nothing but tests: let the program use it, make it private, or delete it with its tests"
                for name, headers in found.items() if name not in allowed]
    problems += [f"tests/style/unwired.json: {name} is used now, or gone: remove its row" for name in allowed if name not in found]
    problems += [f"tests/style/unwired.json: no reason for {name}" for name, reason in allowed.items() if not reason.strip()]
    return problems


HEADER = """#pragma once
namespace trireme::a {
// Does it.
int used(int x);
class C {
 public:
  int member() const;
  static C make();
  virtual void act() = 0;
};
}
"""
CALLS = """#include "trireme/a/a.hpp"
namespace trireme::a {
int used(int x) { return x; }
int C::member() const { return 1; }
C C::make() { return C(); }
class D : public C {
  void act() override {}
};
int all(C& c) {
  c.act();
  return used(c.member()) + C::make().member();
}
}
"""


def self_test():
    failures = []
    for gone, expected in [("", set()), ("  c.act();\n", {"act"}), ("used(", {"used"}), (" + C::make().member()", {"make"})]:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            text = CALLS.replace(gone, "(") if gone == "used(" else CALLS.replace(gone, "", 1) if gone else CALLS
            if gone == "used(":
                text = "int used(int x) { return x; }\n" + text.replace("int (int x) { return x; }\n", "")
            for name, content in (("include/trireme/a/a.hpp", HEADER), ("src/a/a.cpp", text)):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            if set(unwired(root)) != expected:
                failures.append(f"without {gone!r}: found {set(unwired(root))}, expected {expected}")
            if expected and not check(root, {}):
                failures.append(f"without {gone!r}: no problem was reported")
            if expected and check(root, {name: "why" for name in expected}):
                failures.append(f"without {gone!r}: the exception was not taken")
            if not expected and not check(root, {"gone": "why"}):
                failures.append("an exception that is not needed was kept")
    print("\n".join(failures) or "every function without a caller was found")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    problems = check(pathlib.Path(sys.argv[1]).resolve(), json.loads((HERE / "unwired.json").read_text()))
    print("\n".join(problems + [f"{len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
