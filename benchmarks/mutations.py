"""Ways to break one place of a Python file: the mutants that ``mutants.py`` runs the tests against.

Pure functions of the source text. An edit keeps the rest of the file as it is, so that a mutant reads as a change of
one line. What a person reads (messages, logs, docstrings), types, defaults and the ranges of settings stay.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

Tokens = dict[str, tuple[str, ...]]

COMPARISONS: Tokens = {
    "<": (">=", "<="), "<=": (">", "<"), ">": ("<=", ">="), ">=": ("<", ">"), "==": ("!=",), "!=": ("==",),
    "is not": ("is",), "is": ("is not",), "not in": ("in",), "in": ("not in",),
}  # fmt: skip
OPERATORS: Tokens = {
    "+": ("-",), "-": ("+",), "*": ("/",), "/": ("*",), "//": ("%",), "%": ("//",), "**": ("*",), "&": ("|",),
    "|": ("&",), "and": ("or",), "or": ("and",),
}  # fmt: skip
PAIRS = (
    ("min", "max"), ("amin", "amax"), ("argmin", "argmax"), ("minimum", "maximum"), ("clamp_min", "clamp_max"),
    ("sum", "mean"), ("any", "all"), ("zeros", "ones"), ("zeros_like", "ones_like"), ("ceil", "floor"),
    ("square", "abs"), ("softmax", "log_softmax"), ("no_grad", "enable_grad"), ("train", "eval"),
    ("with_prefix", "under_prefix"),
)  # fmt: skip
OTHER_FUNCTION = dict([*PAIRS, *((two, one) for one, two in PAIRS)])
TRANSPARENT = frozenset({
    "abs", "clamp", "clamp_", "clamp_max", "clamp_min", "clone", "cummax", "detach", "double", "exp", "float", "log",
    "masked_fill", "masked_fill_", "max", "mean", "min", "nan_to_num", "neg", "normalize", "requires_grad_", "sort",
    "sqrt", "square", "sum",
})  # fmt: skip
"""Calls that can be taken away so that their subject is left: ``x.detach()``, ``F.normalize(x)``, ``max(x, 1)``."""

OF_SHAPE = frozenset({"dim", "dims", "dtype", "device", "strict", "keepdim", "dim1", "dim2", "initial"})
"""Arguments whose loss is an error of shape at once, which every test sees."""

ONLY_FOR_READERS = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Global)
NOT_BROKEN = frozenset({"Field", "ConfigDict", "getLogger", "warning", "info", "debug", "TypeVar"})
"""Calls that declare or tell something."""


@dataclass(frozen=True)
class Mutant:
    """A file with one place broken.

    Attributes:
        file: the file's name, as given.
        where: the function or class the place stands in.
        kind: what was done to it.
        before, after: the lines in question, white space collapsed; with ``file`` and ``where`` the mutant's identity,
            which outlives changes elsewhere in the file.
        source: the whole mutated file.
    """

    file: str
    where: str
    kind: str
    before: str
    after: str
    source: str = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        return f"{self.file} | {self.where} | {self.before} | {self.after}"


class Edit(NamedTuple):
    kind: str
    start: int
    end: int
    text: str


class Text:
    """A source file as bytes, as the positions of ``ast`` count."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def start(self, node: Any) -> int:
        position: int = self.starts[node.lineno - 1] + node.col_offset
        return position

    def end(self, node: Any) -> int:
        position: int = self.starts[node.end_lineno - 1] + node.end_col_offset
        return position

    def between(self, start: int, end: int) -> str:
        return self.data[start:end].decode()

    def of(self, node: ast.AST) -> str:
        return self.between(self.start(node), self.end(node))

    def replace(self, kind: str, node: ast.AST, text: str) -> Edit:
        return Edit(kind, self.start(node), self.end(node), text)

    def lines(self, edit: Edit) -> tuple[str, str]:
        """The lines the edit touches, before and after it, with single spaces."""
        first = self.data.rfind(b"\n", 0, edit.start) + 1
        last = self.data.find(b"\n", edit.end) % (len(self.data) + 1)
        before = self.between(first, last)
        after = self.between(first, edit.start) + edit.text + self.between(edit.end, last)
        return " ".join(before.split()), " ".join(after.split())

    def edited(self, edit: Edit) -> str:
        return self.between(0, edit.start) + edit.text + self.between(edit.end, len(self.data))


Rule = Callable[[Text, Any], Iterator[Edit]]


def token_between(text: Text, left: ast.AST, right: ast.AST, tokens: Tokens) -> tuple[str, int]:
    """The operator between two operands and where it starts; brackets may stand around it."""
    start = text.end(left)
    region = text.between(start, text.start(right))
    found = re.search("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)), region)
    return ("", start) if found is None else (found.group(), start + len(region[: found.start()].encode()))


def comparison(text: Text, node: ast.Compare) -> Iterator[Edit]:
    token, start = token_between(text, node.left, node.comparators[0], COMPARISONS)
    for other in COMPARISONS.get(token, ()):
        yield Edit("comparison", start, start + len(token), other)


def arithmetic(text: Text, node: ast.BinOp) -> Iterator[Edit]:
    token, start = token_between(text, node.left, node.right, OPERATORS)
    for other in OPERATORS.get(token, ()):
        yield Edit("operator", start, start + len(token), other)
    if token in ("*", "+", "-", "/", "&", "|"):
        yield text.replace("operand", node, text.between(text.start(node), start).rstrip())
        yield text.replace("operand", node, text.between(start + len(token), text.end(node)).lstrip())


def logic(text: Text, node: ast.BoolOp) -> Iterator[Edit]:
    token, start = token_between(text, node.values[0], node.values[1], OPERATORS)
    for other in OPERATORS.get(token, ()):
        yield Edit("operator", start, start + len(token), other)


def sign(text: Text, node: ast.UnaryOp) -> Iterator[Edit]:
    if not isinstance(node.operand, ast.Constant):
        length = 3 if isinstance(node.op, ast.Not) else 1
        yield text.replace("operator", node, text.between(text.start(node) + length, text.end(node)).strip())


def constant(text: Text, node: ast.Constant) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, bool):
        yield text.replace("constant", node, str(not value))
    elif isinstance(value, int):
        yield text.replace("constant", node, str(value + 1))
    elif isinstance(value, float):
        yield text.replace("constant", node, repr(10.0 * value) if value else "1.0")


def dimension(text: Text, node: ast.keyword) -> Iterator[Edit]:
    if node.arg == "dim" and text.of(node.value) in ("0", "1"):
        yield text.replace("constant", node.value, "0" if text.of(node.value) == "1" else "1")


def call(text: Text, node: ast.Call) -> Iterator[Edit]:
    name = called(node)
    if name in OTHER_FUNCTION and (isinstance(node.func, ast.Attribute) or OTHER_FUNCTION[name] in vars(builtins)):
        end = text.end(node.func)
        yield Edit("function", end - len(name), end, OTHER_FUNCTION[name])
    subject = node.func.value if isinstance(node.func, ast.Attribute) else None
    is_module = isinstance(subject, ast.Name) and subject.id in ("F", "torch", "math", "np")
    if name in TRANSPARENT:
        if subject is not None and not is_module:
            yield text.replace("call", node, text.between(text.start(node), text.end(subject)))
        elif node.args:
            yield text.replace("call", node, text.of(node.args[0]))
    for argument in node.args:
        if isinstance(argument, ast.List) and len(argument.elts) > 1:
            yield Edit("argument", text.end(argument.elts[-2]), text.end(argument.elts[-1]), "")
    yield from dropped_keywords(text, node)


def dropped_keywords(text: Text, node: ast.Call) -> Iterator[Edit]:
    parts: list[ast.AST] = [*node.args, *node.keywords]
    for index, part in enumerate(parts):
        if not isinstance(part, ast.keyword) or part.arg is None or part.arg in OF_SHAPE:
            continue
        if index > 0:
            yield Edit("argument", text.end(parts[index - 1]), text.end(part), "")
        elif len(parts) > 1:
            yield Edit("argument", text.start(part), text.start(parts[1]), "")
        else:
            yield text.replace("argument", part, "")


def subscript(text: Text, node: ast.Subscript) -> Iterator[Edit]:
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    for part in parts:
        if isinstance(part, ast.Slice):
            for bound in (part.lower, part.upper):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield text.replace("off by one", bound, f"({text.of(bound)} + 1)")


def statement(text: Text, node: ast.Expr) -> Iterator[Edit]:
    value = node.value
    if isinstance(value, ast.Call) and called(value) not in NOT_BROKEN and not text.of(value).startswith("super()."):
        yield text.replace("statement", node, "pass")


def assignment(text: Text, node: ast.Assign) -> Iterator[Edit]:
    if isinstance(node.targets[0], ast.Attribute | ast.Subscript):
        yield text.replace("statement", node, "pass")
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple) and len(node.value.elts) == 2:
        yield from swapped(text, node.value)


def in_place(text: Text, node: ast.AugAssign) -> Iterator[Edit]:
    token, start = token_between(text, node.target, node.value, OPERATORS)
    for other in OPERATORS.get(token, ()):
        yield Edit("operator", start, start + len(token), other)
    yield text.replace("statement", node, "pass")


def answer(text: Text, node: ast.Return) -> Iterator[Edit]:
    if isinstance(node.value, ast.Tuple) and len(node.value.elts) > 1:
        yield from swapped(text, node.value)


def swapped(text: Text, node: ast.Tuple) -> Iterator[Edit]:
    one, two = node.elts[:2]
    middle = text.between(text.end(one), text.start(two))
    yield Edit("swap", text.start(one), text.end(two), text.of(two) + middle + text.of(one))


def branch(text: Text, node: ast.If) -> Iterator[Edit]:
    for value in ("True", "False"):
        yield text.replace("branch", node.test, value)


def choice(text: Text, node: ast.IfExp) -> Iterator[Edit]:
    yield text.replace("branch", node.test, f"not ({text.of(node.test)})")


def loop(text: Text, node: ast.For) -> Iterator[Edit]:
    yield text.replace("off by one", node.iter, f"list({text.of(node.iter)})[1:]")


def selection(text: Text, node: ast.comprehension) -> Iterator[Edit]:
    for condition in node.ifs:
        yield text.replace("branch", condition, "True")


def context(text: Text, node: ast.With) -> Iterator[Edit]:
    for index, item in enumerate(node.items):
        if item.optional_vars is None:
            if len(node.items) == 1:
                yield Edit("context", text.start(node), text.end(item.context_expr), "if True")
            elif index == 0:
                yield Edit("context", text.start(item.context_expr), text.start(node.items[1].context_expr), "")
            else:
                end = text.end(node.items[index - 1].context_expr)
                yield Edit("context", end, text.end(item.context_expr), "")


def function(text: Text, node: ast.FunctionDef) -> Iterator[Edit]:
    """Another answer: a variable of the same function in place of the one returned; a decorator less."""
    for decorator in node.decorator_list:
        if text.of(decorator) == "torch.no_grad()":
            yield Edit("context", text.start(decorator) - 1, text.end(decorator), "")
    names = [argument.arg for argument in node.args.args if argument.arg not in ("self", "cls")]
    for line in node.body:
        names += [word.id for target in getattr(line, "targets", []) for word in ast.walk(target) if is_variable(word)]
    for part in ast.walk(node):
        if isinstance(part, ast.Return) and isinstance(part.value, ast.Name):
            others = [name for name in names if name != part.value.id]
            if others:
                yield text.replace("answer", part.value, others[-1])


def is_variable(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


RULES: dict[type[ast.AST], Rule] = {
    ast.Compare: comparison,
    ast.BinOp: arithmetic,
    ast.BoolOp: logic,
    ast.UnaryOp: sign,
    ast.Constant: constant,
    ast.Call: call,
    ast.keyword: dimension,
    ast.Subscript: subscript,
    ast.Expr: statement,
    ast.Assign: assignment,
    ast.AugAssign: in_place,
    ast.Return: answer,
    ast.If: branch,
    ast.IfExp: choice,
    ast.For: loop,
    ast.comprehension: selection,
    ast.With: context,
    ast.FunctionDef: function,
}


def called(node: ast.Call) -> str:
    """The last part of the name of what is called."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def places(node: ast.AST, where: str = "") -> Iterator[tuple[str, ast.AST]]:
    """All nodes that may be broken, with the function or class they stand in."""
    if isinstance(node, ONLY_FOR_READERS) or (isinstance(node, ast.Call) and called(node) in NOT_BROKEN):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        where = f"{where}.{node.name}".lstrip(".")
    yield where or "module", node
    if isinstance(node, ast.keyword) and node.arg == "dim" and isinstance(node.value, ast.Constant):
        return  # one more is not a dimension at all: see ``dimension``
    if isinstance(node, ast.AnnAssign) and where.endswith("Settings"):
        return
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases", "defaults", "kw_defaults"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from places(child, where)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of a source file, one for each key; a few of them may not compile."""
    text, found = Text(source), dict[str, Mutant]()
    for where, node in places(ast.parse(source)):
        rule = RULES.get(type(node))
        for edit in rule(text, node) if rule is not None else ():
            before, after = text.lines(edit)
            mutant = Mutant(file, where, edit.kind, before, after, text.edited(edit))
            if before != after:
                found.setdefault(mutant.key, mutant)
    return list(found.values())


def compiles(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True
