"""The source around a call: whether a block's body has changed, and whether a result is dropped."""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import itertools
import linecache
import sys
from types import CodeType, FrameType
from typing import Any


@functools.lru_cache(maxsize=64)
def _module(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None


def _statement(path: str, line: int, loop: bool) -> ast.If | ast.For | None:
    """The innermost `if` (or `for`) whose head has this line."""
    module = _module(path)
    found: ast.If | ast.For | None = None
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.For if loop else ast.If):
            head: ast.expr = node.iter if isinstance(node, ast.For) else node.test
            if head.lineno <= line <= (head.end_lineno or head.lineno):
                found = node
    return found


@functools.lru_cache(maxsize=256)
def _body(path: str, line: int, loop: bool) -> str:
    found = _statement(path, line, loop)
    if found is None:
        return ""
    text = ast.dump(ast.Module(found.body, []))
    return f"{sys.version_info[0]}.{sys.version_info[1]}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def body_hash(frame: FrameType, loop: bool = False) -> str:
    """A hash of the statements beneath the `if` (or `for`) that a frame is at, comments aside; "": not known."""
    return _body(frame.f_code.co_filename, frame.f_lineno, loop)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*_FUNCTIONS, ast.ClassDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class _Uses(ast.NodeVisitor):
    """The variables of one scope: (line, column, whether it is read, name), where they are used."""

    def __init__(self, statements: list[ast.stmt]):
        self.found: list[tuple[int, int, bool, str]] = []
        self.given: set[str] = set()  # to SkipBlock.end
        for each in statements:
            self.visit(each)

    def visit(self, node: ast.AST) -> None:
        if not isinstance(node, _SCOPES):  # whose variables are their own
            super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.found.append((node.lineno, node.col_offset, isinstance(node.ctx, ast.Load), node.id))

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        for target in node.targets:  # it is assigned after what is on the right was read
            for name in ast.walk(target):
                if isinstance(name, ast.Name):
                    read = isinstance(name.ctx, ast.Load)
                    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
                    self.found.append((name.lineno, name.col_offset, True, name.id) if read else (*end, False, name.id))

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.found.append((node.lineno, node.col_offset, True, node.target.id))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "end":
            self.given |= {each.id for each in node.args if isinstance(each, ast.Name)}
        self.generic_visit(node)


@functools.lru_cache(maxsize=256)
def _stale(path: str, line: int) -> tuple[str, ...]:
    module, block = _module(path), _statement(path, line, loop=False)
    if module is None or block is None:
        return ()
    scope: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef = module
    for node in ast.walk(module):  # outer ones first
        if isinstance(node, _FUNCTIONS) and node.lineno <= block.lineno <= (node.end_lineno or node.lineno):
            scope = node
    uses = _Uses(scope.body)
    written = {name for _, _, read, name in _Uses(block.body).found if not read} - uses.given
    after: dict[str, bool] = {}
    end = (block.end_lineno or block.lineno, block.end_col_offset or 0)
    for number, column, read, name in sorted(uses.found):
        if (number, column) > end:
            after.setdefault(name, read)
    return tuple(sorted(name for name in written if after.get(name)))


def stale(frame: FrameType) -> tuple[str, ...]:
    """Variables that a block assigns, and that its function reads behind it before it assigns them again.

    By the order of the text. Those given to SkipBlock.end are left out.
    """
    return _stale(frame.f_code.co_filename, frame.f_lineno)


def changed(before: str, now: str) -> bool:
    """Whether two hashes are known, of the same version of Python, and differ."""
    same_python = before.partition(":")[0] == now.partition(":")[0]
    return bool(before and now) and same_python and before != now


@functools.lru_cache(maxsize=256)
def _dropped(code: CodeType, offset: int) -> bool:
    following = next((each for each in dis.get_instructions(code) if each.offset > offset), None)
    return following is not None and following.opname == "POP_TOP"


def result_is_dropped(frame: FrameType) -> bool:
    """Whether the call that a frame waits for is a statement of its own, so that nobody gets what it returns."""
    return _dropped(frame.f_code, frame.f_lasti)


@functools.lru_cache(maxsize=256)
def _arguments(path: str, line: int, span: tuple[int | None, ...] | None, count: int) -> tuple[str, ...]:
    module = _module(path)
    found = []
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.Call) and len(node.args) == count:
            if span is None:  # before Python 3.11 only the line is known
                here = node.lineno == line and isinstance(node.func, ast.Attribute) and node.func.attr == "end"
            else:
                here = (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == span
            if here:
                found.append(tuple(each.id if isinstance(each, ast.Name) else "" for each in node.args))
    return found[0] if len(found) == 1 else ("",) * count


def arguments(frame: FrameType, count: int) -> tuple[str, ...]:
    """The variables in the call that a frame waits for; "" for what is none, or not known."""
    span = None
    if sys.version_info >= (3, 11):
        span = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    return _arguments(frame.f_code.co_filename, frame.f_lineno, span, count)


def name_of(value: Any, frame: FrameType) -> str:
    """The variable of a frame that has this value; "" if there is none."""
    for scope in (frame.f_locals, frame.f_globals):
        for name, candidate in list(scope.items()):
            if candidate is value:
                return str(name)
    return ""


__all__ = ["arguments", "body_hash", "changed", "name_of", "result_is_dropped", "stale"]
