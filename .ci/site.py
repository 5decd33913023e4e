"""A hook of mkdocs: pages from outside of docs/ are part of the site, and links lead where they lead on GitHub.

A link to a file that is a page of the site becomes a link to that page. A link to any other file of the repository becomes a link to
the file on GitHub.
"""

import os.path
import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent

# The pages from outside of docs/, by their files in the repository.
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "cmd/relock/README.md": "cmd/relock.md",
    "examples/README.md": "examples.md",
    "relockprom/README.md": "relockprom.md",
    "relockotel/README.md": "relockotel.md",
    "relockgocron/README.md": "relockgocron.md",
    "recipes/README.md": "adapters.md",
    "bench/README.md": "bench.md",
    "chaos/README.md": "chaos.md",
    "chaos/scenarios.md": "chaos/scenarios.md",
    "model/README.md": "model.md",
    "sim/README.md": "sim.md",
}
INSIDE = {page: file for file, page in OUTSIDE.items()}
# Other files, and where the site has them.
VERBATIM = {"llms.txt": "llms.txt", "llms-full.txt": "llms-full.txt", ".ci/site.css": "assets/site.css"}
# The table of contents in docs/ is the navigation of the site: links to it lead home.
CONTENTS = "docs/README.md"


def on_files(files, config):
    files.remove(files.get_file_from_path("README.md"))
    for file, target in (OUTSIDE | VERBATIM).items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / file)))
    return files


def on_page_markdown(markdown, page, config, files):
    here = INSIDE.get(page.file.src_uri, "docs/" + page.file.src_uri)
    page.edit_url = f"{config.repo_url}/edit/main/{here}"

    def site_link(match):
        to, _, anchor = match[1].partition("#")
        if "://" in to or not to:
            return match[0]
        file = os.path.normpath(os.path.join(os.path.dirname(here), to))
        if not (ROOT / file).exists():
            return match[0]  # mkdocs reports it
        anchor = anchor and "#" + anchor
        target = "index.md" if file == CONTENTS else OUTSIDE.get(file) or file.removeprefix("docs/")
        if files.get_file_from_path(target) is None or not (file in OUTSIDE or file.startswith("docs/")):
            kind = "tree" if (ROOT / file).is_dir() else "blob"
            return f"]({config.repo_url}/{kind}/main/{file}{anchor})"
        return f"]({os.path.relpath(target, os.path.dirname(page.file.src_uri))}{anchor})"

    def prose(text):
        text = re.sub(r"<!-- .*? -->\n?", "\n", text)  # Markdown of Python takes what follows for HTML
        text = re.sub(r"(?m)^ {2,3}(?=\S)", "    ", text)  # and lists need four blanks
        return re.sub(r"\]\(([^)\s]+)\)", site_link, text)

    parts = re.split(r"(?ms)(^```.*?^```$)", markdown)  # every second one is a block of code
    return "".join(part if i % 2 else prose(part) for i, part in enumerate(parts))
