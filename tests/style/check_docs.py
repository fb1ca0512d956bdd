#!/usr/bin/env python3
"""README and docs/: links and anchors lead somewhere, paths of the repository that texts, commands and heads of decks name exist, no cell of a table
is longer than 300 characters, docs/examples include stable headers alone, and every command of a code block is in tests/documented.json, which names the
test that runs it, or why none does.

    check_docs.py ROOT
    check_docs.py --self-test
"""

import json
import pathlib
import re
import sys
import tempfile

LONGEST_CELL = 300
FOLDERS = "cmake|docs|include|inputs|pbs|perf|slurm|src|tests"
# A path of the repository in a text: a file with an extension or a folder with its slash, and no part of a longer path or an address. Others may be names of tests.
PATH = re.compile(rf"(?<![\w/.$}}~<-])((?:{FOLDERS})/[\w./*-]*(?:\w\.(?!test_)\w+|/))(?![\w*])")
PLACEHOLDER = re.compile(r"[A-Z]{3,}")
MADE = re.compile(r"^(perf/results/|tests/last_run)")  # by runs, in part not committed


def pages(root):
    return [path for path in [root / "README.md", root / "CHANGELOG.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))] if path.exists()]


def numbered(text):
    """(line number, line, whether in a fenced block)"""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            yield number, line, True
        else:
            yield number, line, fenced


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def anchor_of(heading):
    """GitHub's, which mkdocs' slugs are made to equal (mkdocs.yml)."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.replace("`", "").strip().lower())
    return text.replace(" ", "-")


def anchors(path):
    found, seen = set(), {}
    for _, line, fenced in numbered(path.read_text()):
        if not fenced and (heading := re.match(r"#+ (.*)", line)):
            name = anchor_of(heading[1])
            seen[name] = seen.get(name, -1) + 1
            found.add(name if not seen[name] else f"{name}-{seen[name]}")
        found |= set(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return found


def problems_of_cells(path):
    for number, line, fenced in numbered(path.read_text()):
        if not fenced and line.startswith("|"):
            for cell in cells(line):
                if len(cell) > LONGEST_CELL:
                    yield f"{path}:{number}: a cell of {len(cell)} characters, at most {LONGEST_CELL}: {cell[:50]}..."


def problems_of_links(path):
    for number, line, fenced in numbered(path.read_text()):
        if fenced or line.startswith("    "):
            continue
        targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", line)) + re.findall(r'(?:src|href)="([^"]+)"', line)
        for target in targets:
            if re.match(r"\w+:", target):
                continue
            name, _, anchor = target.partition("#")
            there = (path.parent / name).resolve() if name else path
            if not there.exists():
                yield f"{path}:{number}: no {target}"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there):
                yield f"{path}:{number}: {there.name} has no #{anchor}"


def exists(root, name):
    if "*" in name:
        return any(root.glob(name.rstrip("/")))
    return (root / name).exists() or bool(MADE.match(name) or PLACEHOLDER.search(name))


def problems_of_paths(root, path, lines):
    for number, line in lines:
        for name in PATH.findall(re.sub(r"\]\([^)]*\)|(?:src|href)=\"[^\"]*\"", "]", line)):
            if not exists(root, name):
                yield f"{path}:{number}: no {name} in this repository"


def deck_heads(root):
    for path in sorted((root / "inputs").rglob("*.toml")):
        yield path, [(number, line) for number, line in enumerate(path.read_text().splitlines(), 1) if line.startswith("#")]


# Messages of others' programs that troubleshooting.md quotes.
OF_OTHERS = ("There are not enough slots available", "mpirun has detected an attempt to run as root", "error while loading shared libraries: libmpi.so")


def quoted_messages(root):
    """What the first cells of troubleshooting.md quote is in the sources, as a part of a text; names of metrics too."""
    page = root / "docs/user/troubleshooting.md"
    if not page.exists():
        return
    sources = [path for folder in ("src", "include", "cmake") for path in (root / folder).rglob("*.*") if path.suffix in (".cpp", ".hpp", ".cmake")]
    text = "\n".join(re.sub(r'"\s*\n\s*"', "", path.read_text()) for path in sources)
    for number, line, _ in numbered(page.read_text()):
        for words in re.findall(r"`([^`]+)`", cells(line)[0]) if line.startswith("| ") else ():
            if words not in text and words not in OF_OTHERS:
                yield f"{page}:{number}: no message of the program has `{words}`"


def stable_headers(root):
    page = root / "docs/user/embedding.md"
    listed = re.findall(r"^\| `(trireme/[\w/.]+)` \|", page.read_text(), re.MULTILINE)
    if not listed:
        yield f"{page}: no table of stable headers"
    yield from (f"{page}: there is no include/{name}" for name in listed if not (root / "include" / name).exists())
    for source in sorted((root / "docs/examples").rglob("*.[ch]pp")):
        for name in re.findall(r'#include "([^"]+)"', source.read_text()):
            if name not in listed:
                yield f"{source}: {name} is not among the stable headers of {page.name}"


# What begins a command in a code block; assignments may be before it.
COMMAND = re.compile(r"(?:[A-Z_]+=(?:\"[^\"]*\"|\S+) )*(?:(?:\./bootstrap\.sh|mpirun|srun|trireme|sbatch|qsub|cmake|ctest|cpack|bash|podman|apptainer|spack|tensorboard|wandb|mlflow|"
                     r"module (?:use|load)|cp -r|echo|printf|for|python3)(?![\w(-])|build/|tar -|\. (?:slurm|pbs)/)")


def commands(text):
    """(line number, command) of the code blocks of a page, without comments and line breaks."""
    lines, out = list(numbered(text)), []
    while lines:
        number, line, fenced = lines.pop(0)
        if not (fenced or line.startswith("    ")):
            continue
        command = line.strip()
        while command.endswith("\\") and lines:
            command = command[:-1].strip() + " " + lines.pop(0)[1].strip()
        command = " ".join(re.sub(r"\s+#.*$", "", command).split())
        if COMMAND.match(command) and " = " not in command and not command.endswith(":"):
            out.append((number, command))
    return out


def documented_commands(root):
    """{page or deck: [(line number, command)]}: of decks those of their comments."""
    pages_with = [root / "README.md", *sorted((root / "docs/user").glob("*.md")), *sorted((root / "docs/install").glob("*.md"))]
    texts = [(path, path.read_text()) for path in pages_with]
    texts += [(path, re.sub(r"(?m)^(?!#).*$", "", path.read_text()).replace("\n#", "\n ").replace("#", " ", 1)) for path, _ in deck_heads(root)]
    return {str(path.relative_to(root)): found for path, text in texts if (found := commands(text))}


def registered_tests(root):
    """Names of tests as the CMake files register them."""
    text = "\n".join(path.read_text() for path in (root / "tests").rglob("CMakeLists.txt"))
    return set(re.findall(r"(?:trireme_register_test|trireme_add_program_test|trireme_add_test)\(([\w/]+)", text)) | {
        f"pbs/{name}" for name in re.findall(r"trireme_add_pbs_test\((\w+)", text)}


def problems_of_commands(root):
    record = root / "tests/documented.json"
    listed = json.loads(record.read_text())
    tests, found = registered_tests(root), {}
    for name, entries in documented_commands(root).items():
        found[name] = {command for _, command in entries}
        for number, command in entries:
            if command not in listed.get(name, {}):
                yield f"{name}:{number}: no test runs `{command}`: name one in {record.name}, or why there is none"
    for name, entries in listed.items():
        for command, test in entries.items():
            if command not in found.get(name, ()):
                yield f"{record}: {name} has no command `{command}`"
            if not test.startswith("not run: ") and test not in tests:
                yield f"{record}: {name}: `{command}`: there is no test {test}"


def check(root):
    out = [*problems_of_commands(root), *quoted_messages(root)]
    for path in pages(root):
        out += problems_of_cells(path)
        out += problems_of_links(path)
        if "design" not in path.parts and path.name != "CHANGELOG.md":  # they tell of what was
            out += problems_of_paths(root, path, [(number, line) for number, line, _ in numbered(path.read_text())])
    for path, lines in deck_heads(root):
        out += problems_of_paths(root, path, lines)
    return out + list(stable_headers(root))


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("docs/user", "inputs", "include/trireme", "docs/examples", "src", "tests"):
            (root / name).mkdir(parents=True)
        (root / "tests/CMakeLists.txt").write_text("trireme_register_test(a/b 1 style)\n")
        (root / "tests/documented.json").write_text('{"README.md": {"trireme sft a.toml run.dir=b": "a/b", "trireme ppo c.toml": "not run: a reason"}}')
        (root / "include/trireme/a.hpp").touch()
        (root / "docs/user/embedding.md").write_text("| `trireme/a.hpp` |\n")
        (root / "docs/examples/a.cpp").write_text('#include "trireme/a.hpp"\n')
        (root / "docs/two.md").write_text("# A `b` c!\n## A b c\n")
        right = "[x](docs/two.md#a-b-c) [y](docs/two.md#a-b-c-1) [z](https://a.b/c#d) `[w](none)` docs/examples/a.cpp, /home/src/none.cpp, docs/\n```\n| " + "x" * 400 + " |\n```\n\n    trireme sft a.toml \\\n        run.dir=b   # c\n    trireme ppo c.toml\n"
        (root / "README.md").write_text(right)
        (root / "inputs/d.toml").write_text("# see inputs/d.toml\npath = \"inputs/none\"\n")
        if wrong := check(root):
            sys.exit(f"refused without a reason: {wrong}")
        for name, text in (("README.md", "[x](docs/three.md)"), ("README.md", "[x](docs/two.md#d)"), ("README.md", "| a | " + "x" * 301 + " |"),
                           ("README.md", "see inputs/none.toml"), ("README.md", "    trireme dpo a.toml"), ("README.md", "    tar -xf a.tar"), ("README.md", "    A=1 ./bootstrap.sh deps"), ("README.md", "```\nmpirun -n 2 trireme rm\n```"),
                           ("tests/CMakeLists.txt", None), ("docs/user/embedding.md", "    trireme ppo c.toml"), ("inputs/d.toml", "# trireme sft inputs/none.toml"),
                           ("docs/examples/a.cpp", '#include "trireme/b.hpp"'), ("docs/user/embedding.md", "| `trireme/c.hpp` |"), ("README.md", '<img src="docs/a.png">')):
            old = (root / name).read_text()
            (root / name).write_text("" if text is None else f"{old}\n{text}\n")
            if len(check(root)) != 1:
                sys.exit(f"{name} with {text}: {check(root)}")
            (root / name).write_text(old)
    print("each kind of mistake is found")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = pathlib.Path(sys.argv[1]).resolve()
    problems = check(root)
    print("\n".join([*problems, f"{len(pages(root))} pages, {len(problems)} problems"]))
    return 1 if problems or len(pages(root)) < 30 else 0


if __name__ == "__main__":
    sys.exit(main())
