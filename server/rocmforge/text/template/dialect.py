"""The Jinja environment of chat templates: Hugging Face's dialect, tracked and bounded.

The settings, functions and extensions are those of `transformers.utils.chat_template_utils`. On
top of Jinja's immutable sandbox, strings are tracked (see `tracked`), operations are bounded (see
`budget`), and only listed filters, methods and functions can be called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from types import CodeType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import BlockReference, Context, LoopContext, Macro, Undefined
from jinja2.sandbox import SandboxedFormatter, safe_range
from jinja2.utils import Cycler, Joiner, Namespace, pass_context
from jinja2.visitor import NodeTransformer

from rocmforge.text.template.bounded import BoundedEnvironment, Literals
from rocmforge.text.template.budget import Budget, values_of
from rocmforge.text.template.filters import FILTERS
from rocmforge.text.template.tracked import TrackedText, formatted

_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(
        [
            *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find"),
            *("index", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier"),
            *("islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join"),
            *("ljust", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace"),
            *("rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip", "split", "splitlines"),
            *("startswith", "strip", "swapcase", "title", "upper", "zfill"),
        ]
    ),
    list: frozenset({"copy", "count", "index"}),
    tuple: frozenset({"count", "index"}),
    dict: frozenset({"copy", "get", "items", "keys", "values"}),
    LoopContext: frozenset({"changed", "cycle"}),
    Cycler: frozenset({"next", "reset"}),
}


class Refused(jinja2.TemplateError):
    """The template has called `raise_exception`."""


def _raise_exception(message: str) -> None:
    raise Refused(str(message))


class _TemplateNamespace(Namespace):
    """Jinja's namespace without underscored attributes, as in Transformers."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the underscored attribute {name!r}")


class _Format:
    """`str.format` of one string."""

    def __init__(self, environment: RenderEnvironment, template: str) -> None:
        self._environment = environment
        self._template = template

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        self._environment.budget.brace_format(self._template, (args, kwargs))
        formatter = SandboxedFormatter(self._environment)
        if isinstance(self._template, TrackedText):

            def field(name: str) -> Any:
                return formatter.get_field(name, args, kwargs)[0]

            text = formatted(self._template, field)
            if text is not None:
                return text
        return formatter.vformat(self._template, args, kwargs)


_NAMES_OF_DICTS = frozenset(dir(dict))
_CALLABLE_TYPES = (BlockReference, Joiner, LoopContext, Macro, Undefined, _Format)


class _Generation(Extension):
    """`{% generation %}`: marks answers for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012  (declared so by Jinja)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _CountLoops(NodeTransformer):
    """Makes every loop draw its items through the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "#each", [], [], None, None, lineno=node.lineno)
        return node


class _CodeGenerator(CodeGenerator):
    """Shows the environment literals, concatenations and new containers."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, str):
            self.write(f"environment.literals[{node.value!r}]")
        else:
            super().visit_Const(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concatenated((")
        for arg in node.nodes:
            self.visit(arg, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._weighed(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._weighed(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._weighed(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if _is_plain_output(frame):
            self.write("(" if _is_literal(node) else "environment.written(")
        else:
            super()._output_child_pre(node, frame, finalize)

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if _is_plain_output(frame):
            self.write(")")
        else:
            super()._output_child_post(node, frame, finalize)

    def _weighed(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.weighed(")
        visit(node, frame)
        self.write(")")


def _is_plain_output(frame: Frame) -> bool:
    """Returns whether output is not HTML, for which there is `{% autoescape %}`."""
    return not (frame.eval_ctx.volatile or frame.eval_ctx.autoescape)


def _is_literal(node: nodes.Expr) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, str)


class RenderEnvironment(BoundedEnvironment):
    """An environment for one rendering; what compiled templates share is their code."""

    code_generator_class = _CodeGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, budget: Budget, now: Callable[[], datetime]) -> None:
        """Make an environment.

        Args:
            budget: The rendering's budget.
            now: The local time, for `strftime_now`.
        """
        # Folding constants would run filters at compile time, before there is a budget.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self._finalize,
            extensions=[_Generation, loopcontrols],
        )
        self.budget = budget
        self.literals = Literals()
        self._readable: dict[tuple[type, str], bool] = {}
        self.filters = dict(FILTERS)
        self.globals = {
            "cycler": Cycler,
            "dict": self._dict,
            "joiner": Joiner,
            "namespace": _TemplateNamespace,
            "raise_exception": _raise_exception,
            "range": safe_range,
            "strftime_now": lambda pattern: now().strftime(str(pattern)[:1000]),
        }
        self._functions = frozenset(id(function) for function in self.globals.values())

    def code(self, source: str) -> CodeType:
        """Compile a template.

        Raises:
            jinja2.TemplateSyntaxError: it is not a template.
        """
        tree = _CountLoops().visit(self._parse(source, None, None))
        return self._compile(self._generate(tree, None, None), "<chat template>")

    @pass_context
    def _finalize(self, _context: Context, value: Any) -> TrackedText:
        return _tracked(self.text_of(value))

    def written(self, value: Any) -> TrackedText:
        """Converts what `{{ }}` puts out."""
        return value if type(value) is TrackedText else str(_tracked(self.text_of(value)))  # type: ignore[return-value]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Reads `obj.attribute`. Most are of messages and namespaces: keys, and not attributes."""
        if type(obj) is dict and attribute not in _NAMES_OF_DICTS:
            values = obj
        elif type(obj) is _TemplateNamespace:
            values = values_of(obj)
        else:
            return super().getattr(obj, attribute)
        if attribute in values:
            return values[attribute]
        return self.undefined(obj=obj, name=attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Returns whether an attribute may be read, which depends on the object's type alone."""
        key = type(obj), attr
        if key not in self._readable:
            self._readable[key] = super().is_safe_attribute(obj, attr, value)
        return self._readable[key]

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Applies an arithmetic operator."""
        self.budget.tick()
        self.budget.operator(operator, left, right)
        return self.binop_table[operator](left, right)

    def call(
        __self,  # noqa: N805  (as in Jinja: names of keyword arguments stay free)
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Calls a function or method."""
        __self.budget.tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(__obj, LoopContext):
            args = tuple(__self.budget.each(arg) for arg in args)
        elif isinstance(owner, str):
            if __obj.__name__ == "join":
                parts = __self.budget.listed(*args)
                __self.budget.size(parts)
                __self.budget.text(sum(map(len, parts)) + len(owner) * len(parts))
                return _tracked(owner.join(parts))
            __self.budget.str_method(owner, __obj.__name__, args or (kwargs.get("sep"),))
        result = super().call(__context, __obj, *args, **kwargs)
        # `{% call %}` puts out results as they are, and plain output is the template's own text.
        return _tracked(result) if isinstance(result, str) else result

    def is_safe_callable(self, obj: Any) -> bool:
        """Returns whether the object is listed as callable."""
        if id(obj) in self._functions or isinstance(obj, _CALLABLE_TYPES):
            return True
        owner, name = getattr(obj, "__self__", None), getattr(obj, "__name__", "")
        return any(isinstance(owner, type_) and name in names for type_, names in _METHODS.items())

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Returns a checked and tracked `str.format` in place of the method."""
        owner = getattr(value, "__self__", None)
        if isinstance(owner, str) and getattr(value, "__name__", "") == "format":
            return _Format(self, owner)
        return None

    def _dict(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        made = dict(*args, **kwargs)
        self.budget.size(made)
        return made


def _tracked(text: str) -> TrackedText:
    """Gives every character its flag; plain text is not trusted."""
    return text if isinstance(text, TrackedText) else TrackedText(text, bytes(len(text)))
