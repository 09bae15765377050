"""Config keys that this package reads, found in its source by section.

A read is `owner.key`, `owner["key"]` or `owner.get("key")`, where `owner` is a name for the key's section: its last
word (`env.hosts` is `hosts`), a name that is annotated with its settings class or assigned from it, or `self` in the
class. A text that is the whole dotted key counts too. A key that a part of a run's plan has is read where the field of
that part is. Validation, in `__post_init__`, `_check...` and the package
`preflight`, is no read: it accepts a key and does nothing with it.

Limits: a name may stand for another object elsewhere. A key that is read and then ignored counts as read.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path

import verl_agent
from verl_agent.config import plan_parts

ROOT = Path(verl_agent.__file__).parent
NAMES = {"": ("config", "recipe"), "data": ("data", "config")}
"""Names for a whole config, and for the section that verl hands to a dataset as its config."""
CHOSEN = {"agent.context": ("KeepAll", "Window", "LastObservations", "Summary")}
"""Settings classes that a section chooses by a key."""
EMPTY: frozenset[str] = frozenset()
PARTS = Path(plan_parts.__file__)
"""File whose texts are the keys of fields."""


def _last(node: ast.AST | None) -> str | None:
    """Return the last name of an expression such as `a.b`, `a["b"]` or `a.get("b")`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]):
            return name
        case ast.Call(func=ast.Attribute(attr="select"), args=[_, ast.Constant(value=str(name)), *_]):
            return name.rpartition(".")[2]
        case ast.Call(args=[first, *_]):  # a copy or a conversion, such as OmegaConf.to_container(config.env)
            return _last(first)
        case ast.BoolOp(values=[first, *_]):
            return _last(first)
    return None


def _owner(node: ast.AST) -> ast.AST | None:
    """Return the expression whose key an expression reads; None for other expressions."""
    match node:
        case ast.Attribute(value=owner, ctx=ast.Load()) | ast.Subscript(value=owner, ctx=ast.Load()):
            return owner
        case ast.Call(func=ast.Attribute(value=owner, attr="get" | "pop")):
            return owner
    return None


def _without_validation(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a module, without functions that validate settings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef) and child.name.startswith(("__post_init__", "_check")):
            continue
        yield child
        yield from _without_validation(child)


@cache
def _modules() -> Mapping[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))}


@cache
def _classes() -> Mapping[str, frozenset[str]]:
    """Return the names of the settings classes of each section, from calls of `section` and from nested fields."""
    found = defaultdict(set, {key: set(kinds) for key, kinds in CHOSEN.items()})
    bodies: dict[str, ast.ClassDef] = {}
    for module in _modules().values():
        for node in ast.walk(module):
            match node:
                case ast.ClassDef(name=name):
                    bodies[name] = node
                case ast.Call(func=ast.Name("section"), args=[ast.Constant(value=str(key)), ast.Name(kind), *_]):
                    found[key].add(kind)
    for key in found:
        found[key] &= bodies.keys()
    waiting = [(key, kind) for key, kinds in found.items() for kind in kinds]
    while waiting:
        key, kind = waiting.pop()
        parents = {base.id for base in bodies[kind].bases if isinstance(base, ast.Name)} & bodies.keys()
        waiting += [(key, parent) for parent in parents - found[key]]
        found[key] |= parents
        for field in bodies[kind].body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                inner = {node.id for node in ast.walk(field.annotation) if isinstance(node, ast.Name)} & bodies.keys()
                nested = f"{key}.{field.target.id}"
                waiting += [(nested, other) for other in inner - found[nested]]
                found[nested] |= inner
    return {key: frozenset(kinds) for key, kinds in found.items()}


@cache
def _reads() -> tuple[frozenset[tuple[str, str]], Mapping[str, frozenset[str]], frozenset[str]]:
    """Return pairs of owner and key, the names annotated with each class or assigned from each name, and all texts."""
    pairs, names, texts = set(), defaultdict(set), set()
    for path, module in _modules().items():
        validates = ROOT / "training" / "preflight" in path.parents
        for node in _without_validation(module):
            match node:
                case (
                    ast.arg(arg=name, annotation=kind)
                    | ast.AnnAssign(target=ast.Name(name) | ast.Attribute(attr=name), annotation=kind)
                ) if kind:
                    for part in ast.walk(kind):
                        if isinstance(part, ast.Name | ast.Attribute):
                            names[part.id if isinstance(part, ast.Name) else part.attr].add(name)
                case ast.Assign(targets=[target], value=value):
                    both = zip(target.elts, value.elts, strict=False) if _tuples(target, value) else [(target, value)]
                    for left, right in both:
                        if (source := _last(right)) and (name := _last(left)) and source != name:
                            names[source].add(name)
                case ast.ClassDef(name=kind):
                    pairs |= {(f"<{kind}>", key) for key in _own_attributes(node)}
                case ast.Constant(value=str(text)) if not validates and path != PARTS:
                    texts.add(text)
            owner = _last(_owner(node)) if not validates else None
            if owner and (key := _last(node)):
                pairs.add((owner, key))
    return frozenset(pairs), {key: frozenset(found) for key, found in names.items()}, frozenset(texts)


def _tuples(left: ast.AST, right: ast.AST) -> bool:
    return isinstance(left, ast.Tuple) and isinstance(right, ast.Tuple)


def _own_attributes(body: ast.ClassDef) -> Iterator[str]:
    """Yield the attributes that the methods of a class read from `self`."""
    for node in _without_validation(body):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield node.attr


def _fields_of_plan() -> Mapping[str, tuple[str, str]]:
    """Return class and field of a plan's part by key."""
    kinds = [kind for kind in vars(plan_parts).values() if isinstance(kind, type) and is_dataclass(kind)]
    return {
        key: (kind.__name__, one.name) for kind in kinds for one in fields(kind) for key in one.metadata.get("keys", ())
    }


def _is_read_from_plan(key: str) -> bool:
    """Return True if a field of a plan's part has this key and is read, on any name of the part."""
    kind, field = _fields_of_plan().get(key, ("", ""))
    pairs, named, _ = _reads()
    parts = named.get(kind, EMPTY)
    owners = {f"<{kind}>", *parts, *(other for part in parts for other in named.get(part, EMPTY))}
    return any((owner, field) in pairs for owner in owners)


def is_read(key: str) -> bool:
    """Return True if this package reads a key of its own."""
    if _is_read_from_plan(key):
        return True
    section, _, name = key.rpartition(".")
    pairs, named, texts = _reads()
    kinds = _classes().get(section, EMPTY)
    word = section.rpartition(".")[2]
    owners = {*NAMES.get(section, (word,)), *named.get(word, EMPTY)}
    for kind in kinds:
        annotated = named.get(kind, EMPTY)
        owners |= {f"<{kind}>", *annotated, *(f"_{name}" for name in annotated)}  # `self._settings = settings`
    return key in texts or any((owner, name) in pairs for owner in owners)
