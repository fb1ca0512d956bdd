#!/usr/bin/env python3
"""The documentation site: mkdocs builds it in strict mode, every link and anchor of its pages leads somewhere, it loads nothing from elsewhere, and its
pages come in the order in which a person needs them.

    site_test.py ROOT        skipped where ./bootstrap.sh interop has not installed mkdocs
"""

import html.parser
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.parse

ORDER = ["What it is, and what not", "First run", "Your own model and reward", "Evaluation", "Watching", "Stopping and restarting", "Clusters", "Tuning", "Reference",
         "Troubleshooting", "Recipes", "Coming from elsewhere", "The project"]


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.anchors, self.links, self.loads, self.navigation, self.lists, self.caption = set(), [], [], [], 0, 0
        self.tables = self.paragraphs_of_pipes = 0
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        self.tables += tag == "table"
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("img", "script", "iframe") and attributes.get("src"):
            self.loads.append(attributes["src"])
        if tag == "link" and attributes.get("rel") in ("stylesheet", "icon", "shortcut icon"):
            self.loads.append(attributes["href"])

    def handle_data(self, data):
        self.paragraphs_of_pipes += data.lstrip().startswith("| ")


def navigation(root):
    import yaml
    text = (root / "mkdocs.yml").read_text()
    return [next(iter(entry)) for entry in yaml.safe_load(text)["nav"]]


def main():
    root = pathlib.Path(sys.argv[1]).resolve()
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    python = cache / "trireme/venv/bin/python"
    if pathlib.Path(sys.prefix).resolve() != (cache / "trireme/venv").resolve():
        if not python.exists() or subprocess.run([python, "-c", "import mkdocs"], capture_output=True, check=False).returncode:
            print(f"skipped: no mkdocs in {python.parents[1]} (./bootstrap.sh interop installs it)")
            return 125
        os.execv(python, [str(python), __file__, str(root)])
    problems = [] if navigation(root) == ORDER else [f"mkdocs.yml: the navigation is {navigation(root)}"]
    with tempfile.TemporaryDirectory(prefix="trireme-site-") as folder:
        site = pathlib.Path(folder) / "site"
        built = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file", str(root / "mkdocs.yml"), "--site-dir", str(site)],
                               capture_output=True, text=True, check=False)
        if built.returncode or built.stderr.strip():
            sys.exit(f"mkdocs build ended with {built.returncode}\n{built.stdout}{built.stderr}")
        pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name not in ("404.html", "search.html")}
        for path, page in pages.items():
            name = path.relative_to(site)
            if page.paragraphs_of_pipes:
                problems.append(f"{name}: {page.paragraphs_of_pipes} tables are shown as text")
            for target in page.loads + page.links:
                parts = urllib.parse.urlsplit(target)
                if parts.scheme or parts.netloc:
                    if target in page.loads:
                        problems.append(f"{name} loads {target}")
                    continue
                there = (path.parent / urllib.parse.unquote(parts.path)).resolve() if parts.path else path
                if not there.exists():
                    problems.append(f"{name}: no {target}")
                elif parts.fragment and there in pages and urllib.parse.unquote(parts.fragment) not in pages[there].anchors:
                    problems.append(f"{name}: {there.relative_to(site)} has no #{parts.fragment}")
        print("\n".join([*problems[:40], f"{len(pages)} pages, {sum(len(page.links) for page in pages.values())} links, {len(problems)} problems"]))
        return 1 if problems or len(pages) < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
