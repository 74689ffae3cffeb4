"""The commands of a page of docs/operations that are marked as tested."""
import os
import re

PAGES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "operations")


def commands(page):
    """Blocks of shell commands with the mark <!-- test --> on the line above their fence, in order."""
    with open(os.path.join(PAGES, page)) as file:
        return re.findall(r"<!-- test -->\n```sh\n(.*?)```", file.read(), re.DOTALL)
