"""
Hooks of the documentation site: pages and files that lie outside ``docs`` become part of the site.

Links in the documentation are relative paths in the repository, so that they work on a code host.
On the site, ``docs`` is the root: what a page links outside of that folder is added to the site
under its path in the repository, and the links are rewritten.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = "docs/"
PAGES = ("benchmarks/README.md", "CHANGELOG.md")
"""Pages outside of ``docs`` that the site has; the examples' pages are added to these."""

FOREIGN_WORKER = "https://unpkg.com/iframe-worker/shim"
WORKER = "images/file_worker.js"

LINK = re.compile(r"(\]\()((?!\w+:|#|/)[^)\s#]+)")
NOTEBOOK_LINK = re.compile(r'href="(\.\./[^":]+)\.md(#[^"]*)?"')
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the list of versions on what ``mike`` deploys; a site on its own has no such list."""
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add pages from outside of ``docs``, and the files that any page links."""
    examples = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("examples/*/*.md"))
    for path in (*PAGES, *examples):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for page in list(files.documentation_pages()):
        if not page.src_uri.endswith(".md"):
            continue
        for match in LINK.finditer(FENCE.sub("", page.content_string)):
            target = in_repository(page.src_uri, match[2])
            outside = not target.startswith(DOCS) and (ROOT / target).is_file()
            if outside and files.get_file_from_path(target) is None:
                files.append(File.generated(config, target, abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links that leave or enter ``docs``."""

    def rewritten(match: re.Match[str]) -> str:
        target = in_repository(page.file.src_uri, match[2])
        place = target.removeprefix(DOCS)
        here = posixpath.dirname(page.file.src_uri)
        return match[1] + posixpath.relpath(place, here or ".")

    parts: list[Any] = FENCE.split(markdown)
    return "".join(part if i % 2 else LINK.sub(rewritten, part) for i, part in enumerate(parts))


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """
    Take the search worker for pages opened as files from this site, and not from elsewhere.

    Links of notebooks, which the plugin leaves as they are, lead to pages instead of sources. The
    first cell of a head that is empty is no head of anything.
    """
    output = output.replace("<th></th>", "<td></td>")
    here = posixpath.relpath(WORKER, posixpath.dirname(page.url) or ".")
    output = output.replace(FOREIGN_WORKER, here)
    if page.file.src_uri.endswith(".ipynb"):
        output = NOTEBOOK_LINK.sub(r'href="\1.html\2"', output)
    return output


def on_post_template(output: str, *, template_name: str, config: MkDocsConfig) -> str:
    """The page for addresses that lead nowhere is only ever served: it needs no such worker."""
    return output.replace(f'<script src="{FOREIGN_WORKER}"></script>', "")


def in_repository(page: str, link: str) -> str:
    """
    Return the path in the repository to which a page's link leads.

    Parameters
    ----------
    page
        The page's path on the site.
    link
        The link, relative to the page's place in the repository, without its anchor.
    """
    outside = page in PAGES or page.startswith("examples/")
    folder = posixpath.dirname(page if outside else DOCS + page)
    return posixpath.normpath(posixpath.join(folder, link))
