"""The Prometheus queries of deploy/grafana."""
import json
import os
import re

from cluster import ROOT

FOLDER = os.path.join(ROOT, "deploy", "grafana")

SERIES = re.compile(r"\b(espalier_\w+)(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\b(?:by|on|without|group_left|group_right) \(([^)]*)\)")
VARIABLE = re.compile(r"\$\{?\w+\}?")


def load():
    """The dashboards by file name."""
    out = {}
    for name in sorted(os.listdir(FOLDER)):
        with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
            out[name] = json.load(file)
    return out


def panels_of(dashboard):
    """Those that show something."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def expressions_of(dashboard):
    """(title of the panel, expression) with Grafana's variables filled in as it would."""
    for panel in panels_of(dashboard):
        for target in panel["targets"]:
            yield panel["title"], VARIABLE.sub(
                lambda found: {"$__rate_interval": "5m", "$model": ".*"}[found.group()], target["expr"])


def asked_for(expression):
    """The metrics that it reads, and the labels that they must all have."""
    labels = {label for group in GROUPING.findall(expression) for label in re.split(r",\s*", group) if label}
    names = set()
    for name, matchers in SERIES.findall(expression):
        names.add(name)
        labels |= set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
    return names, labels
