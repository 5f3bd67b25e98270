"""Style that matters is a failing test: layers, one place for each thing, documented surfaces."""

import ast
import dataclasses
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("journal", "reconstruct", "api")

MAX_LINES = 500

# What each package may not import: arrows point down only.
FORBIDDEN_LAYERS = {"journal": ("reconstruct", "api"), "reconstruct": ("api",)}

# The bottom of the house: all that these modules may import of the project.
FOUNDATION = {
    "journal/errors.py": (),
    "journal/entry.py": ("journal.errors",),
    "journal/history.py": ("journal.errors", "journal.entry"),
}

# Rules are pure and synchronous, so they know no engine.
RULES = (
    "journal/entry.py",
    "journal/history.py",
    "journal/lifecycle.py",
    "journal/data.py",
    "journal/lanes.py",
    "journal/work.py",
    "journal/release.py",
    "journal/folding.py",
    "journal/outcomes.py",
    "journal/admission.py",
    "journal/acceptance.py",
    "journal/gate.py",
)
ENGINES = (
    "journal.store.sqlite",
    "journal.log.sqlite",
    "journal.sqlite",
    "sqlite3",
    "aiosqlite",
    "asyncio",
)

# The sweeper needs the files and the clock, and nobody alive: it shares nothing with who works.
SWEEPER = "journal/sweeping.py"
WORKERS = (
    "journal.permits",
    "journal.lanework",
    "journal.asking",
    "journal.writer",
    "journal.worker",
    "journal.service",
    "asyncio",
)

OPENS_SQLITE = "journal/sqlite.py"

# Spelled apart, so that this file does not find itself.
FORBIDDEN_TEXT = {
    "an absolute path of somebody's machine": re.compile(
        r"(?<![\w.~-])/(?:work|root|home/\w+|Users/\w+)/(?!\{)"  # `/work/{id}` is a call
    ),
    "unfinished work": re.compile(r"\b(?:TO[D]O|FIX[M]E)\b"),
}


def sources(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    if not found:
        pytest.skip(f"{package}/ has no modules yet")
    return found


def existing(name: str) -> Path:
    path = ROOT / name
    if not path.exists():
        pytest.skip(f"{name} is not there yet")
    return path


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> set[str]:
    """Every name a file imports, at any depth and for types too, as `package.module.name`."""
    inside = path.relative_to(ROOT).parent.parts
    names: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # One dot is the file's own package, each further dot one package up.
            base = list(inside[: len(inside) - node.level + 1]) if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.update(f"{module}.{alias.name}" for alias in node.names)
    return names


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for module in modules)


def opens_sqlite(path: Path) -> bool:
    opening = ("aiosqlite.connect", "sqlite3.connect")
    if any(within(name, opening) for name in imports(path)):
        return True
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "connect"
        and isinstance(node.value, ast.Name)
        and node.value.id in {"sqlite3", "aiosqlite"}
        for node in ast.walk(tree(path))
    )


@pytest.mark.parametrize("package", FORBIDDEN_LAYERS)
def test_arrows_point_down_only(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sources(package)
        for name in sorted(imports(path))
        if within(name, FORBIDDEN_LAYERS[package])
    ]
    assert wrong == []


@pytest.mark.parametrize("module", FOUNDATION)
def test_the_foundation_imports_nothing_above_it(module: str) -> None:
    wrong = [
        name
        for name in sorted(imports(existing(module)))
        if within(name, PACKAGES) and not within(name, FOUNDATION[module])
    ]
    assert wrong == []


@pytest.mark.parametrize("module", RULES)
def test_rules_know_no_engine(module: str) -> None:
    wrong = [name for name in sorted(imports(existing(module))) if within(name, ENGINES)]
    assert wrong == []


def test_the_sweeper_shares_nothing_with_the_workers() -> None:
    seen, waiting = set(), [existing(SWEEPER)]
    while waiting:
        path = waiting.pop()
        seen.add(path)
        assert [name for name in sorted(imports(path)) if within(name, WORKERS)] == [], path
        for name in imports(path):
            parts = name.split(".")
            for known in (parts, parts[:-1]):
                found = ROOT.joinpath(*known).with_suffix(".py") if known else ROOT
                if found.parent.name == "nats":
                    continue  # loaded where a stream is named; its loop is of its own thread
                if parts[0] == "journal" and found.is_file() and found not in seen:
                    waiting.append(found)


def test_the_command_line_starts_without_the_web() -> None:
    existing("api/cli.py" if (ROOT / "api/cli.py").exists() else "api/cli/__init__.py")
    code = (
        "import sys, api.cli\n"
        "web = {'litestar', 'uvicorn', 'apscheduler', 'httpx'} & set(sys.modules)\n"
        "sys.exit(f'api.cli imports {sorted(web)}' if web else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_one_module_opens_sqlite() -> None:
    existing(OPENS_SQLITE)
    opening = [
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if opens_sqlite(path)
    ]
    assert opening == [OPENS_SQLITE]


@pytest.mark.parametrize("package", PACKAGES)
def test_files_stay_short(package: str) -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in sources(package)
    }
    assert {name: lines for name, lines in lengths.items() if lines >= MAX_LINES} == {}


def settings_fields(settings: type, prefix: str = "") -> Iterator[str]:
    """The dotted name of each setting; a struct within settings is a table of the file."""
    fields: list[tuple[str, Any]]
    if dataclasses.is_dataclass(settings):
        fields = [(field.name, field.type) for field in dataclasses.fields(settings)]
    else:
        fields = [(field.encode_name, field.type) for field in msgspec.structs.fields(settings)]
    for name, kind in fields:
        tables = [
            part
            for part in (kind, *get_args(kind))
            if isinstance(part, type)
            and (issubclass(part, msgspec.Struct) or dataclasses.is_dataclass(part))
        ]
        if not tables:
            yield f"{prefix}{name}"
        for table in tables:
            yield from settings_fields(table, f"{prefix}{name}.")


def test_every_setting_is_documented() -> None:
    existing("journal/settings.py")
    page = ROOT / "docs/configuration.md"
    if not page.exists():
        pytest.fail("docs/configuration.md is missing, but journal/settings.py is there")
    text = page.read_text(encoding="utf-8")
    names = list(settings_fields(importlib.import_module("journal.settings").Settings))
    assert names != []
    # Tables share names such as `timeout`: only the dotted one says whose it is.
    missing = [name for name in names if f"`{name}`" not in text]
    assert missing == []


def test_every_column_and_status_of_the_work_is_documented() -> None:
    work = importlib.import_module("journal.work")
    text = existing("docs/lanes.md").read_text(encoding="utf-8")

    def rows(title: str) -> list[str]:
        section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)

    columns = ["number", *work.Work.__struct_fields__]
    assert rows("Statuses") == ["status", *(str(status) for status in work.Status)]
    assert rows("The table") == columns
    table = existing("journal/store/schema.sql").read_text(encoding="utf-8")
    table = table.partition("unrewind_work (")[2].partition("\n);")[0]
    assert re.findall(r"^  (\w+) ", table, re.MULTILINE) == columns


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    if not isinstance(command, click.Group):
        yield " ".join(path)
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        assert child is not None
        if not child.hidden:
            yield from commands(child, (*path, name))


def test_every_command_is_documented() -> None:
    if not (ROOT / "api/cli.py").exists():
        existing("api/cli/__init__.py")
    page = ROOT / "docs/commands.md"
    if not page.exists():
        pytest.fail("docs/commands.md is missing, but the command line is there")
    text = page.read_text(encoding="utf-8")
    names = list(commands(importlib.import_module("api.cli").main))
    assert names != []
    # `recover begin`, `unrewind recover begin` and `unrewind recover begin --flag` all count.
    missing = [
        name for name in names if not re.search(rf"`(?:unrewind )?{re.escape(name)}[` ]", text)
    ]
    assert missing == []


def repository_files() -> list[Path]:
    """Every file of the repository that is tracked or about to be."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    names = sorted({name.decode() for name in done.stdout.split(b"\0") if name})
    return [path for name in names if (path := ROOT / name).is_file()]


def test_text_is_finished_and_belongs_to_no_machine() -> None:
    found = []
    for path in repository_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            found += [
                f"{path.relative_to(ROOT)}:{number}: {what}"
                for what, pattern in FORBIDDEN_TEXT.items()
                if pattern.search(line)
            ]
    assert found == []


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_locks_install_anywhere(lock: str) -> None:
    lines = (ROOT / lock).read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if "://" in line or line.startswith("-")] == []
    pinned = [line for line in lines if re.match(r"\w", line)]
    assert pinned != []
    # Each pin is followed by its hashes, so each of these lines goes on.
    assert [line for line in pinned if not re.fullmatch(r"\S+==\S+(?: ; .+)? \\", line)] == []
