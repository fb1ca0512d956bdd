#!/usr/bin/env python3
"""README and docs/: links and anchors lead somewhere, paths of the repository that texts, commands and heads of decks name exist, no cell of a table
is longer than 300 characters, and examples/ include stable headers alone.

    check_docs.py ROOT
    check_docs.py --self-test
"""

import pathlib
import re
import sys
import tempfile

LONGEST_CELL = 300
FOLDERS = "cmake|docs|examples|include|inputs|pbs|perf|slurm|src|tests"
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


def stable_headers(root):
    page = root / "docs/user/embedding.md"
    listed = re.findall(r"^\| `(trireme/[\w/.]+)` \|", page.read_text(), re.MULTILINE)
    if not listed:
        yield f"{page}: no table of stable headers"
    yield from (f"{page}: there is no include/{name}" for name in listed if not (root / "include" / name).exists())
    for source in sorted((root / "examples").rglob("*.[ch]pp")):
        for name in re.findall(r'#include "([^"]+)"', source.read_text()):
            if name not in listed:
                yield f"{source}: {name} is not among the stable headers of {page.name}"


def check(root):
    out = []
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
        for name in ("docs/user", "inputs", "include/trireme", "examples", "src"):
            (root / name).mkdir(parents=True)
        (root / "include/trireme/a.hpp").touch()
        (root / "docs/user/embedding.md").write_text("| `trireme/a.hpp` |\n")
        (root / "examples/a.cpp").write_text('#include "trireme/a.hpp"\n')
        (root / "docs/two.md").write_text("# A `b` c!\n## A b c\n")
        right = "[x](docs/two.md#a-b-c) [y](docs/two.md#a-b-c-1) [z](https://a.b/c#d) `[w](none)` examples/a.cpp, /home/src/none.cpp, docs/\n```\n| " + "x" * 400 + " |\n```\n"
        (root / "README.md").write_text(right)
        (root / "inputs/d.toml").write_text("# see inputs/d.toml\npath = \"inputs/none\"\n")
        if wrong := check(root):
            sys.exit(f"refused without a reason: {wrong}")
        for name, text in (("README.md", "[x](docs/three.md)"), ("README.md", "[x](docs/two.md#d)"), ("README.md", "| a | " + "x" * 301 + " |"),
                           ("README.md", "    trireme sft inputs/none.toml"), ("inputs/d.toml", "# trireme sft inputs/none.toml"),
                           ("examples/a.cpp", '#include "trireme/b.hpp"'), ("docs/user/embedding.md", "| `trireme/c.hpp` |"), ("README.md", '<img src="docs/a.png">')):
            old = (root / name).read_text()
            (root / name).write_text(old + text + "\n")
            if len(check(root)) != 1:
                sys.exit(f"{name} with {text[:60]}: {check(root)}")
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
