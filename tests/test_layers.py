"""The rooms of the house: imports point downward, and slow packages stay in their own files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "cpr_wrap"

# From the roof to the ground. A room may import from its own floor, if no circle arises, and from
# every floor below it.
FLOORS = [
    {"__main__"},
    {"cli"},
    {"report", "evaluation", "training", "testing"},
    {"engine"},
    {"attacks", "rules", "zoo", "data", "calibration", "diagnose"},
    {"selective"},
    {"rule"},
    {"solver", "objective", "metrics", "networks"},
    {"bounds"},
    {
        "geometry",
        "noise",
        "meter",
        "smoothing",
        "_registry",
        "_checks",
        "_files",
        "_source",
        "_text",
    },
]
HEIGHT = {room: -floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Packages that are slow to import or may be missing, and the files that may ask for them.
SLOW = {
    "autoattack": {"attacks/autoattack.py", "zoo/robustbench.py"},
    "eagerpy": {"attacks/foolbox.py"},
    "foolbox": {"attacks/foolbox.py"},
    "jinja2": {"report/html.py"},
    "huggingface_hub": {"zoo/timm.py"},
    "matplotlib": {"metrics/curve.py", "report/plots.py"},
    "pandas": {"_checks.py"},
    "pydantic": {"cli/_load.py", "evaluation/result.py", "zoo/local.py"},
    "pydantic_core": {"cli/_run.py", "evaluation/result.py", "evaluation/verify.py"},
    "PIL": {"data/folder.py", "report/html.py", "zoo/robustbench.py"},
    "pyautoattack": {"attacks/autoattack.py", "zoo/robustbench.py"},
    "robustbench": {"zoo/robustbench.py"},
    "scipy": {"metrics/comparison.py", "metrics/intervals.py"},
    "tabulate": {"metrics/curve.py", "report/table.py"},
    "timm": {"zoo/timm.py", "zoo/robustbench.py"},
    "torchvision": {"data/torchvision.py"},
}

# Files that derive classes from such a package and import it at once; others import them late.
SLOW_FILES = {"attacks/foolbox.py"}


class Found(NamedTuple):
    """An import: the whole name, and whether it runs only when a function is called."""

    name: str
    deferred: bool
    line: int


def imports(tree: ast.AST, deferred: bool = False) -> Iterator[Found]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Found(alias.name, deferred, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports inside the package are absolute"
            # `from cpr_wrap import x` is an import of cpr_wrap.x, so each name counts.
            yield from (
                Found(f"{node.module}.{alias.name}", deferred, node.lineno) for alias in node.names
            )
        elif isinstance(node, ast.Call) and is_import_call(node):
            yield Found(node.args[0].value, deferred, node.lineno)
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        yield from imports(node, deferred or inside)


def is_import_call(node: ast.Call) -> bool:
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    literal = bool(node.args) and isinstance(node.args[0], ast.Constant)
    return name in ("import_extra", "import_module", "__import__") and literal


def files() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def rooms_used(path: Path) -> Iterator[tuple[str, int]]:
    for found in imports(ast.parse(path.read_text())):
        first, _, rest = found.name.partition(".")
        if first == "cpr_wrap" and rest:
            yield rest.split(".")[0], found.line


def breaches(room: str, used: str) -> str | None:
    if used == "__version__":
        return None
    if used not in HEIGHT:
        return f"{used!r} is no room of the house; import from the module that defines it"
    if HEIGHT[used] > HEIGHT[room]:
        return f"{room} stands below {used} and must not import it"
    return None


def test_every_file_has_a_place():
    unknown = {room_of(path) for path in files()} - set(HEIGHT)
    assert not unknown, f"give these a floor in FLOORS, and say why in docs/decisions.md: {unknown}"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path):
    room = room_of(path)
    problems = [
        f"line {line}: {problem}"
        for used, line in rooms_used(path)
        if (problem := breaches(room, used)) is not None
    ]
    assert not problems


def test_no_two_rooms_import_each_other():
    graph: dict[str, set[str]] = {}
    for path in files():
        used = {used for used, _ in rooms_used(path)} & set(HEIGHT)
        graph.setdefault(room_of(path), set()).update(used - {room_of(path)})
    done: set[str] = set()

    def visit(room: str, way: tuple[str, ...]) -> None:
        assert room not in way, f"a circle: {' -> '.join([*way, room])}"
        if room not in done:
            for other in sorted(graph.get(room, ())):
                visit(other, (*way, room))
            done.add(room)

    for room in graph:
        visit(room, ())


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_slow_packages_stay_in_their_files_and_inside_functions(path):
    here = path.relative_to(PACKAGE).as_posix()
    problems = []
    for found in imports(ast.parse(path.read_text())):
        package = found.name.split(".")[0]
        if not found.deferred and is_slow_file(found.name):
            problems.append(f"line {found.line}: {found.name} is slow; import it inside a function")
        if package not in SLOW:
            continue
        if here not in SLOW[package]:
            problems.append(f"line {found.line}: {package} belongs in {sorted(SLOW[package])}")
        elif not found.deferred and here not in SLOW_FILES:
            problems.append(f"line {found.line}: {package} is slow; import it inside a function")
    assert not problems


def is_slow_file(name: str) -> bool:
    """Whether a name is imported from a file that imports a slow package."""
    modules = [f"cpr_wrap.{file.removesuffix('.py').replace('/', '.')}" for file in SLOW_FILES]
    return any(f"{name}.".startswith(f"{module}.") for module in modules)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import timm.data", [("timm.data", False)]),
        ("def f():\n    from cpr_wrap import noise, geometry", [
            ("cpr_wrap.noise", True), ("cpr_wrap.geometry", True)]),
        ("if TYPE_CHECKING:\n    from cpr_wrap.cli import app", [("cpr_wrap.cli.app", False)]),
        ("x = import_extra('timm')", [("timm", False)]),
        ("class A:\n    def f(self):\n        m.import_extra('foolbox')", [("foolbox", True)]),
    ],
)  # fmt: skip
def test_the_reader_sees_every_way_to_import(source, names):
    assert [(found.name, found.deferred) for found in imports(ast.parse(source))] == names


def test_the_judge_refuses_what_it_should():
    assert breaches("geometry", "solver") == "geometry stands below solver and must not import it"
    assert breaches("metrics", "selective") is not None
    assert breaches("zoo", "evaluation") is not None
    assert "is no room" in breaches("evaluation", "calibrate")
    assert breaches("evaluation", "__version__") is None
    assert breaches("attacks", "rules") is None
    assert breaches("cli", "geometry") is None
    assert is_slow_file("cpr_wrap.attacks.foolbox.to_foolbox")
    assert not is_slow_file("cpr_wrap.attacks.guests.guest")
