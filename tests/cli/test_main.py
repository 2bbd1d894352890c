"""The program as such: start-up, help, errors, exit codes, completion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from selfdraft import __version__
from selfdraft.cli import failures, registry
from selfdraft.cli.failures import CliState, run_guarded
from selfdraft.errors import BundleError, ConfigError, ResourceError, ToolkitError

HEAVY = ("torch", "numpy", "onnxruntime", "jinja2", "tokenizers", "rich", "safetensors")
IMPORTS = """
import sys
from selfdraft.cli.main import main
sys.argv = ["selfdraft", *{arguments!r}]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--version"], *([name, "--help"] for name in registry.COMMANDS)]
)
def test_help_imports_nothing_heavy(
    arguments: list[str], process_environment: dict[str, str]
) -> None:
    code = IMPORTS.format(arguments=arguments, heavy=HEAVY)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=process_environment,
        check=False,
    )
    assert done.stderr.strip() == "[]"
    assert done.stdout


def test_group_help_loads_no_command_module(process_environment: dict[str, str]) -> None:
    code = IMPORTS.format(
        arguments=["--help"], heavy=[f"selfdraft.cli.{name}" for name in registry.COMMANDS]
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=process_environment,
        check=False,
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("name", registry.COMMANDS)
def test_every_command_has_an_example_and_json(run: Any, name: str) -> None:
    text = run(name, "-h").stdout
    assert f"  selfdraft {name} " in text and "Example" in text
    assert "--json" in text and "--config" in text and "--debug" in text


def test_no_arguments_show_the_first_steps(run: Any) -> None:
    result = run()
    assert result.exit_code == 0
    assert "selfdraft demo" in result.stdout
    assert all(name in result.stdout for name in registry.COMMANDS)


def test_version_is_the_package_version(run: Any) -> None:
    assert run("--version").stdout == f"selfdraft {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["genrate"], "did you mean 'generate'"),
        (["generate"], "missing argument"),
        (["generate", "b", "p", "--seeed", "1"], "--seed"),
        (["generate", "b", "p", "--drafts", "two"], "--drafts"),
        (["generate", "b", "p", "--drafts", "9"], "--drafts"),
        (["generate", "b", "p", "q"], "unexpected"),
        (["bench", "b", "--tokens", "1"], "--tokens"),
    ],
)
def test_wrong_usage_is_two_lines_and_exit_2(run: Any, arguments: list[str], part: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    problem, hint = result.stderr.splitlines()
    assert problem.startswith("error: ") and part.lower() in problem.lower()
    assert hint.startswith("hint: ") and "ee: selfdraft" in hint


@pytest.mark.parametrize(
    ("error", "code", "problem"),
    [
        (ConfigError("p", hint="h"), 2, "p"),
        (BundleError("p", hint="h"), 3, "p"),
        (ResourceError("p", hint="h"), 4, "p"),
        (ToolkitError("p", hint="h"), 1, "p"),
        (MemoryError(), 4, "memory is full"),
        (OSError(28, "No space left on device", "f"), 4, "disk is full"),
        (PermissionError(13, "Permission denied", "f"), 4, "no permission"),
        (ValueError("x\ny"), 1, "unexpected failure: ValueError: x y"),
    ],
)
def test_every_error_has_its_code_and_two_lines(
    error: Exception, code: int, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert run_guarded(fail, CliState()) == code
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ") and problem in first
    assert second.startswith("hint: ")


def test_traceback_only_with_debug(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("deep inside")

    run_guarded(fail, CliState())
    assert "Traceback" not in capsys.readouterr().err
    run_guarded(fail, CliState(debug=True))
    assert "Traceback" in capsys.readouterr().err


def test_debug_option_reaches_the_error_report(run: Any, tmp_path: Path) -> None:
    quiet = run("inspect", tmp_path / "none")
    loud = run("inspect", tmp_path / "none", "--debug")
    assert quiet.exit_code == loud.exit_code == 3
    assert "Traceback" in loud.stderr and "Traceback" not in quiet.stderr


def test_error_text_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ConfigError("bad \x1b[2J name", hint="h")

    run_guarded(fail, CliState())
    assert "\x1b" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (KeyboardInterrupt(), failures.EXIT_INTERRUPTED),
        (typer.Abort(), 1),
    ],
)
def test_interrupts_end_quietly(
    raised: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise raised

    assert run_guarded(fail, CliState()) == code
    assert capsys.readouterr().err == ""


def test_broken_pipe_is_quiet(shared_bundle: Path, process_environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "selfdraft.cli.main", "inspect", str(shared_bundle)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=process_environment,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    assert process.wait(timeout=60) == failures.EXIT_BROKEN_PIPE
    assert process.stderr.read() == b""


@pytest.mark.parametrize(("option", "shown"), [("-v", ["info"]), ("-vv", ["info", "debug"])])
def test_verbose_logs_to_stderr(
    option: str, shown: list[str], process_environment: dict[str, str], tmp_path: Path
) -> None:
    code = (
        "import logging, sys\n"
        "from selfdraft.cli import inspect, main\n"
        "log = logging.getLogger('selfdraft.somewhere')\n"
        "def command(bundle: str) -> None:\n"
        "    log.debug('debug')\n"
        "    log.info('info')\n"
        "    logging.getLogger('other').info('other')\n"
        "inspect.command = command\n"
        f"sys.argv = ['selfdraft', 'inspect', 'b', '{option}']\n"
        "main.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=process_environment,
        check=False,
    )
    words = [line.split(": ")[-1] for line in done.stderr.splitlines()]
    assert sorted(words) == sorted(shown) and done.stdout == "" and done.returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_commands(shell: str, process_environment: dict[str, str]) -> None:
    environment = process_environment | {
        "_SELFDRAFT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "selfdraft ge",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "selfdraft ge",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    done = subprocess.run(
        [sys.executable, "-m", "selfdraft.cli.main"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert "generate" in done.stdout and "chat" not in done.stdout


def test_completion_offers_options_of_a_command(process_environment: dict[str, str]) -> None:
    environment = process_environment | {
        "_SELFDRAFT_COMPLETE": "complete_bash",
        "COMP_WORDS": "selfdraft generate --dr",
        "COMP_CWORD": "2",
    }
    done = subprocess.run(
        [sys.executable, "-m", "selfdraft.cli.main"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.stdout.split() == ["--drafts"]


def test_json_goes_to_stdout_alone(run: Any, shared_bundle: Path) -> None:
    result = run("inspect", shared_bundle, "--json")
    assert json.loads(result.stdout)["schema"] == "selfdraft.inspect/1"
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("command", "wrong", "said", "hint"),
    [
        ("doctor", ("--explain",), "'--explain' requires an argument", "Explain an error message"),
        ("bench serve", ("B", "--slots"), "'--slots' requires", "Requests that run at once"),
        ("serve", ("B", "--json=1"), "'--json' does not take a value", "Print JSON"),
        ("generate", ("B", "--no-such"), "no such option: --no-such", ""),
        ("export", ("C",), "missing option '--output'", "--output BUNDLE: Folder to write."),
        ("serve", ("B", "--port", "x"), "invalid value for '--port'", "--port N: Port; 0 takes"),
        ("chat", (), "missing argument 'BUNDLE'", "BUNDLE: Bundle folder, as written by"),
    ],
)
def test_a_mistake_of_usage_tells_what_the_option_is_and_whose_help_to_read(
    run: Any, command: str, wrong: tuple[str, ...], said: str, hint: str
) -> None:
    result = run(*command.split(), *wrong)
    assert result.exit_code == 2
    problem, next_step = result.stderr.splitlines()
    assert said in problem
    assert hint in next_step and next_step.endswith(f"ee: selfdraft {command} --help")
