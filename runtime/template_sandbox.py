"""A Jinja environment for templates that came with somebody else's model.

The immutable sandbox keeps a template away from Python's objects. It bounds neither time nor
memory, so this one adds an allowlist of filters and methods (the ones chat templates use) and
meters what is left (runtime/template_fuel.py). The payments are written into the template's
syntax tree, so nothing needs threads, signals or a trace function, and it works alike on every
platform.
"""

from __future__ import annotations

from typing import Any

from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from selfdraft.runtime.template_filters import (
    CHARGE,
    CONCAT,
    TICK,
    allowed_filters,
    joined,
    text_of,
)
from selfdraft.runtime.template_fuel import (
    TemplateLimitError,
    binop_cost,
    replace_cost,
    size_of,
    spend,
)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_METHODS: dict[type, frozenset[str]] = {
    str: _names(
        "capitalize count endswith find index isalnum isalpha isascii isdecimal isdigit islower"
        " isnumeric isspace istitle isupper join lower lstrip partition removeprefix removesuffix"
        " replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip swapcase"
        " title upper"
    ),
    dict: _names("get items keys values"),
    list: _names("count index"),
    tuple: _names("count index"),
    **{kind: _names("") for kind in (int, float, bytes, range, type, type(None))},
}
"""Methods of plain values. Left out: those that pad (``center``, ``zfill``, ``format`` …)."""


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Environment whose templates run inside ``template_fuel.metered`` only."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_finalize,
            extensions=["jinja2.ext.loopcontrols", GenerationTag],
        )
        self.globals.pop("lipsum", None)
        self.filters.clear()
        self.filters.update(allowed_filters())

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _Metered().visit(super()._parse(source, name, filename))
        assert isinstance(tree, nodes.Template)
        tree.set_environment(self)
        return tree

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Of plain values only the methods that chat templates use."""
        for kind, names in _METHODS.items():
            if isinstance(obj, kind):
                return attr in names
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> None:
        """No exception for ``str.format``: it is refused like every unlisted method."""

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Pay for the result, then compute it."""
        spend(binop_cost(operator, left, right))
        return super().call_binop(context, operator, left, right)

    # The parameter names are jinja2's: a template's keyword arguments must not clash with them.
    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: PYI063
        """Pay for the call and its result; ``join`` and ``replace`` are paid in advance."""
        spend(1)
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            method = __obj.__name__
            if method == "join" and len(args) == 1:
                return joined(owner, args[0])
            if method == "replace" and len(args) >= 2:
                spend(replace_cost(owner, args[0], args[1]))
        result = super().call(__context, __obj, *args, **kwargs)
        spend(size_of(result))
        return result


class GenerationTag(Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's text for training; here it
    prints its body and no more."""

    tags = {"generation"}  # noqa: RUF012 - the type that jinja2 declares

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements inside the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Metered(NodeTransformer):
    """Writes the payments into the syntax tree of a template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        metered = self._repeated(node)
        if node.test is not None:
            node.test = _filter(node.test, CHARGE)
        return metered

    def _repeated(self, node: nodes.Node) -> nodes.Node:
        """Each pass through a body costs its text."""
        self.generic_visit(node)
        text = sum(len(data.data) for data in node.find_all(nodes.TemplateData))
        body: list[nodes.Node] = node.body  # type: ignore[attr-defined]
        body.insert(0, nodes.ExprStmt(_filter(nodes.Const(text + 1), TICK)))
        return node

    visit_Macro = visit_CallBlock = visit_Block = _repeated

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        self.generic_visit(node)
        node.filter = _filter(node.filter, CHARGE)
        return node

    def _value(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        stored = getattr(node, "ctx", "load") == "store"
        return node if stored else _filter(node, CHARGE)

    visit_List = visit_Tuple = visit_Dict = visit_Compare = _value

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        return self._value(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(nodes.List(node.nodes), CONCAT)

    def _refused(self, node: nodes.Node) -> nodes.Node:
        raise TemplateLimitError(f"it wants another file ({type(node).__name__.lower()})")

    visit_Include = visit_Import = visit_FromImport = visit_Extends = _refused


def _filter(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None)


@pass_context
def _finalize(_context: Context, value: object) -> str:
    """Text of one output expression. Taking the context keeps Jinja from folding it early."""
    return text_of(value)
