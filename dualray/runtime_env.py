"""Runtime environments: the environment variables and import paths that tasks and actors run with.

An environment travels as text, JSON in one form, so that equal ones are equal texts: it is part of what a lease must
offer, and a worker that has once had one never gets another.
"""

from __future__ import annotations

import base64
import difflib
import importlib
import json
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from dualray.exceptions import RuntimeEnvSetupError, rays_words

HOOK = "worker_process_setup_hook"
KEYS = ("env_vars", "working_dir", "py_modules", "pip", "uv", HOOK)
_ELSEWHERE = {
    "conda": "Start the cluster in the conda environment",
    "container": "Start the cluster in the container",
    "image_uri": "Start the cluster in the container",
    "py_executable": "Start the cluster with this Python executable",
}
"""Keys of Ray's that no worker can set up. As in Ray, the task or actor fails, and not the call that submits it."""
_WITHOUT_EFFECT = ("config", "excludes")
"""Keys of Ray's that say how an environment is brought to a node: nothing is brought."""
_PICKLED = "pickled:"
"""Begins the text of a setup hook that is a function; base64 follows. Other hooks are names."""
HOOK_BYTES_MAX = 64 << 10
"""Of a pickled setup hook. It is part of each request for a worker."""


class RuntimeEnvPathError(RuntimeEnvSetupError, ValueError):
    """A directory or a module of a runtime environment is not there. In Ray the error is a ValueError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeEnv:
    """An environment; every path is absolute.

    Attributes:
        env_vars: environment variables, by name; `${NAME}` in a value stands for what the node's process has there.
        working_dir: where the code runs, and what it can import from. None: where the worker was started.
        py_modules: packages (directories) and modules (files) that it can import.
        pip: requirements that are installed.
        elsewhere: keys of Ray's that no worker can set up, each with its value as JSON.
        setup_hook: what a worker calls before its first task: a name such as "package.module.function", or a pickled
            function as text. "": nothing.
    """

    env_vars: tuple[tuple[str, str], ...] = ()
    working_dir: str | None = None
    py_modules: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, str], ...] = ()
    setup_hook: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As a user would write it."""
        said: dict[str, Any] = {}
        if self.env_vars:
            said["env_vars"] = dict(self.env_vars)
        if self.working_dir is not None:
            said["working_dir"] = self.working_dir
        if self.py_modules:
            said["py_modules"] = list(self.py_modules)
        if self.pip:
            said["pip"] = list(self.pip)
        said |= {key: json.loads(value) for key, value in self.elsewhere}
        if self.setup_hook:
            said[HOOK] = self.setup_hook
        return said

    def to_text(self) -> str:
        """As JSON; "" for one that asks for nothing."""
        said = self.as_dict()
        return json.dumps(said, sort_keys=True) if said else ""

    def over(self, outer: RuntimeEnv) -> RuntimeEnv:
        """Merge this environment into the submitter's: its own fields win, and variables are those of both."""
        return RuntimeEnv(
            env_vars=tuple(sorted({**dict(outer.env_vars), **dict(self.env_vars)}.items())),
            working_dir=self.working_dir if self.working_dir is not None else outer.working_dir,
            py_modules=self.py_modules or outer.py_modules,
            pip=self.pip or outer.pip,
            elsewhere=self.elsewhere or outer.elsewhere,
            setup_hook=self.setup_hook or outer.setup_hook,
        )

    @property
    def import_paths(self) -> list[str]:
        """What goes before everything else on `sys.path`."""
        paths = [self.working_dir] if self.working_dir is not None else []
        paths += [str(Path(module).parent) for module in self.py_modules]
        paths += [path for path in dict(self.env_vars).get("PYTHONPATH", "").split(os.pathsep) if path]
        return list(dict.fromkeys(paths))

    def check(self) -> None:
        """Raise when this node does not have a directory or a package, or when no worker can set a key up.

        Raises:
            RuntimeEnvSetupError: naming it, with the way out.
        """
        for key, _ in self.elsewhere:
            raise RuntimeEnvSetupError(f"runtime_env: dualray cannot set up {key!r} for a worker. {_ELSEWHERE[key]}")
        self.check_paths("on this node")
        if self.pip:
            from dualray.installed_packages import missing  # noqa: PLC0415 - few ask for packages

            if absent := missing(self.pip):
                why = ", ".join(f"{asked!r} {words} on this node" for asked, words in absent.items())
                raise RuntimeEnvSetupError(
                    f"runtime_env: pip: {why}, and dualray installs no packages. Run `pip install "
                    f"{' '.join(map(shlex.quote, absent))}` on each node before you start the cluster"
                )

    def check_paths(self, where: str) -> None:
        """Raise when a directory or a module is not there.

        Raises:
            RuntimeEnvPathError: naming it, and `where` it was looked for.
        """
        if self.working_dir is not None and not Path(self.working_dir).is_dir():
            raise RuntimeEnvPathError(
                f"runtime_env: working_dir={self.working_dir!r} is not a directory {where}. dualray does not copy "
                f"directories, so create the directory on each node"
            )
        for module in self.py_modules:
            if not Path(module).exists():
                raise RuntimeEnvPathError(
                    f"runtime_env: py_modules contains {module!r}, which does not exist {where}. dualray does not "
                    f"copy modules, so copy the module to each node yourself"
                )


def from_text(text: str) -> RuntimeEnv:
    """What `to_text` has written."""
    said = json.loads(text) if text else {}
    return RuntimeEnv(
        env_vars=tuple(sorted(said.get("env_vars", {}).items())),
        working_dir=said.get("working_dir"),
        py_modules=tuple(said.get("py_modules", ())),
        pip=tuple(said.get("pip", ())),
        elsewhere=_elsewhere(said),
        setup_hook=said.get(HOOK, ""),
    )


def parse(what: str, said: Mapping[str, Any] | None) -> RuntimeEnv:
    """What a user wrote as runtime_env, checked, with absolute paths.

    Raises:
        ValueError: an unknown key (with the nearest known one). Under the name `ray` it is ignored with a warning.
        TypeError: a value of a wrong type.
        RuntimeEnvSetupError: a directory that is not there (also a ValueError), or a setup hook that cannot be pickled.
    """
    if said is None:
        return RuntimeEnv()
    if not isinstance(said, Mapping):
        raise TypeError(f"{what}={said!r} must be a dict, such as {{'env_vars': {{'NAME': 'value'}}}}")
    for key in said:
        if key not in KEYS and key not in _WITHOUT_EFFECT and key not in _ELSEWHERE:
            nearest = difflib.get_close_matches(str(key), KEYS, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            if (words := rays_words()) is None:
                raise ValueError(f"{what} has no key {key!r}.{hint} The known keys are {', '.join(KEYS)}.")
            words.warn_of_unknown_key(what, key, hint)
    _check_conda(what, said)
    found = RuntimeEnv(
        env_vars=_env_vars(what, said.get("env_vars")),
        working_dir=_path(f"{what}: working_dir", said["working_dir"]) if said.get("working_dir") is not None else None,
        py_modules=_py_modules(what, said.get("py_modules")),
        pip=_pip(what, said.get("pip"), said.get("uv")),
        elsewhere=_elsewhere(said),
        setup_hook=_setup_hook(what, said.get(HOOK)),
    )
    found.check_paths("on this node")
    return found


def _has_bytes(text: str) -> bool:
    """Whether the system can have the text. It may have the surrogates that `os.fsdecode` makes of bytes."""
    try:
        text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _env_vars(what: str, said: Any) -> tuple[tuple[str, str], ...]:
    if said is None:
        return ()
    if not isinstance(said, Mapping):
        raise TypeError(f"{what}: env_vars={said!r} must be a dict whose keys and values are str")
    for name, value in said.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"{what}: env_vars has {name!r}: {value!r}, but both the key and the value must be str")
        if not name or "=" in name or "\0" in name + value or not _has_bytes(name + value):
            raise ValueError(f"{what}: env_vars has {name!r}: {value!r}, which cannot be an environment variable")
    return tuple(sorted(said.items()))


def _py_modules(what: str, said: Any) -> tuple[str, ...]:
    if said is None:
        return ()
    if isinstance(said, str | Path | ModuleType) or not isinstance(said, Sequence):
        raise TypeError(f"{what}: py_modules={said!r} must be a list of paths or of modules")
    return tuple(_path(f"{what}: py_modules", _place_of(module)) for module in said)


def _pip(what: str, pip: Any, uv: Any) -> tuple[str, ...]:
    """The requirements of either: the packages are to be installed, by whatever tool."""
    if pip is None and uv is None:
        return ()
    if pip is not None and uv is not None:
        raise ValueError(f"{what} has both 'pip' and 'uv'. Put all packages into one of these two keys")
    from dualray.installed_packages import requirements  # noqa: PLC0415 - as above

    return requirements(what, "uv", uv) if pip is None else requirements(what, "pip", pip)


def _check_conda(what: str, said: Mapping[str, Any]) -> None:
    conda = said.get("conda")
    if conda is not None and not isinstance(conda, str | Mapping):
        raise TypeError(f"{what}: conda={conda!r} must be a str or a dict")
    if conda is not None and (said.get("pip") is not None or said.get("uv") is not None):
        raise ValueError(
            f"{what}: conda cannot be specified at the same time as pip or uv. Give only one of the three keys"
        )


def _elsewhere(said: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((key, json.dumps(said[key], sort_keys=True)) for key in _ELSEWHERE if said.get(key) is not None)


def _setup_hook(what: str, said: Any) -> str:
    if said is None:
        return ""
    if isinstance(said, str):
        if said.startswith(_PICKLED) or (all(part.isidentifier() for part in said.split(".")) and "." in said):
            return said
        raise ValueError(
            f"{what}: worker_process_setup_hook={said!r} must be the name of a function with its module, such as "
            "'package.module.f'"
        )
    if not callable(said):
        raise TypeError(
            f"{what}: worker_process_setup_hook={said!r} must be a function without arguments, or the name of a "
            "function with its module"
        )
    from cloudpickle import dumps  # noqa: PLC0415 - few give a function

    try:
        pickled = dumps(said)
    except Exception as error:
        raise RuntimeEnvSetupError(
            f"{what}: Failed to export the setup function. dualray cannot pickle "
            f"worker_process_setup_hook={said!r}: {error}"
        ) from error
    if len(pickled) > HOOK_BYTES_MAX:
        raise ValueError(
            f"{what}: the pickled function worker_process_setup_hook={said!r}, with the values that it captures, has "
            f"{len(pickled):,} bytes, but at most {HOOK_BYTES_MAX:,} bytes are allowed. Give the name of a function "
            "with its module, such as 'package.module.f'"
        )
    return _PICKLED + base64.b64encode(pickled).decode()


def _place_of(module: Any) -> Any:
    """Where a module is: of a package, its directory."""
    if not isinstance(module, ModuleType):
        return module
    if module.__file__ is None:
        return next(iter(module.__path__))
    file = Path(module.__file__)
    return file.parent if file.name == "__init__.py" else file


def _path(what: str, said: Any) -> str:
    if not isinstance(said, str | Path):
        raise TypeError(f"{what}={said!r} must be a path: a str or a pathlib.Path")
    if "://" in str(said):
        raise ValueError(f"{what}={said!r} must be a local path, because dualray downloads no files")
    return str(Path(said).expanduser().absolute())


def merged(outer: str, inner: RuntimeEnv) -> str:
    """The text of an environment inside of that of whoever submits."""
    return inner.over(from_text(outer)).to_text() if outer else inner.to_text()


def apply(text: str) -> None:
    """Have this process run with an environment from now on.

    Raises:
        RuntimeEnvSetupError: a directory that is not on this node.
    """
    environment = from_text(text)
    environment.check()
    os.environ.update(_expanded(environment))
    sys.path[:0] = environment.import_paths
    if environment.working_dir is not None:
        os.chdir(environment.working_dir)


def hook_of(said: str) -> Any:
    """A setup hook as a user wrote it: the function that was pickled, or a name."""
    if not said.startswith(_PICKLED):
        return said
    from cloudpickle import loads  # noqa: PLC0415 - as above

    return loads(base64.b64decode(said.removeprefix(_PICKLED)))


def call_hook(hook: str | Callable[[], object]) -> None:
    """Call a setup hook: a function, or the name of one with its module."""
    if isinstance(hook, str):
        module, _, name = hook.rpartition(".")
        getattr(importlib.import_module(module), name)()
    else:
        hook()


def run_setup_hook(text: str) -> None:
    """Call the setup hook of an environment that this process has had applied.

    Raises:
        RuntimeEnvSetupError: the hook cannot be found or unpickled, or it has raised an exception.
    """
    hook = from_text(text).setup_hook
    if not hook:
        return
    try:
        call_hook(hook_of(hook))
    except Exception as error:
        raise RuntimeEnvSetupError(
            f"runtime_env: Failed to execute the setup hook method. worker_process_setup_hook raised an exception in "
            f"this worker: {type(error).__name__}: {error}"
        ) from error


_NAME = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def _expanded(environment: RuntimeEnv) -> dict[str, str]:
    """Its variables. $NAME and ${NAME} stand for another of them, or for one of this process; of one that is not set,
    ${NAME} is empty, and $NAME stays."""
    own = dict(environment.env_vars)

    def found(name: str, wanted: re.Match[str]) -> str:
        other = wanted[1] or wanted[2]
        value = own[other] if other in own and other != name else os.environ.get(other)
        return value if value is not None else "" if wanted[1] else wanted[0]

    return {name: _NAME.sub(partial(found, name), value) if "$" in value else value for name, value in own.items()}


_umask, _putenv, _unsetenv = os.umask, os.putenv, os.unsetenv
"""The system's, also while a simulation has put other functions in their place."""

_key, _value = os.environ.encodekey, os.environ.encodevalue
_environ: dict[Any, Any] = os.environ._data  # type: ignore[attr-defined]  # a switch reads all: this takes a hundredth
"""The dict in which `os.environ` keeps the variables. Its keys and values are encoded as the system has them."""

_Variables = dict[Any, Any]
"""By `_key` of the name; the value is None, or `_value` of it."""


class Swapped:
    """An environment that this process has while a virtual one runs, and not otherwise.

    Modules that are imported from its paths are its own, too: two environments may have different ones of one name.

    text: as `RuntimeEnv.to_text` makes it; "" for one that differs in nothing yet.
    """

    def __init__(self, text: str) -> None:
        environment = from_text(text)
        environment.check()
        self._variables: _Variables = {_key(name): _value(value) for name, value in _expanded(environment).items()}
        """Those that differ from everybody's, as it has left them; None: it has none of that name."""
        self._said = frozenset(self._variables)
        self._of_others: frozenset[Any] = frozenset()
        self._paths = environment.import_paths
        self._directory = environment.working_dir
        self._modules: dict[str, ModuleType] = {}
        self._outer_variables: dict[Any, Any] = {}
        self._own_variables: dict[Any, Any] = {}
        """All of them, as it had them when it was entered."""
        self._outer_path: list[str] = []
        self._outer_directory = ""
        self._outer_modules: dict[str, ModuleType] = {}
        self._module_count = 0
        self._mask: int | None = None
        """Of new files' modes, once it has set one."""
        self._outer_mask = 0
        self.is_entered = False
        """Whether this process has it now."""

    @property
    def has_paths(self) -> bool:
        """Whether it says where to import from."""
        return bool(self._paths)

    def are_of_others(self, names: Collection[str]) -> None:
        """Somebody else sets these variables at each switch from now on, unless the environment itself says them."""
        self._of_others = frozenset(map(_key, names)) - self._said

    def enter(self) -> None:
        """It runs."""
        self.is_entered = True
        self._outer_variables = _environ.copy()
        _set_variables(self._variables)
        self._own_variables = _environ.copy()
        if self._paths:
            self._outer_path, sys.path[:] = list(sys.path), [*self._paths, *sys.path]
            self._outer_modules = {name: sys.modules[name] for name in self._modules if name in sys.modules}
            sys.modules.update(self._modules)
            self._module_count = len(sys.modules)
        if self._directory is not None:
            self._outer_directory = _directory_now(self._outer_directory)
            _change_to(self._directory)
        if self._mask is not None:
            self._outer_mask = _umask(self._mask)

    def leave(self) -> None:
        """It does not run any more."""
        self.is_entered = False
        if self._mask is not None:
            self._mask = _umask(self._outer_mask)
        if self._directory is not None:
            self._directory = _directory_now(self._directory)
            _change_to(self._outer_directory)
        if self._paths:
            sys.path[:] = self._outer_path
            if len(sys.modules) != self._module_count:
                self._note_modules()
            for name in self._modules:
                sys.modules.pop(name, None)
            sys.modules.update(self._outer_modules)
        now, before = _environ, self._outer_variables
        if now != self._own_variables:
            names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
            self._variables = {name: now.get(name) for name in names if name not in self._of_others}
        _set_variables({name: before.get(name) for name in self._variables})

    def is_for_everybody(self, name: str) -> None:
        """It runs, and a variable was changed that is not its own."""
        key = _key(name)
        if key in _environ:
            self._outer_variables[key] = _environ[key]
        else:
            self._outer_variables.pop(key, None)

    def will_change_directory(self) -> None:
        """It runs, and is about to have a working directory of its own."""
        if self._directory is None:
            self._directory = self._outer_directory = _directory_now("/")

    def will_change_mask(self) -> None:
        """It runs, and is about to have a mask of new files' modes of its own."""
        if self._mask is None:
            self._mask = self._outer_mask = _umask(0)
            _umask(self._mask)

    def _note_modules(self) -> None:
        """Those that come from its paths, and from none that everybody has, as where PYTHONPATH is the whole of
        `sys.path`: these are everybody's."""
        outer = {f"{path}{os.sep}" for path in self._outer_path if path}
        own = {f"{path}{os.sep}" for path in self._paths} - outer
        if not own:
            return
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str):
                places = [place for place in (*own, *outer) if file.startswith(place)]
                if places and max(places, key=len) in own:
                    self._modules[name] = module


def _set_variables(variables: _Variables) -> None:
    for key, value in variables.items():
        if value == _environ.get(key):
            continue
        if value is not None:
            _putenv(key, value)
            _environ[key] = value
        else:
            _unsetenv(key)
            del _environ[key]


def _directory_now(known: str) -> str:
    """The working directory; what is known of it, where it has been removed."""
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return known


def _change_to(directory: str) -> None:
    """Into a directory that may have been removed: then into one that was, for nobody else."""
    try:
        os.chdir(directory)
    except OSError:
        removed = tempfile.mkdtemp()
        os.chdir(removed)
        Path(removed).rmdir()
