#!/usr/bin/env python3
"""Reads the sources and fails on what the design forbids. The rules stand in `RULES` below, the module table in layers.json.

    check_source.py ROOT           check the tree at ROOT
    check_source.py --self-test    break each rule once in a fake tree and see it found
    check_source.py --markdown     the module table as it stands in docs/dev/architecture.md
"""

import json
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
LAYERS = json.loads((HERE / "layers.json").read_text())
CODE = {".hpp", ".cpp", ".cu", ".cuh", ".h"}
HEADERS = {".hpp", ".cuh", ".h"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_COLUMNS = 100
LOOP_LINES = LAYERS["most_lines"]["src/driver/ppo_loop.cpp"]
TABLE_BEGIN, TABLE_END = "<!-- modules: begin -->", "<!-- modules: end -->"

# A public header may show tensors, nothing else that is not ours.
PUBLIC_THIRD_PARTY = {"ATen/core/Tensor.h", "nlohmann/json_fwd.hpp"}


class Source:
    """One file: its text without comments, its includes, the module it belongs to."""

    def __init__(self, root, path):
        self.path = path.relative_to(root)
        self.raw = path.read_text(encoding="utf-8")
        self.code = without_comments(self.raw)
        self.lines = self.code.splitlines()
        parts = self.path.parts
        self.area = parts[0]
        self.public = parts[:2] == ("include", "trireme")
        self.module = parts[2] if self.public and len(parts) > 3 else parts[1] if self.area == "src" and len(parts) > 2 else None
        self.includes = [(n, m.group(1)) for n, line in enumerate(self.lines, 1)
                         if (m := re.match(r'\s*#\s*include\s*[<"]([^">]+)[">]', line))]

    def sees_tensors(self):
        return any(group_of(name) == "ATen" for _, name in self.includes)


def without_comments(text):
    """The same text with comments blanked and the contents of strings kept, line numbers unchanged."""
    pattern = r'R"([^(\s]*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])'"
    def blank(match):
        found = match.group(0)
        return re.sub(r"[^\n]", " ", found) if found.startswith("/") else found
    return re.sub(pattern, blank, text, flags=re.S)


def without_strings(code):
    pattern = r'R"([^(\s]*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])'"
    return re.sub(pattern, lambda m: '""' + "\n" * m.group(0).count("\n"), code, flags=re.S)


def group_of(include):
    for group, prefixes in LAYERS["groups"].items():
        if any(include.startswith(prefix) for prefix in prefixes):
            return group
    return None


def module_of(include):
    """The module that an include of ours names, or None. `torch/` is the header set of LibTorch, no module."""
    parts = [part for part in include.split("/") if part not in (".", "..")]
    if parts[0] == "trireme":
        return parts[1]
    return parts[0] if len(parts) > 1 and parts[0] in LAYERS["modules"] else None


# ---- rules: each yields (line, message) for one file ------------------------------------------------------------------


def modules_in_their_row(source):
    if not source.module or source.module == "torch":
        return
    row = LAYERS["modules"].get(source.module)
    if row is None:
        yield 1, f"module '{source.module}' has no row in tests/style/layers.json"
        return
    for line, include in source.includes:
        used = module_of(include)
        if used and used != source.module and used not in row["uses"]:
            yield line, f"module '{source.module}' may not use '{used}' (<{include}>); its row allows: {', '.join(row['uses']) or 'none'}"
        if used and used != source.module and not include.startswith("trireme/"):
            yield line, f'"{include}" is a private header of module \'{used}\''


def third_party_in_its_row(source):
    if not source.module or source.module == "torch":
        return
    allowed = LAYERS["modules"].get(source.module, {}).get("third_party", {})
    for line, include in source.includes:
        group = group_of(include)
        if group and group not in allowed:
            yield line, f"module '{source.module}' may not use {group} (<{include}>)"


def public_headers_are_narrow(source):
    if not source.public:
        return
    for line, include in source.includes:
        if group_of(include) and include not in PUBLIC_THIRD_PARTY:
            yield line, f"a public header may not include <{include}>"
    if "#pragma once" not in source.code:
        yield 1, "no #pragma once"


def torch_is_kept_apart(source):
    for line, include in source.includes:
        if include in ("torch/torch.h", "torch/extension.h", "torch/all.h"):
            yield line, f"<{include}> costs 20 s a file: take the lean set of src/torch/torch.hpp"
        if include.startswith(("torch/csrc/jit", "torch/script.h", "torch/serialize")):
            yield line, f"<{include}> reaches the unpickler"
        if group_of(include) in ("fmt", "spdlog") and source.sees_tensors():
            yield line, "fmt and spdlog may not meet ATen in one file (the LibTorch wheel ships another fmt)"
        if source.path.suffix in (".cu", ".cuh") and group_of(include) == "ATen":
            yield line, f"no LibTorch header in CUDA files (<{include}>)"


BANNED = [
    (r"\btorch::(load|jit::load|pickle_load)\b|\bUnpickler\b", "reads pickle: weights come as safetensors, state as HDF5", lambda s: True),
    (r"\bMPI_COMM_WORLD\b", "the world communicator is named in comm and main only",
     lambda s: s.module not in ("comm", "cli") and s.area in ("include", "src")),
    (r"\b_GLIBCXX_DEBUG\b", "changes the containers that LibTorch was built with", lambda s: True),
    (r"\bstd::(tmpnam|rand|srand)\b|\b(tmpnam|mktemp)\s*\(", "not reproducible or not safe", lambda s: True),
    (r"\busing\s+namespace\s+std\s*;", "names of std stay in std", lambda s: True),
    (r"\bat::parallel_for\b", "runs on one thread where a file is compiled without OpenMP: take trireme/kernels/parallel.hpp",
     lambda s: s.path.as_posix() != "src/kernels/parallel.cpp"),
]


def banned_words(source):
    for number, line in enumerate(source.lines, 1):
        for pattern, why, applies in BANNED:
            if applies(source) and re.search(pattern, line):
                yield number, f"'{re.search(pattern, line).group(0)}': {why}"
    for number, line in enumerate(source.raw.splitlines(), 1):
        if re.search(r"\b(TODO|FIXME|XXX|HACK)\b", line) or re.search(r"\bnot implemented\b", line, re.I):
            yield number, "unfinished work has no place here: refuse the case with a message, or leave it out"
        if re.search(r"(?<![\w.])/(work|home|root|Users)/", line):
            yield number, "a path of somebody's machine"


def line_width(source):
    """clang-format breaks all but long texts: those are split by hand."""
    for number, line in enumerate(source.raw.splitlines(), 1):
        if source.area in ("include", "src") and len(line) > MAX_COLUMNS:
            yield number, f"{len(line)} columns (limit {MAX_COLUMNS}): split the text"


def file_length(source):
    count = source.raw.count("\n")
    if source.area in ("include", "src", "perf") and count > MAX_FILE_LINES and str(source.path) not in LAYERS["long_files"]:
        yield 1, f"{count} lines (limit {MAX_FILE_LINES}): split it, or give the reason in tests/style/layers.json"


# What may stand between the parameters and the body: qualifiers, a trailing type, a constructor's initialisers.
FUNCTION = re.compile(r"\)\s*(const|noexcept(\([^)]*\))?|override|final|&{1,2}|mutable|->[\w:<>,&*\s]+|:[^:;].*[)}])?\s*"
                      r"(const|noexcept|override|final|->[\w:<>,&*\s]+)*\s*$", re.S)

TYPE_HEAD = re.compile(r"\b(namespace|class|struct|enum|union)\b[^()]*$")


def functions(code):
    """(name, first line, last line) of each outermost function body. A reader's eye for braces, no parser."""
    code = without_strings(code)
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group(0).count("\n"), code, flags=re.M)
    stack, last = [], 0  # stack: (is a function body, head, first line, where the text before an inner brace began)
    for position, char in enumerate(code):
        if char == ";":
            last = position + 1
        elif char == "{":
            head = code[last:position]
            # `f(int v = {})` and `S() : a_{1} {`: the brace belongs to the head, which goes on behind it.
            in_head = head.count("(") > head.count(")") or re.search(r"\)\s*:[^:;]*[\w>]\s*$", head)
            inside = any(entry[0] for entry in stack)
            is_function = not in_head and not inside and bool(FUNCTION.search(head)) and not TYPE_HEAD.search(head)
            stack.append((is_function, head, code.count("\n", 0, last + len(head) - len(head.lstrip())) + 1, last if in_head else None))
            last = last if in_head else position + 1
        elif char == "}" and stack:
            is_function, head, first, resume = stack.pop()
            if is_function:
                names = re.findall(r"([~\w:]+|operator\s*\S+?)\s*\(", head)
                yield (names[0] if names else "?"), first, code.count("\n", 0, position) + 1
            last = position + 1 if resume is None else resume


def function_length(source):
    if source.area not in ("include", "src", "perf"):
        return
    for name, first, last in functions(source.code):
        length = last - first + 1
        if length > MAX_FUNCTION_LINES and f"{source.path}:{name}" not in LAYERS["long_functions"]:
            yield first, f"{name}() has {length} lines (limit {MAX_FUNCTION_LINES}): split it, or give the reason in tests/style/layers.json"


RULES = [modules_in_their_row, third_party_in_its_row, public_headers_are_narrow, torch_is_kept_apart, banned_words, line_width, file_length,
         function_length]


# ---- rules over the whole tree -----------------------------------------------------------------------------------------


def few_files_per_library(sources):
    """`one .cpp` of the table: libraries that are wrapped stay in the file that wraps them."""
    users = {}
    for source in sources:
        for _, include in source.includes:
            if source.module and (group := group_of(include)):
                users.setdefault((source.module, group), set()).add(str(source.path))
    for (module, group), files in sorted(users.items()):
        limit = LAYERS["modules"].get(module, {}).get("third_party", {}).get(group, 0)
        if limit and len(files) > limit:
            yield f"{group} is to be wrapped by {limit} file of module '{module}', but {len(files)} include it: {', '.join(sorted(files))}"


def small_enough(root):
    """`most_lines`: folders together, or a file. What has roles and loops stays readable; the rest belongs into the modules below."""
    for places, limit in LAYERS["most_lines"].items():
        files = [path for place in places.split() for path in [root / place, *(root / place).rglob("*")] if path.suffix in CODE and path.is_file()]
        count = sum(path.read_text().count("\n") for path in files)
        if count > limit:
            yield f"{places}: {count} lines (limit {limit} in tests/style/layers.json): move what is no role and no loop"


def exceptions_are_needed(root):
    for table in ("long_files", "long_functions"):
        for key, reason in LAYERS[table].items():
            path, _, function = key.partition(":")
            if not (root / path).exists():
                yield f"tests/style/layers.json: {table} names {key}, which is gone"
                continue
            source = Source(root, root / path)
            lengths = [last - first + 1 for name, first, last in functions(source.code) if name == function]
            longest = max(lengths, default=0) if function else source.raw.count("\n")
            if longest <= (MAX_FUNCTION_LINES if function else MAX_FILE_LINES):
                yield f"tests/style/layers.json: {table} names {key}, which is short enough: remove it"
            if not reason.strip():
                yield f"tests/style/layers.json: {table} gives no reason for {key}"


def markdown():
    rows = ["| level | module | what it is | may use | third-party headers |", "| --- | --- | --- | --- | --- |"]
    for name, row in LAYERS["modules"].items():
        third = ", ".join(f"{group} (one file)" if limit == 1 else group for group, limit in row["third_party"].items())
        rows.append(f"| {row['level']} | {name} | {row['what']} | {', '.join(row['uses']) or '-'} | {third or '-'} |")
    return "\n".join(rows)


def documented_table(root):
    page = root / "docs/dev/architecture.md"
    if not page.exists():
        return
    text = page.read_text()
    shown = text.partition(TABLE_BEGIN)[2].partition(TABLE_END)[0].strip()
    if shown != markdown():
        yield "docs/dev/architecture.md shows another module table than tests/style/layers.json (check_source.py --markdown prints it)"


def named_tests_exist(root):
    """docs/dev/fault_coverage.md names a file below tests/, or `module_test.test_x`; a bare `test_x` is of the module before it."""
    page = root / "docs/dev/fault_coverage.md"
    if not page.exists():
        return
    module = ""
    for name in re.findall(r"`([^`\n]+)`", page.read_text()):
        method = re.fullmatch(r"(?:tests/(?:slurm|pbs)/)?(?:(\w+_test)\.)?(test_\w+)", name)
        if method:
            module = method[1] or module
            found = any(f"def {method[2]}(" in path.read_text() for path in (root / "tests").glob(f"*/{module}.py"))
        else:
            found = not name.startswith("tests/") or (root / name.split()[0]).exists()
        if not found:
            yield f"docs/dev/fault_coverage.md: there is no test {name}"


def levels_ascend():
    for name, row in LAYERS["modules"].items():
        for used in row["uses"]:
            if LAYERS["modules"][used]["level"] >= row["level"]:
                yield f"tests/style/layers.json: '{name}' (level {row['level']}) uses '{used}' (level {LAYERS['modules'][used]['level']})"


def check(root):
    sources = [Source(root, path) for area in ("include", "src", "tests", "perf")
               for path in sorted((root / area).rglob("*")) if path.suffix in CODE and path.is_file()]
    problems = [f"{source.path}:{line}: {message}" for source in sources for rule in RULES for line, message in rule(source)]
    problems += few_files_per_library(sources)
    problems += small_enough(root)
    problems += exceptions_are_needed(root)
    problems += documented_table(root)
    problems += named_tests_exist(root)
    problems += levels_ascend()
    return len(sources), problems


# ---- self-test ---------------------------------------------------------------------------------------------------------

LONG_BODY = "\n".join(f"  x += {i};" for i in range(MAX_FUNCTION_LINES))
GOOD = {
    "include/trireme/base/text.hpp": "#pragma once\n#include <string>\n",
    "src/base/log.cpp": '#include "trireme/base/text.hpp"\n#include <spdlog/spdlog.h>\n// MPI_COMM_WORLD in a comment is fine\n',
    "src/zero/step.cpp": '#include "torch/torch.hpp"\n#include "trireme/comm/comm.hpp"\n'
                         f"namespace a {{ struct S {{ int f() const; }};\nint g(int x) {{\n{LONG_BODY[:400]}\n  return x;\n}} }}\n",
}
BROKEN = {
    "may not use 'driver'": ("src/base/a.cpp", '#include "trireme/driver/loop.hpp"\n'),
    "may not use 'zero'": ("include/trireme/ppo/a.hpp", '#pragma once\n#include "trireme/zero/zero.hpp"\n'),
    "private header of module 'model'": ("src/zero/a.cpp", '#include "model/block.hpp"\n'),
    "may not use HDF5": ("src/zero/b.cpp", "#include <hdf5.h>\n"),
    "may not use MPI": ("src/driver/a.cpp", "#include <mpi.h>\n"),
    "has no row": ("src/kitchen/a.cpp", "int a;\n"),
    "a public header may not include": ("include/trireme/data/a.hpp", "#pragma once\n#include <nlohmann/json.hpp>\n"),
    "no #pragma once": ("include/trireme/data/b.hpp", "int b();\n"),
    "costs 20 s": ("src/ppo/a.cpp", "#include <torch/torch.h>\n"),
    "reaches the unpickler": ("src/model/a.cpp", "#include <torch/csrc/jit/serialization/unpickler.h>\n"),
    "may not meet ATen": ("src/zero/c.cpp", '#include "torch/torch.hpp"\n#include <fmt/format.h>\n'),
    "no LibTorch header in CUDA": ("src/kernels/a.cu", "#include <ATen/core/Tensor.h>\n"),
    "reads pickle": ("src/model/b.cpp", "auto x = torch::load(path);\n"),
    "world communicator": ("src/zero/d.cpp", "int n = size(MPI_COMM_WORLD);\n"),
    "runs on one thread": ("src/zero/j.cpp", "at::parallel_for(0, n, 1, body);\n"),
    "unfinished work": ("src/zero/e.cpp", "// TODO later\n"),
    "somebody's machine": ("tests/unit/base/a.cpp", 'auto path = "/home/me/x";\n'),
    "columns (limit 100)": ("src/zero/k.cpp", 'auto x = "' + "x" * MAX_COLUMNS + '";\n'),
    "lines (limit 400)": ("src/zero/f.cpp", "int x;\n" * (MAX_FILE_LINES + 1)),
    "g() has": ("src/zero/g.cpp", f"namespace a {{\nint g(std::vector<int> v = {{}}) {{\n{LONG_BODY}\n  return x;\n}}\n}}\n"),
    "f() has": ("src/zero/h.cpp", f"struct S {{\n  int f() const {{\n{LONG_BODY}\n    return x;\n  }}\n}};\n"),
    "S::S() has": ("src/zero/i.cpp", f"S::S(int a) : a_(a), b_{{1}} {{\n  for (;;) {{\n{LONG_BODY}\n  }}\n}}\n"),
    "there is no test tests/unit/gone_test.cpp": ("docs/dev/fault_coverage.md", "| `tests/unit/gone_test.cpp` |\n"),
    "there is no test test_gone": ("docs/dev/fault_coverage.md", "| `here_test.test_here`, `test_gone` |\n"),
    f"src/driver/ppo_loop.cpp: {LOOP_LINES + 1} lines (limit": ("src/driver/ppo_loop.cpp", "int x;\n" * (LOOP_LINES + 1)),
    "validate.cpp, which is short enough": ("src/config/validate.cpp", "int x;\n"),
    "to be wrapped by 1 file": ("src/base/second.cpp", "#include <spdlog/spdlog.h>\n"),
}


def write_tree(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        write_tree(pathlib.Path(folder), GOOD)
        _, problems = check(pathlib.Path(folder))
        failures += [f"false alarm: {problem}" for problem in problems if "layers.json: long_" not in problem]
    for expected, (name, text) in BROKEN.items():
        with tempfile.TemporaryDirectory() as folder:
            write_tree(pathlib.Path(folder), {**GOOD, name: text})
            _, problems = check(pathlib.Path(folder))
            if not any(expected in problem for problem in problems):
                failures.append(f"not found: '{expected}' in {name}; found {problems}")
    print("\n".join(failures) or f"each of {len(BROKEN)} broken files was found")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:] == ["--markdown"]:
        print(markdown())
        return 0
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    count, problems = check(pathlib.Path(sys.argv[1]).resolve())
    print("\n".join(problems + [f"{count} files, {len(problems)} problems"]))
    return 1 if problems or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
