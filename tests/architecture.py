"""Checks of the source tree by its syntax alone; each returns the violations it found as text.

They take the package folder as an argument, so that the tests can show on a bad sample that
every check is able to fail.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

# What each part may import from the package, besides itself: first the library, then, behind the
# wall, the program. In both, the direction is that of the data. Dynamics know no field, only what a
# field looks like. `program` is the door from Python into the program, `sklearn` its estimators.
# Errors that a user can mend are words, not a part: all of the program may use them, and the one
# door through which files are written.
_LIBRARY = {"layers", "fields", "dynamics", "ode", "models"}
_WORDS = {"lab.errors", "lab.files"}
# What views know of runs: what they left on the disk, never how they are trained.
_RECORDS = {"lab.runs.record", "lab.runs.metrics", "lab.runs.folder", "lab.runs.archive"}
_RECORDS |= {"lab.runs.sweep.trials", "lab.runs.variants"}
ALLOWED: dict[str, set[str]] = {
    "tracing": set(),
    "layers": {"tracing"},
    "ode": {"tracing"},
    "fields": {"layers"},
    "dynamics": {"fields.interface", "layers.activation"},
    "models": {"layers", "fields", "dynamics", "ode"},
    "program": {"lab.experiments", "lab.runs"},
    "sklearn": {"lab.estimators", "program"},
    "lab.errors": set(),
    "lab.files": {"lab.errors"},
    "lab.data": _WORDS,
    "lab.experiments": _LIBRARY | {"lab.data"} | _WORDS,
    "lab.runs": _LIBRARY | {"lab.experiments", "lab.data"} | _WORDS,
    "lab.estimators": {"lab.runs", "lab.experiments", "lab.data"} | _WORDS,
    "lab.views": _RECORDS | {"lab.experiments.settings", "ode"} | _WORDS,
    "lab.paper": _RECORDS
    | {"lab.data.catalogue", "lab.views"}
    | {f"lab.experiments.{name}" for name in ("resolve", "seeds", "settings", "sizes")}
    | _WORDS,
    "lab.cli": {"lab.data", "lab.experiments", "lab.runs", "lab.views", "lab.paper"} | _WORDS,
    "__main__": {"lab.cli"},
}
FORBIDDEN_NAMES = {"utils", "misc", "common", "helpers", "core"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules(package: Path) -> dict[str, Path]:
    """Dotted name of each module, the package's own name first, and its file."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = [package.name, *file.relative_to(package).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = file
    return found


def imports(name: str, file: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """Modules of the package that a module imports anywhere, even inside a function."""
    root = name.split(".")[0]
    home = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            targets = list(_from_targets(node, home, known))
        elif isinstance(node, ast.Call) and _is_import_call(node):
            targets = [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
        else:
            continue
        for target in targets:
            if target == root or target.startswith(root + "."):
                yield target, node.lineno


def wrong_directions(package: Path) -> list[str]:
    """Imports that go against the direction of the design."""
    known = modules(package)
    found = []
    for name, file in known.items():
        inner = name.partition(".")[2]
        if inner in {"", "lab"}:
            continue  # packages that only re-export
        part = ".".join(inner.split(".")[: 2 if inner.startswith("lab.") else 1])
        if part not in ALLOWED:
            found.append(f"{name}: the design has no part named {part!r}")
            continue
        allowed = ALLOWED[part] | {part}
        for target, line in imports(name, file, known):
            inside = target.partition(".")[2] + "."
            if not any(inside.startswith(f"{other}.") for other in allowed):
                found.append(f"{name}:{line} imports {target}; {part} may import {sorted(allowed)}")
    return found


def cycles(package: Path) -> list[str]:
    """Modules that import themselves through others, one line for each group."""
    known = modules(package)
    graph = {
        name: {_module_of(target, known) for target, _ in imports(name, file, known)} - {name}
        for name, file in known.items()
    }
    reach = {name: _reachable(name, graph) for name in graph}
    groups = {
        frozenset(other for other in reach[name] if name in reach[other])
        for name in graph
        if name in reach[name]
    }
    return ["import cycle: " + ", ".join(sorted(group)) for group in groups]


def forbidden_names(package: Path) -> list[str]:
    """Modules and folders whose name says nothing about their content."""
    return [
        f"{name}: name a module after what it holds"
        for name in modules(package)
        if FORBIDDEN_NAMES & {part.strip("_") for part in name.split(".")}
    ]


def writers(package: Path) -> set[str]:
    """Modules that write files by themselves."""
    found = calls(package, {"write_text", "write_bytes", "fdopen"})
    found |= calls(package, {"save"}, of={"torch", "numpy", "np"})
    for name, file in modules(package).items():
        for node in ast.walk(_tree(file)):
            if isinstance(node, ast.Call) and _called(node)[1] == "open":
                modes = [*node.args[1:2], *(k.value for k in node.keywords if k.arg == "mode")]
                texts = [str(mode.value) for mode in modes if isinstance(mode, ast.Constant)]
                flags = {getattr(part, "attr", "") for mode in modes for part in ast.walk(mode)}
                if any(set("wax+") & set(text) for text in texts) or "O_CREAT" in flags:
                    found.add(name)
    return found


def calls(package: Path, functions: set[str], of: set[str] | None = None) -> set[str]:
    """Modules that call one of these functions, of these objects if any are named."""
    return {
        name
        for name, file in modules(package).items()
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Call)
        for owner, function in [_called(node)]
        if function in functions and (of is None or owner in of)
    }


def undocumented(package: Path) -> list[str]:
    """Classes and functions that a module offers in `__all__` without a docstring."""
    known = modules(package)
    found = []
    for name, file in known.items():
        for public in _exports(_tree(file)):
            definition = _definition(public, name, known)
            if definition is not None and ast.get_docstring(definition) is None:
                found.append(f"{name}.{public} has no docstring")
    return found


def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(), filename=str(file))


def _from_targets(node: ast.ImportFrom, home: str, known: dict[str, Path]) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        parts = home.split(".")
        parents = parts[: len(parts) - node.level + 1]
        base = ".".join([*parents, base] if base else parents)
    for alias in node.names:
        submodule = f"{base}.{alias.name}"
        yield submodule if submodule in known else base


def _is_import_call(node: ast.Call) -> bool:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return name in {"import_module", "__import__"}


def _called(node: ast.Call) -> tuple[str, str]:
    """Name of the object, if it has one, and of its function that a call calls."""
    if isinstance(node.func, ast.Attribute):
        return getattr(node.func.value, "id", ""), node.func.attr
    return "", getattr(node.func, "id", "")


def _module_of(target: str, known: dict[str, Path]) -> str:
    while target not in known and "." in target:
        target = target.rpartition(".")[0]
    return target


def _reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting.extend(graph.get(name, ()))
    return seen


def _exports(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets
        ):
            return list(ast.literal_eval(node.value))
    return []


def _definition(
    public: str, name: str, known: dict[str, Path]
) -> Function | ast.ClassDef | ast.Module | None:
    """The syntax that defines a public name; `None` for data, which has no docstring."""
    file = known[name]
    home = name if file.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(_tree(file)):
        if isinstance(node, Function | ast.ClassDef) and node.name == public:
            if any(getattr(one, "id", "") == "overload" for one in node.decorator_list):
                continue  # only a signature; the definition follows
            return node
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == public:
                    single = ast.ImportFrom(node.module, [alias], node.level)
                    target = next(_from_targets(single, home, known))
                    if target == f"{name}.{public}":
                        return _tree(known[target])
                    if target in known:
                        return _definition(alias.name, target, known)
    return None
