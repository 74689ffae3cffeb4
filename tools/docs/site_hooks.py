"""Hooks of the documentation site (mkdocs.yml).

Pages link to files of the repository outside docs/, which readers of the repository can follow. The site has no such files:
there a link becomes its text.
"""
from __future__ import annotations

import os.path
import re
from typing import Any

LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s]+)\)")


def outside(page: str, target: str) -> bool:
    """Whether the relative link `target` of `page`, a path within docs/, leaves docs/."""
    if "://" in target or target.startswith(("#", "/", "mailto:")):
        return False
    return os.path.normpath(os.path.join(os.path.dirname(page), target.split("#")[0])).startswith("..")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return LINK.sub(lambda link: link[1] if outside(page.file.src_uri, link[2]) else link[0], markdown)
