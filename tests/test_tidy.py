"""Style that fails the build: sizes, floors, forbidden imports, package docstrings, words that mean "later".

The order of the floors is an import contract in pyproject.toml (`lint-imports`); what is here are the rules that it
cannot say.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "kalda"
PURE_FLOORS = (
    "base", "protocol", "records", "storage", "statemachine", "raft", "metadata", "controller", "replication",
    "coordinator", "quota", "security", "telemetry", "verify", "clientcore", "assignors",
)  # fmt: skip
IMPURE_MODULES = frozenset(
    (
        "asyncio", "socket", "ssl", "threading", "time", "os", "random", "secrets", "select", "selectors", "signal",
        "subprocess", "multiprocessing", "concurrent", "tempfile", "shutil", "uvloop",
    )
)  # fmt: skip
DRIVERS = (
    "broker/channels/forwarding.py", "broker/channels/lifecycle.py", "broker/modules/auto_topics.py",
    "broker/modules/coordinator_table.py", "broker/modules/metadata_cache.py", "broker/modules/producer_ids.py",
    "broker/modules/transaction_markers.py", "broker/quorum/controller_catch_up.py", "broker/quorum/quorum_side.py",
    "broker/quorum/raft_driver.py", "broker/quorum/raft_listeners.py", "broker/replicas/assignments.py",
    "broker/replicas/log_keeper.py", "broker/replicas/publisher.py",
)  # fmt: skip
"""Drivers among the shells: synchronous, with state of their own, given `Jobs`, `Timers` and `send`."""
SHELL_MODULES = frozenset(("asyncio", "socket", "time", "threading"))
MAX_FOLDER_FILES = 30
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 70
LONG_FUNCTIONS: frozenset[str] = frozenset()
"""`path:function` of functions of 71 to 100 lines that are one thought, with the reason beside each."""
LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bfor now\b|\bplaceholder\b|\bnot implemented yet\b", re.IGNORECASE)
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/")
FRAGMENT = re.compile(r"`([\w./]+?)(?:\.py|/)?`")


@cache
def sources(*tops: str) -> tuple[Path, ...]:
    """Python files below the top directories that are the project's own."""
    return tuple(sorted(path for top in tops for path in (ROOT / top).rglob("*.py")))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(autouse=True, scope="module")
def _trees_of_this_module() -> Iterator[None]:
    """The trees are millions of objects without a cycle: the garbage collector takes three times as long as the parser
    to walk through them, and would go on to in the tests behind these."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def expect_none(found: list[str]) -> None:
    """All offenders at once, one a line."""
    assert not found, "\n" + "\n".join(found)


def test_no_file_is_long() -> None:
    sizes = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in sources("src", "tests", "bench")}
    expect_none([f"{name}: {size} lines" for name, size in sizes.items() if size > MAX_FILE_LINES])


def test_no_folder_has_many_files() -> None:
    """A folder is a room that can be seen at a glance."""
    sizes = Counter(name_of(path.parent) for path in sources("src"))
    expect_none([f"{name}: {size} files" for name, size in sizes.items() if size > MAX_FOLDER_FILES])


def test_no_function_is_long() -> None:
    found = []
    for path in sources("src", "tests", "bench", "examples"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                size = node.end_lineno - node.lineno + 1
                name = f"{name_of(path)}:{node.name}"
                if size > (100 if name in LONG_FUNCTIONS else MAX_FUNCTION_LINES):
                    found.append(f"{name}: {size} lines")
    expect_none(found)


def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def circles_of(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The largest sets of nodes of which each is reached from each."""
    rest = dict(graph)
    while leaves := [node for node in rest if rest[node].isdisjoint(rest)]:
        for leaf in leaves:
            del rest[leaf]
    reached: dict[str, set[str]] = {}
    for node in rest:
        found, front = set[str](), {node}
        while front:
            front = set().union(*(rest[each] for each in front)) & rest.keys() - found
            found |= front
        reached[node] = found
    return {
        frozenset(each for each in reached[node] if node in reached[each]) for node in rest if node in reached[node]
    }


def test_circles_of() -> None:
    graph = {"a": {"b"}, "b": {"c", "e"}, "c": {"b", "d"}, "d": set[str](), "e": {"f"}, "f": {"g"}, "g": {"f", "d"}}
    assert circles_of(graph) == {frozenset("bc"), frozenset("fg")}


def test_imports_form_no_circle() -> None:
    """Imports for type checkers count: what can only be understood together is one thing. `kalda` itself does not: it
    imports the public names for type checkers, and has the version that they use."""
    files = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in sources("src")}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        graph[name] = imported_modules(path) & files.keys()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                graph[name] |= {f"{node.module}.{each.name}" for each in node.names} & files.keys()
    expect_none([f"a circle: {circle}" for circle in sorted(map(sorted, circles_of(graph)))])


@pytest.mark.parametrize("floor", PURE_FLOORS)
def test_pure_floors_know_no_world(floor: str) -> None:
    """No loop, socket, thread, clock, file or random source: they are handed in."""
    expect_none(
        [
            f"{name_of(path)}: {module}"
            for path in sources(f"src/kalda/{floor}")
            for module in sorted(imported_modules(path))
            if module.split(".")[0] in IMPURE_MODULES
        ]
    )


def test_drivers_are_synchronous() -> None:
    """Time, threads and the network are handed in, so that a simulator can hand in others."""
    found = []
    for path in (PACKAGE / driver for driver in DRIVERS):
        found += [f"{name_of(path)}: {module}" for module in imported_modules(path) if module in SHELL_MODULES]
        found += [
            f"{name_of(path)}:{node.lineno}: async def {node.name}"
            for node in ast.walk(tree_of(path))
            if isinstance(node, ast.AsyncFunctionDef)
        ]
    expect_none(found)


def packages() -> list[Path]:
    return sorted(path.parent for path in PACKAGE.rglob("__init__.py") if path.parent != PACKAGE)


def test_package_docstrings_list_their_files() -> None:
    missing = []
    for package in [*packages(), ROOT / "bench" / "harness"]:
        docstring = ast.get_docstring(tree_of(package / "__init__.py")) or ""
        listed = {fragment.split("/")[-1] for fragment in FRAGMENT.findall(docstring)}
        present = {path.stem for path in package.glob("*.py") if not path.stem.startswith("_")}
        present |= {path.parent.name for path in package.glob("*/__init__.py")}
        missing += [f"{name_of(package)}: {name}" for name in sorted(present - listed)]
    expect_none(missing)


def test_packages_do_not_re_export() -> None:
    """Import from the file that has it; only `kalda`, its tools for tests and its Spark source have public names."""
    inner = [package for package in packages() if package not in (PACKAGE / "testing", PACKAGE / "spark")]
    expect_none([name_of(package) for package in inner if imported_modules(package / "__init__.py") - {"__future__"}])


def test_every_floor_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    floors = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    paths = re.findall(r"`((?:src|tests|bench|examples)/[\w./-]+)`", text)
    rows = re.findall(r"^\| (`.+?) \|", text.split("## Floors")[1].split("\n## ")[0], re.MULTILINE)
    paths += [f"src/kalda/{floor}" for row in rows for floor in re.findall(r"`([\w/]+)`", row)]
    expect_none([f"{floor} is not in ARCHITECTURE.md" for floor in sorted(floors) if f"`{floor}`" not in text])
    expect_none([f"{path} is in ARCHITECTURE.md only" for path in paths if not (ROOT / path).exists()])


def test_benchmarks_are_listed_and_have_a_quick_run() -> None:
    """`make bench BENCH_ARGS=--quick` runs all of them, and stops at one that refuses the option."""
    listed = set(re.findall(r"`(\w+\.py)`", (ROOT / "bench" / "README.md").read_text(encoding="utf-8")))
    found = []
    for path in sorted((ROOT / "bench").glob("*.py")):
        if path.name not in listed:
            found.append(f"{path.name} is not in bench/README.md")
        if '"--quick"' not in path.read_text(encoding="utf-8"):
            found.append(f"{path.name} has no --quick")
    expect_none(found)


def test_nothing_is_left_for_later() -> None:
    found = []
    texts = [*sources("src", "tests", "bench", "examples"), *ROOT.glob("*.md"), ROOT / "Makefile", ROOT / ".ci" / "run"]
    for path in texts:
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if LATER.search(line) or MACHINE_PATHS.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()}")
    expect_none(found)


def test_no_task_is_let_go() -> None:
    """A bare task may be collected while it runs, its failure is seen by nobody, and nothing waits for its end.

    A task group owns its tasks; whoever makes one without a group keeps it.
    """
    found = []
    for path in sources("src", "examples"):
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
                continue
            called = ast.unparse(node.value.func)
            on_loop = called.startswith("asyncio.") or called.endswith(("loop.create_task", "loop().create_task"))
            if called.endswith("ensure_future") or (called.endswith("create_task") and on_loop):
                found.append(f"{name_of(path)}:{node.lineno}")
    expect_none(found)


def test_helper_modules_of_tests_have_unique_names() -> None:
    """They are imported by bare name, from whichever directory has them."""
    helpers = [path.stem for path in sources("tests") if not path.name.startswith(("test_", "__init__", "conftest"))]
    assert sorted(helpers) == sorted(set(helpers))


def test_tests_do_not_import_tests() -> None:
    """What two of them share is a module of its own: pytest rewrites the assertions of what it collects only."""
    expect_none(
        [
            f"{name_of(path)}: {module}"
            for path in sources("tests", "bench")
            for module in sorted(imported_modules(path))
            if module.startswith("test_")
        ]
    )
