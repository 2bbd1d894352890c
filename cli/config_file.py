"""Options from a TOML file.

::

    threads = 2              # for every command that has --threads

    [generate]
    max-tokens = 200

Precedence: command line, environment, this file, default. Unknown keys are refused.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from selfdraft.cli.registry import COMMANDS, load_command
from selfdraft.errors import ConfigError
from selfdraft.strict import closest_hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_NOT_IN_FILE = frozenset({"config", "help", "verbose", "debug"})


def options_from_config(path: Path, *, command: Any) -> dict[str, Any]:
    """Defaults for ``command`` by parameter name, after checking the whole file."""
    data = _read(path)
    options = {name: _options_of(load_command(name)) for name in COMMANDS}
    everywhere = {key for known in options.values() for key in known}
    chosen: dict[str, Any] = {}
    own = options[command.name]
    _refuse_doubles(path, "", data)
    for key, value in data.items():
        if isinstance(value, dict):
            _check_table(path, key, value, options)
        elif key in options:
            raise ConfigError(
                f"{path}: {key} is a table, written [{key}], not a value",
                hint="put the options of that command below such a line",
            )
        elif _option(key) not in everywhere:
            raise _unknown(path, key, sorted(everywhere | set(COMMANDS)))
        elif _option(key) in own:
            chosen[own[_option(key)]] = _plain(path, key, value)
    for key, value in data.get(command.name, {}).items():
        chosen[own[_option(key)]] = _plain(path, f"{command.name}.{key}", value)
    return chosen


def _read(path: Path) -> dict[str, Any]:
    try:
        data: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"the config file {path} does not exist",
            hint="correct --config or SELFDRAFT_CONFIG",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the config file {path} cannot be read: {error}",
            hint="correct --config or SELFDRAFT_CONFIG",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is no TOML: {error}", hint="correct that line") from None
    except RecursionError:
        raise ConfigError(
            f"{path} nests its values too deeply", hint="options are texts, numbers, or lists"
        ) from None
    return data


def _options_of(command: Any) -> dict[str, str]:
    """``{option without dashes: parameter name}`` of a command."""
    found = {}
    for param in command.params:
        if param.param_type_name == "option" and param.name not in _NOT_IN_FILE:
            for spelling in param.opts:
                if spelling.startswith("--"):
                    found[spelling[2:]] = param.name
    return found


def _option(key: str) -> str:
    return key.replace("_", "-")


def _refuse_doubles(path: Path, table: str, values: dict[str, Any]) -> None:
    """One option spelled with ``-`` and with ``_``: one of the values would win silently."""
    seen: dict[str, str] = {}
    for key in values:
        other = seen.setdefault(_option(key), key)
        if other != key:
            raise ConfigError(
                f"{path}: {table}{other} and {table}{key} are the same option",
                hint="leave one of them out",
            )


def _check_table(
    path: Path, table: str, values: dict[str, Any], options: dict[str, dict[str, str]]
) -> None:
    if table not in options:
        raise _unknown(path, table, list(options))
    _refuse_doubles(path, f"{table}.", values)
    for key in values:
        if _option(key) not in options[table]:
            raise _unknown(path, f"{table}.{key}", [f"{table}.{k}" for k in options[table]])


def _plain(path: Path, key: str, value: Any) -> Any:
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, (str, int, float, bool)) for item in items):
        raise ConfigError(
            f"{path}: {key} is a {type(value).__name__}, no option takes that",
            hint="write a text, a number, true or false, or a list of those",
        )
    return value


def _unknown(path: Path, key: str, known: list[str]) -> ConfigError:
    return ConfigError(
        f"{path}: unknown key {key!r}{closest_hint(key, known)}",
        hint="keys are the long options of the commands, without the dashes",
    )
