#!/usr/bin/env python3
"""Finds public functions that the program does not use: declared in include/trireme, named nowhere in src or include but where they are
declared and defined. A reader's eye for C++, no parser: names, not overloads. Given the program's libraries and objects, it asks these instead:
functions that none of them refers to, so that one is found whose name another class or an overload has too. unwired.json lists exceptions with
the reason: of the first kind by their name, of the second as Class::name or module::name.

    check_unwired.py ROOT                   check the tree at ROOT
    check_unwired.py ROOT LIBRARY... [--left-out SOURCE...]
                                            check what the program is linked from; SOURCES are the program's too, but not part of this build
    check_unwired.py --self-test COMPILER   fake trees with and without a caller
"""

import collections
import json
import pathlib
import re
import subprocess
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
    files = [path for area in ("src", "include") if (root / area).exists()
             for path in sorted((root / area).rglob("*")) if path.suffix in CODE]
    for path in files:
        for line in code_of(path):
            for name in waiting.intersection(re.findall(r"\b[a-z_]\w*\b", line)):
                if is_use(line, name, path in names[name]):
                    waiting.discard(name)
    return {name: sorted(str(path.relative_to(root)) for path in names[name]) for name in sorted(waiting)}


def output_of(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def referred_to(path):
    """Symbols that the code and the tables of a library or object refer to."""
    section = ""
    for line in output_of("readelf", "--relocs", "--wide", path).splitlines():
        if line.startswith("Relocation section"):
            section = line.split("'")[1]
        elif not re.search(r"\.eh_frame|\.debug", section) and len(line.split()) >= 5:
            yield line.split()[4].split("@")[0]


def defined(path):
    """External functions of ours in a library or object."""
    for line in output_of("nm", "--defined-only", path).splitlines():
        if (match := re.match(r"[0-9a-f]+ T (_ZN\w+)$", line)) and "7trireme" in match[1]:
            yield match[1]


def called_by_name(root, module, name, left_out):
    """Whether the module calls it without an object in front: such a call may be inlined where it stands, and leave no reference. Sources that
    this build leaves out (`left_out`: those of the GPU variant) count as callers in any form, since they have no library to ask."""
    files = [path for area in ("src", "include/trireme") for path in sorted((root / area / module).rglob("*")) if path.suffix in CODE]
    for path in files + left_out:
        call = re.compile(rf"\b{name}\s*\(" if path in left_out else rf"(?<![\w.>]){name}\s*\(")
        for line in code_of(path):
            if line[:1] not in (" ", "\t"):
                line = line.partition("{")[2]  # without the head of a definition
            elif (match := DECLARATION.match(line)) and match[1] == name:
                continue
            if call.search(line):
                return True
    return False


def unreferenced(root, libraries, left_out=()):
    """Class::name or module::name -> the library, of public functions that no library refers to; and of those that are called by name alone."""
    names, referred, found, named = declared(root), set(), {}, {}
    left_out = [root / path for path in left_out]
    for library in libraries:
        referred.update(referred_to(library))
    for library in libraries:
        dead = sorted(set(defined(library)) - referred)
        for symbol in output_of("c++filt", text="\n".join(dead)).splitlines():
            match = re.match(r"(?:.*? )??trireme::(\w+)::(?:\w+::)*?(?:(\w+)::)?(\w+)(?:\[abi:\w+\])?\(", symbol)
            if not match or "(anonymous" in symbol or match[3] == match[2] or match[3] not in names:  # constructors have two symbols each
                continue
            module, owner, name = match.groups()
            kind = named if called_by_name(root, module, name, left_out) else found
            kind[f"{owner or module}::{name}"] = pathlib.Path(library).name
    return found, named


def check_libraries(root, libraries, allowed, left_out=()):
    found, named = unreferenced(root, libraries, left_out)
    allowed = {name: reason for name, reason in allowed.items() if "::" in name}
    problems = [f"{library}: {name}() is called by nothing but tests: let the program use it, make it private, or delete it with its tests"
                for name, library in found.items() if name not in allowed]
    return problems + [f"tests/style/unwired.json: {name} is used now, or gone: remove its row" for name in allowed if name not in found | named]


def check(root, allowed):
    found = unwired(root)
    allowed = {name: reason for name, reason in allowed.items() if "::" not in name}
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


def self_test(compiler):
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
    failures += self_test_of_libraries(compiler)
    print("\n".join(failures) or "every function without a caller was found")
    return 1 if failures else 0


TWO_CLASSES = """#pragma once
namespace trireme::a {
struct First {
  int size() const;
};
struct Second {
  int size() const;
};
int inlined(int x);
int called();
int on_devices();
}
"""


def self_test_of_libraries(compiler):
    """Names that another class or a free function has too are told apart; a call that may be inlined counts."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        sources = {"src/a/a.cpp": """#include "trireme/a/a.hpp"
namespace trireme::a {
int First::size() const { return 1; }
int Second::size() const { return 2; }
int inlined(int x) { return x + 4; }
int called() { return inlined(5); }
int on_devices() { return 6; }
}
""", "src/b/device_waits.cpp": """#include "trireme/a/a.hpp"
namespace trireme::b {
int wait() { return a::on_devices(); }
}
""", "src/b/b.cpp": """#include "trireme/a/a.hpp"
int main() { return trireme::a::First().size() + trireme::a::called(); }
"""}
        for name, content in {"include/trireme/a/a.hpp": TWO_CLASSES, **sources}.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        objects = []
        for name in ("src/a/a.cpp", "src/b/b.cpp"):
            objects.append(str(root / name) + ".o")
            subprocess.run([compiler, "-std=c++20", "-O2", f"-I{root / 'include'}", "-c", root / name, "-o", objects[-1]], check=True)
        found = set(unreferenced(root, objects)[0])
        beside = set(unreferenced(root, objects, ["src/b/device_waits.cpp"])[0])
        rows = check_libraries(root, objects, {"Second::size": "why", "a::on_devices": "why", "gone::gone": "why"})
    failures = [] if found == {"Second::size", "a::on_devices"} else [f"of two classes: found {found}"]
    failures += [] if beside == {"Second::size"} else [f"with a caller that is not built: found {beside}"]
    return failures + ([] if len(rows) == 1 and "gone::gone" in rows[0] else [f"of two classes: reported {rows}"])


def main():
    if sys.argv[1:2] == ["--self-test"] and len(sys.argv) == 3:
        return self_test(sys.argv[2])
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    root, allowed = pathlib.Path(sys.argv[1]).resolve(), json.loads((HERE / "unwired.json").read_text())
    arguments = [path for part in sys.argv[2:] for path in part.split(";")]  # as CMake writes the objects of a target
    end = arguments.index("--left-out") if "--left-out" in arguments else len(arguments)
    libraries, left_out = arguments[:end], arguments[end + 1:]
    problems = check_libraries(root, libraries, allowed, left_out) if libraries else check(root, allowed)
    print("\n".join(problems + [f"{len(problems)} problems"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
