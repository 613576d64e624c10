"""Style that fails the build: sizes, floors, forbidden imports, package docstrings, words that mean "later".

The order of the floors is an import contract in pyproject.toml (`lint-imports`); what is here are the rules that it
cannot say.
"""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Iterable, Iterator
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
    "broker/channels/forwarding.py", "broker/channels/lifecycle.py", "broker/channels/auto_topics.py",
    "broker/replicas/coordinators.py", "broker/metadata_cache.py", "broker/channels/transaction_channels.py",
    "broker/channels/transaction_channels.py", "broker/quorum/quorum_side.py", "broker/quorum/quorum_side.py",
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


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's tree: to walk through the tree takes longer than to parse it."""
    return tuple(ast.walk(tree_of(path)))


@pytest.fixture(autouse=True, scope="module")
def _trees_of_this_module() -> Iterator[None]:
    """The trees are millions of objects without a cycle: the garbage collector takes three times as long as the parser
    to walk through them, and would go on to in the tests behind these."""
    gc.disable()
    yield
    nodes_of.cache_clear()
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
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                size = node.end_lineno - node.lineno + 1
                name = f"{name_of(path)}:{node.name}"
                if size > (100 if name in LONG_FUNCTIONS else MAX_FUNCTION_LINES):
                    found.append(f"{name}: {size} lines")
    expect_none(found)


@cache
def imported_modules(path: Path) -> frozenset[str]:
    found = set[str]()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return frozenset(found)


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
        graph[name] = set(imported_modules(path)) & files.keys()
        for node in nodes_of(path):
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
            for node in nodes_of(path)
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
    """Import from the file that has it; only `kalda`, its tools for tests, its Spark source and its pipelines, for
    definition files, have public names."""
    public = (PACKAGE / "testing", PACKAGE / "spark", PACKAGE / "pipeline")
    inner = [package for package in packages() if package not in public]
    expect_none([name_of(package) for package in inner if imported_modules(package / "__init__.py") - {"__future__"}])


def test_every_floor_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    floors = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    paths = re.findall(r"`((?:src|tests|bench|examples)/[\w./-]+)`", text)
    rows = re.findall(r"^\| (`.+?) \|", text.split("## Floors")[1].split("\n## ")[0], re.MULTILINE)
    paths += [f"src/kalda/{floor}" for row in rows for floor in re.findall(r"`([\w/]+)`", row)]
    expect_none([f"{floor} is not in ARCHITECTURE.md" for floor in sorted(floors) if f"`{floor}`" not in text])
    expect_none([f"{path} is in ARCHITECTURE.md only" for path in paths if not (ROOT / path).exists()])


def test_what_the_design_names_exists() -> None:
    """Files and folders of the sources that both maps name, and in DESIGN's table of decisions the functions behind
    each file."""
    for page in ("ARCHITECTURE.md", "DESIGN.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = set(re.findall(r"`((?:\w+/)+\w+\.py|(?:\w+/)+\w+|(?:\w+/)+)`", text))
        missing = sorted(each for each in named if not any((top / each).exists() for top in (PACKAGE, ROOT)))
        expect_none([f"{each} is in {page} only" for each in missing])
    table = text.split("## Where it is decided")[1].split("\n## ")[0]
    pairs, file = [], ""
    for row in re.findall(r"^\|.* \| (.+) \|$", table, re.MULTILINE):
        for name in re.findall(r"`([\w./]+)`", row):
            if name.endswith(".py"):
                file = name
            else:
                pairs.append((file, name))
    assert len(pairs) > 10
    sources = {file: (PACKAGE / file).read_text(encoding="utf-8") for file, _ in pairs}
    defined = r"^ *(?:(?:def|class|cdef class) {0}\b|{0}\b.*=)"
    expect_none(
        [f"{file} has no {name}" for file, name in pairs if not re.search(defined.format(name), sources[file], re.M)]
    )


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
        for node in nodes_of(path):
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


# Names that nothing uses.

MENTIONED = re.compile(r"\w+_\w+|\w+(?=[(`])")
"""A name in prose: it has an underscore, or a bracket or a backtick behind it."""
WORDS = re.compile(r"[A-Za-z_]\w*")
PLAIN_DECORATORS = ("property", "method", ".setter", "dataclass", "cache", "contextmanager", "override", "overload")
"""Ends of decorators that do not register what they decorate."""
OWN_BASES = {"ABC", "Protocol", "Generic", "NamedTuple"}
"""Bases of others that call no method of ours."""


def uses_in(nodes: Iterable[ast.AST]) -> Counter[str]:
    """How often each name is read in the nodes, words of strings included: `getattr` takes those. Docstrings and
    imports under the same name are no uses."""
    found, prose = Counter[str](), set[int]()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            prose.add(id(node.value))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found[node.attr] += 1
        elif isinstance(node, ast.keyword) and node.arg:
            found[node.arg] += 1
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            for word in {*WORDS.findall(node.value), *WORDS.findall(node.value.replace("-", "_"))}:
                found[word] += 1
                found[f"_{word}"] += 1
        elif isinstance(node, ast.alias) and node.asname not in (None, node.name):
            found[node.name] += 1
    return found


def test_uses_in() -> None:
    text = 'from a import b, c as d\ndef e():\n    """f"""\n    g.h = i(j="k-l")\n'
    assert set(uses_in(ast.walk(ast.parse(text)))) == {"c", "g", "i", "j", "k", "_k", "l", "_l", "k_l", "_k_l"}


def definitions_in(
    body: list[ast.stmt], owner: ast.ClassDef | None = None
) -> Iterator[tuple[str, ast.stmt, ast.ClassDef | None]]:
    """Functions, classes and constants of a module, and the methods of its classes: the name, the statement, and the
    class that it is a method of."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node, owner
            if isinstance(node, ast.ClassDef):
                yield from definitions_in(node.body, node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and owner is None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node, owner) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.If | ast.Try):
            yield from definitions_in([*node.body, *node.orelse], owner)


def bases_of(node: ast.ClassDef, classes: dict[str, list[ast.ClassDef]]) -> set[str]:
    """All above the class, as they are written there: `asyncio.Transport`."""
    found = {ast.unparse(base).split("[")[0] for base in node.bases}
    for base in tuple(found):
        for each in classes.get(base, ()):
            found |= bases_of(each, classes)
    return found


def public_classes(classes: dict[str, list[ast.ClassDef]]) -> set[str]:
    """Names of the classes that users hold, and of their bases."""
    found = set[str]()
    for node in (*nodes_of(PACKAGE / "__init__.py"), *nodes_of(PACKAGE / "aio.py")):
        if isinstance(node, ast.ImportFrom):
            found.update(each.name for each in node.names)
    return found.union(*(bases_of(node, classes) for name in found for node in classes.get(name, ())))


def test_no_name_is_dead() -> None:
    """What nothing in `src` uses is for tests only, or for nobody. Names are compared, not what they stand for: a
    method is in use where any attribute of its name is read."""
    files = sources("src")
    used = Counter[str]()
    for path in files:
        used.update(uses_in(nodes_of(path)))
    texts = [ROOT / "README.md", ROOT / "pyproject.toml", *ROOT.glob("docs/*.md"), *ROOT.glob("src/**/*.pxd")]
    texts += sources("docs")
    named = {word for path in texts for word in MENTIONED.findall(path.read_text(encoding="utf-8"))}
    everything = [(path, *each) for path in files for each in definitions_in(tree_of(path).body)]
    classes: dict[str, list[ast.ClassDef]] = {}
    for _, name, node, _ in everything:
        if isinstance(node, ast.ClassDef):
            classes.setdefault(name, []).append(node)
    public = public_classes(classes)
    found = []
    for path, name, node, owner in everything:
        if (
            used[name] > 50
            or used[name] > uses_in(ast.walk(node))[name]
            or name in named
            or name.startswith(("__", "pytest_"))
        ):
            continue
        if path.is_relative_to(PACKAGE / "protocol" / "messages"):
            continue  # Kafka's schemas, all of them; a decoder finds them by the class of the message
        if not all(ast.unparse(each).endswith(PLAIN_DECORATORS) for each in getattr(node, "decorator_list", ())):
            continue
        if owner is not None and (owner.name in public or bases_of(owner, classes) - classes.keys() - OWN_BASES):
            continue  # users call it, or what it overrides is not ours
        found.append(f"{name_of(path)}:{node.lineno}: nothing uses {name}")
    expect_none(found)
