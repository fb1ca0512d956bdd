"""What the site (mkdocs.yml) needs beyond docs/: pages of the repository's root, and the forms in which GitHub's Markdown differs from Python-Markdown."""

import pathlib
import posixpath
import re

from mkdocs.structure.files import File

ROOT = pathlib.Path(__file__).resolve().parents[1]
OF_THE_ROOT = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def github_slug(text, separator):
    """Anchors as GitHub makes them, which tests/style/check_docs.py checks in the sources."""
    return re.sub(r"[^\w\- ]", "", text.replace("`", "").strip().lower()).replace(" ", separator)


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = github_slug
    return config


def on_files(files, config):
    for source, page in OF_THE_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def site_link(target, folder):
    """A link of a page of the site (`folder`: the source page's, from the root) as one of another page; None for files that the site does not have."""
    name, _, anchor = target.partition("#")
    if re.match(r"\w+:", target) or not name:
        return target
    path = posixpath.normpath(posixpath.join(folder, name))
    if path in OF_THE_ROOT:
        place = OF_THE_ROOT[path]
    elif path.startswith("docs/") and (ROOT / path).is_file() and path.endswith((".md", ".png", ".svg")):
        place = path.removeprefix("docs/")
    else:
        return None
    return posixpath.relpath(place, folder.removeprefix("docs").strip("/") or ".") + ("#" + anchor if anchor else "")


def rewrite(line, folder):
    def link(match):
        target = site_link(match[3], folder)
        return f"{match[1]}[{match[2]}]({target})" if target else match[2]

    line = re.sub(r"(!?)\[((?:[^\]\\]|\\.)*)\]\(([^)\s]+)\)", link, line)
    return re.sub(r'(src|href)="([^"]+)"', lambda match: f'{match[1]}="{site_link(match[2], folder) or match[2]}"', line)


def on_page_markdown(markdown, page, config, files):
    source = next((name for name, place in OF_THE_ROOT.items() if place == page.file.src_uri), "docs/" + page.file.src_uri)
    folder, out, fenced = posixpath.dirname(source), [], False
    for line in markdown.split("\n"):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if not fenced and not line.startswith("    "):
            line = rewrite(line, folder)
            begins_list = re.match(r"(- |\d+\. )", line)
            before = out[-1] if out else ""
            if begins_list and before.strip() and not re.match(r"(- |\d+\. |  )", before):
                out.append("")  # Python-Markdown begins no list within a paragraph
        out.append(line)
    return "\n".join(out)
