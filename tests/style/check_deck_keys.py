#!/usr/bin/env python3
"""docs/user/deck_keys.md is what the program prints (`trireme --keys`), so are expert_keys.md (`--expert-keys`), models.md (`--models`) and the tables of from_*.md
(`trireme import SYSTEM --names`); the decks in inputs/ name no key that it lacks, and models.md no family that no test compares with transformers.

    check_deck_keys.py ROOT PROGRAM           --write: store the page instead of comparing
"""

import ast
import difflib
import os
import pathlib
import re
import subprocess
import sys
import tomllib


def keys_of(table, prefix=""):
    for name, value in table.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for element in value:
                yield from keys_of(element, f"{prefix}{name}.")
        else:
            yield prefix + name


def with_names(page, program):
    """The text of a page with the table of names that the program prints."""
    table = subprocess.run([program, "import", page.stem.removeprefix("from_"), "--names"], capture_output=True, text=True, check=True).stdout
    begin, end = "<!-- names:begin -->\n", "<!-- names:end -->\n"
    text = page.read_text()
    return text[:text.index(begin) + len(begin)] + table + text[text.index(end):]


def untested_families(root, page):
    """Families of models.md of which tests/interop/architectures.py makes no model."""
    families = re.findall(r"^\| `(\w+)ForCausalLM`, ", page, re.M)
    tree = ast.parse((root / "tests/interop/architectures.py").read_text())
    models = next(ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "MODELS")
    made = {kind.removesuffix("Config").removesuffix("Text") for kind, _ in models.values()}
    problems = [] if families else ["docs/user/models.md has no table of families"]
    return problems + [f"docs/user/models.md: tests/interop/architectures.py makes no {name}" for name in families if name not in made]


def main():
    arguments = [a for a in sys.argv[1:] if a != "--write"]
    if len(arguments) != 2:
        sys.exit(__doc__)
    root, program = pathlib.Path(arguments[0]), arguments[1]
    if not os.access(program, os.X_OK):
        print(f"skipped: {program} is not built")
        return 125
    printed = subprocess.run([program, "--keys"], capture_output=True, text=True, check=True).stdout
    expert = subprocess.run([program, "--expert-keys"], capture_output=True, text=True, check=True).stdout
    models = subprocess.run([program, "--models"], capture_output=True, text=True, check=True).stdout
    pages = {root / "docs/user/deck_keys.md": printed, root / "docs/user/expert_keys.md": expert, root / "docs/user/models.md": models}
    tables = sorted((root / "docs/user").glob("from_*.md"))
    if "--write" in sys.argv:
        for page, text in pages.items():
            page.write_text(text)
        for table in tables:
            table.write_text(with_names(table, program))
        return 0
    known = set(re.findall(r"^\| `([\w.]+)` \|", printed + expert, re.M))
    problems = untested_families(root, models)
    for page, text in pages.items():
        problems += difflib.unified_diff(page.read_text().splitlines(), text.splitlines(), str(page), "what the program prints", lineterm="")
    for table in tables:
        problems += difflib.unified_diff(table.read_text().splitlines(), with_names(table, program).splitlines(), str(table), "trireme import --names", lineterm="")
    decks = sorted((root / "inputs").rglob("*.toml"))
    for deck in decks:
        problems += [f"{deck}: unknown key {key}" for key in keys_of(tomllib.loads(deck.read_text())) if key not in known]
    print("\n".join(problems[:40] + [f"{len(known)} keys, {len(decks)} decks, {len(problems)} problems"]))
    return 1 if problems or len(known) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
