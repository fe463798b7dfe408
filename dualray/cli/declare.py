"""Commands made of functions: the signature of a function is the command's arguments and options (click reads them).

An `Option` or an `Argument` stands in the annotation of each parameter: `nodes: Annotated[int, Option(min=1)] = 10` is
the option `--nodes`. A parameter of type `bool` is a flag, a list may be given several times, and one that may be None
has no default. The function's docstring is the command's help.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.exceptions import Exit

from dualray.shared.nearest import nearest

__all__ = ["Argument", "Commands", "Exit", "Option"]

_Function = TypeVar("_Function", bound=Callable[..., None])
_KINDS: Final[dict[Any, Any]] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    bool: click.BOOL,
    Path: click.Path(path_type=Path),
}


@dataclass(frozen=True, slots=True, init=False)
class Option:
    """Describes a parameter of a command that is an option.

    Attributes:
        names: such as `--output` and `-o`; none: made of the parameter's name.
        help: one line.
        min, max: the limits of a number.
        is_hidden: the help leaves it out: an earlier name that still works.
    """

    names: tuple[str, ...]
    help: str
    min: float | None
    max: float | None
    is_hidden: bool

    def __init__(
        self,
        *names: str,
        help: str = "",  # noqa: A002 - the word that click has for it
        min: float | None = None,  # noqa: A002 - as above
        max: float | None = None,  # noqa: A002 - as above
        is_hidden: bool = False,
    ) -> None:
        given = {"names": names, "help": help, "min": min, "max": max, "is_hidden": is_hidden}
        for name, value in given.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """Describes a parameter of a command that is an argument.

    Attributes:
        help: one line.
        metavar: its name in the help; "": the parameter's, in capitals.
    """

    help: str = ""
    metavar: str = ""


class _Argument(click.Argument):
    """An argument of the command line that the help explains."""

    def __init__(self, *args: Any, help: str, **options: Any) -> None:  # noqa: A002 - the word that click has for it
        super().__init__(*args, **options)
        self.help = help


class _Command(click.Command):
    """A command whose help lists the arguments above the options, as newer versions of click do by default."""

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: `format_options` has them, for every version of click."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, _Argument) and param.help]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl([(param.human_readable_name, param.help or "") for param in arguments])
        super().format_options(ctx, formatter)


class Commands(click.Group):
    """The commands of one module, or under one name. For an unknown name, the error suggests the nearest name."""

    def __init__(self, name: str | None = None, *, help: str = "", **options: Any) -> None:  # noqa: A002 - as above
        super().__init__(name, help=help, no_args_is_help=True, **options)

    def add(
        self, name: str, *, takes_unknown: bool = False, takes_more: bool = False
    ) -> Callable[[_Function], _Function]:
        """Make a command of the function that this decorates, which stays what it is.

        Args:
            name: the command's.
            takes_unknown: an option that it does not know is an argument.
            takes_more: arguments that it does not declare stay in the context.
        """

        def made(function: _Function) -> _Function:
            settings = {"ignore_unknown_options": takes_unknown, "allow_extra_args": takes_more}
            self.add_command(command_of(function, name, settings))
            return function

        return made

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            near = nearest(args[0], self.list_commands(ctx))
            ctx.fail(f"there is no command {args[0]!r}{near}")
        return super().resolve_command(ctx, args)


def command_of(function: Callable[..., None], name: str, settings: dict[str, Any] | None = None) -> click.Command:
    """Return the command that a function's signature and docstring declare."""
    hints = typing.get_type_hints(function, include_extras=True)
    params: list[click.Parameter] = []
    wants_context = ""
    for param in inspect.signature(function).parameters.values():
        if hints[param.name] is click.Context:
            wants_context = param.name
        else:
            params.append(_param(param, hints[param.name]))
    lists = [each.name for each in params if each.multiple or each.nargs == -1]

    def called(**values: Any) -> None:
        for each in lists:
            values[str(each)] = list(values[str(each)]) or None
        if wants_context:
            values[wants_context] = click.get_current_context()
        function(**values)

    return _Command(
        name, params=params, callback=called, help=inspect.getdoc(function), context_settings=settings or {}
    )


def _param(param: inspect.Parameter, hint: Any) -> click.Parameter:
    base, marker = typing.get_args(hint)
    parts = [each for each in typing.get_args(base) if each is not types.NoneType] if _is_union(base) else [base]
    (kind,) = parts
    is_list = typing.get_origin(kind) is list
    if is_list:
        (kind,) = typing.get_args(kind)
    is_required = param.default is inspect.Parameter.empty
    default = None if is_required else param.default
    given: dict[str, Any] = {"required": True} if is_required else {"default": default, "required": False}
    if isinstance(marker, Argument):
        return _Argument(
            [param.name],
            help=marker.help,
            type=_KINDS[kind],
            nargs=-1 if is_list else 1,
            metavar=marker.metavar or None,
            **given,
        )
    assert isinstance(marker, Option), f"{param.name} has neither an Option nor an Argument"
    limited = marker.min is not None or marker.max is not None
    names = marker.names or _names_of(param.name, is_flag=kind is bool)
    return click.Option(
        [param.name, *names],
        help=marker.help,
        type=None if kind is bool else _limited(kind, marker) if limited else _KINDS[kind],
        is_flag=kind is bool,
        multiple=is_list,
        hidden=marker.is_hidden,
        show_default=default not in (None, False, ""),
        **given,
    )


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _names_of(name: str, *, is_flag: bool) -> Sequence[str]:
    words = name.strip("_").replace("_", "-")
    return [f"--{words}/--no-{words}"] if is_flag else [f"--{words}"]


def _limited(kind: type, marker: Option) -> Any:
    if kind is int:
        return click.IntRange(_whole(marker.min), _whole(marker.max))
    return click.FloatRange(marker.min, marker.max)


def _whole(limit: float | None) -> int | None:
    return None if limit is None else int(limit)
