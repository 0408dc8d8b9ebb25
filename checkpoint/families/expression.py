"""Small arithmetic over config keys, as a family file writes a shape: `2 * moe_intermediate_size`."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

Lookup = Callable[[str], int]


@dataclass(frozen=True)
class Expression:
    """One parsed expression: names, dotted names (`vision.depth`), integers, `+ - * //` and parentheses.

    >>> parse("2 * n + 1").evaluate({"n": 3}.__getitem__)
    7
    """

    text: str
    node: ast.expr

    def evaluate(self, lookup: Lookup) -> int:
        """The value, with each name replaced by `lookup(name)`. Floor division by zero raises ZeroDivisionError."""
        return _evaluate(self.node, lookup)


@cache
def parse(text: str | int) -> Expression:
    """Parse `text`; ValueError if it holds anything but names, integers and `+ - * //`."""
    try:
        node = ast.parse(str(text), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is not an expression: {error.msg}") from error
    _check(node, str(text))
    return Expression(str(text), node)


def _check(node: ast.expr, text: str) -> None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv):
        _check(node.left, text)
        _check(node.right, text)
    elif not _is_leaf(node):
        found = ast.unparse(node)
        raise ValueError(f"{text!r} holds {found!r}; only names, integers and + - * // may stand in an expression")


def _is_leaf(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name)
    return isinstance(node, ast.Name)


def _evaluate(node: ast.expr, lookup: Lookup) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return lookup(name)
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return lookup(f"{owner}.{name}")
        case ast.BinOp(left=left, op=op, right=right):
            return _apply(op, _evaluate(left, lookup), _evaluate(right, lookup))
    raise ValueError(f"{ast.unparse(node)!r} cannot stand in an expression")


def _apply(op: ast.operator, left: int, right: int) -> int:
    match op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
    return left // right
