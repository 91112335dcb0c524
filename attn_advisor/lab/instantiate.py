"""Building a class of the user's from nothing but its signature, its config object and the sizes wanted."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from attn_advisor.lab import roles
from attn_advisor.lab.job import Sizes
from attn_advisor.lab.loading import Placeholder

CONFIG = r"(\w+_)?(config|cfg|conf|args|hparams|params|opt|options|hps|model_args|arguments)"

LAYER = r"(act|norm|activation|linear|conv)_(layer|fn|cls|class)"
"""Parameters that take a class or function that makes a layer."""


class CannotBuild(Exception):
    """The class cannot be built; the message says what is missing and how to give it."""


class InferredConfig:
    """A config object that answers by the usual meaning of the attribute's name."""

    def __init__(self, sizes: Sizes, overrides: dict[str, Any]) -> None:
        self.__dict__.update(overrides)
        self.__dict__["_sizes"] = sizes
        self.__dict__["_guessed"] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = attribute(name, self._sizes)
        if value is None and not roles.means(
            r".*(dtype|device|layers?|pattern|cls|type|ratio|fn|func|impl\w*|quant\w*|config)", name
        ):
            raise AttributeError(f"config attribute {name!r} has no usual meaning")
        self._guessed.append(name)
        self.__dict__[name] = value
        return value

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name, default)

    __getitem__ = __getattr__

    def __contains__(self, name: str) -> bool:
        return True


def attribute(name: str, sizes: Sizes) -> Any:
    """The usual value of a config attribute or parameter of that name; None if it has none."""
    lower = name.lower().lstrip("_")
    if roles.means(r".*(activation|act|act_fn|nonlin\w*)(_function|_fn)?", lower):
        return "gelu"
    if lower == "position_embedding_type":
        return "absolute"
    if roles.means(r".*attn_implementation|attention_type|attn_type|.*attention_mode", lower):
        return "eager"
    if roles.means(r".*(buckets|relative_attention_max_distance|max_distance)", lower):
        return 32
    if roles.means(r"(initializer|init)_(range|std|factor)|std", lower):
        return 0.02
    if roles.means(r".*vocab\w*", lower):
        return 64
    if roles.means(r".*(ratio|mult|expansion|factor)", lower):
        return 1
    if roles.means(r".*(groups|stride|dilation|kernel\w*)", lower):
        return 1
    if roles.means(r"(rope_|rotary_)?(theta|base)", lower):
        return 10000.0
    return roles.number(name, sizes)


def usual(
    name: str, annotation: Any, sizes: Sizes, namespace: dict[str, Any], overrides: dict[str, Any]
) -> Iterator[Any]:
    """Values to try for a required parameter, the likeliest first. Raises nothing; yields nothing if the name says nothing."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if roles.means(CONFIG, name) or text.endswith(("Config", "Args", "Configuration")):
        yield from configs(text, annotation, sizes, namespace, overrides)
        return
    value = attribute(name, sizes)
    if isinstance(value, tuple):
        yield value
        yield value[0]
        yield (*value, 1)
        return
    if isinstance(value, bool) or value is not None:
        if roles.means(r".*(act|activation|act_fn|nonlin\w*)", name):
            yield torch.nn.functional.gelu
        yield value
        return
    if text in ("bool", "builtins.bool"):
        yield False
    elif text in ("float", "builtins.float"):
        yield 0.0
    elif text in ("int", "builtins.int"):
        yield 1
    elif "Module" in text or roles.means(r".*(norm|proj|layer|module|fn|embed\w*|act)", name):
        yield torch.nn.Identity()
    else:
        if re.search(r"(^|_)(dim|width|channels|features)(_|$)", name):
            yield sizes.width
        elif re.search(r"(^|_)(num|n|size|len|length|count|max)(_|$)", name):
            yield max(sizes.L, sizes.S)
        yield None


def configs(
    text: str, annotation: Any, sizes: Sizes, namespace: dict[str, Any], overrides: dict[str, Any]
) -> Iterator[Any]:
    """Config objects to try: the annotated class, config classes of the file, and one inferred from what is read."""
    found = [annotation] if inspect.isclass(annotation) and not issubclass(annotation, (str, dict)) else []
    named = namespace.get(text.strip("'\""))
    found += [named] if inspect.isclass(named) and named not in found else []
    found += [
        v
        for k, v in namespace.items()
        if inspect.isclass(v) and k.endswith(("Config", "Args", "Configuration")) and v not in found
    ]
    for made in found:
        try:
            instance = fill_config(made, sizes, overrides)
        except Exception:
            continue
        yield instance
    yield InferredConfig(sizes, overrides)


def fill_config(made: type, sizes: Sizes, overrides: dict[str, Any]) -> Any:
    """An instance of a config class with the sizes put where its parameters' names say, other defaults kept."""
    arguments: dict[str, Any] = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        required = parameter.default is parameter.empty
        value = overrides.get(name, _sized(name, parameter.default, sizes) if not required else attribute(name, sizes))
        if value is not None or required:
            arguments[name] = value
    instance = made(**arguments)
    if not dataclasses.is_dataclass(made):
        for name in [n for n in vars(made) if not n.startswith("_")]:
            value = overrides.get(name, _sized(name, getattr(made, name), sizes))
            if (
                value is not None
                and not callable(getattr(made, name))
                and not isinstance(getattr(made, name), property)
            ):
                setattr(instance, name, value)
    return instance


def _sized(name: str, default: Any, sizes: Sizes) -> Any:
    """A size for a parameter that has a default: only sizes are replaced, never flags, rates or scales."""
    if (
        isinstance(default, bool)
        or not (default is None or isinstance(default, int))
        or isinstance(default, Placeholder)
    ):
        return None
    for pattern in (roles.KV_HEADS, roles.HEADS, roles.HEAD_DIM, roles.CONTEXT, roles.WIDTH):
        if roles.means(pattern, name) and not roles.means(r"p|rate", name):
            optional = default is None and pattern is not roles.CONTEXT
            value = roles.number(name, sizes)
            return None if optional else value[0] if isinstance(value, tuple) else value
    return None


def candidates(
    made: type, sizes: Sizes, namespace: dict[str, Any], overrides: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Constructor arguments to try for the class."""
    try:
        parameters = list(inspect.signature(made).parameters.values())
    except (TypeError, ValueError) as error:
        raise CannotBuild(f"the signature of {made.__name__} cannot be read ({error})") from error
    parameters = [*parameters, *_inherited(made, parameters)]
    layers = {p.name: torch.nn.Identity for p in parameters if p.default is None and roles.means(LAYER, p.name)}
    fixed: dict[str, Any] = {}
    open_names: list[str] = []
    open_values: list[list[Any]] = []
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        name = parameter.name
        if name in overrides:
            fixed[name] = overrides[name]
        elif parameter.default is parameter.empty:
            open_names.append(name)
            open_values.append(list(usual(name, parameter.annotation, sizes, namespace, overrides)))
        elif (value := _sized(name, parameter.default, sizes)) is not None:
            fixed[name] = value
    for values in itertools.islice(itertools.product(*open_values), 24):
        yield {**fixed, **dict(zip(open_names, values))}
    for values in itertools.islice(itertools.product(*open_values), 8):
        yield dict(zip(open_names, values))  # with every default as it is
    for values in itertools.islice(itertools.product(*open_values), 8) if layers else ():
        yield {**fixed, **layers, **dict(zip(open_names, values))}


def _inherited(made: type, parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Parameters of the next constructor up, where the class's own passes on `**kwargs`."""
    own = next((c for c in made.__mro__ if "__init__" in vars(c)), made)
    above = next((c for c in own.__mro__[1:] if "__init__" in vars(c)), None)
    if above in (None, object, torch.nn.Module) or not any(p.kind is p.VAR_KEYWORD for p in parameters):
        return []
    known = {p.name for p in parameters}
    more = list(inspect.signature(above.__init__).parameters.values())[1:]  # type: ignore[misc]
    return [p for p in more if p.name not in known and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def build(
    made: type, sizes: Sizes, namespace: dict[str, Any], overrides: dict[str, Any], accept: Callable[[Any], bool]
) -> tuple[int, Any]:
    """The first instance that can be built and is accepted, as its place among the candidates and itself. Raises CannotBuild."""
    error: str | None = None
    for place, arguments in enumerate(candidates(made, sizes, namespace, overrides)):
        try:
            torch.manual_seed(0)
            instance = made(**arguments)
        except (Exception, SystemExit) as problem:
            error = error or f"{type(problem).__name__}: {problem}"
            continue
        if accept(instance):
            return place, instance
        error = error or "no arguments were found that its forward accepts"
    required = [
        p.name for p in inspect.signature(made).parameters.values() if p.default is p.empty and p.kind in (0, 1, 3)
    ]
    raise CannotBuild(
        f"{made.__name__}({', '.join(required)}) could not be built: {error or 'no constructor arguments were found'}"
    )


def rebuild(made: type, sizes: Sizes, namespace: dict[str, Any], overrides: dict[str, Any], place: int) -> Any:
    """An instance for other sizes, or of another version of the class, by the arguments that `build` accepted."""
    arguments = next(itertools.islice(candidates(made, sizes, namespace, overrides), place, None))
    torch.manual_seed(0)
    return made(**arguments)


def initial_values(
    class_node: ast.ClassDef, sizes: Sizes, namespace: dict[str, Any], overrides: dict[str, Any]
) -> dict[str, Any]:
    """What `__init__` assigns to self, evaluated line by line as far as its parameters' names have a usual meaning."""
    found: dict[str, Any] = {}
    init = next((n for n in class_node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None:
        return found
    owner = type("Attributes", (torch.nn.Module,), {})()
    scope: dict[str, Any] = {**namespace, init.args.args[0].arg: owner}
    for argument in (*init.args.args[1:], *init.args.kwonlyargs):
        annotation = ast.unparse(argument.annotation) if argument.annotation else ""
        scope[argument.arg] = overrides.get(
            argument.arg, next(usual(argument.arg, annotation, sizes, namespace, overrides), None)
        )
    for statement in init.body:
        try:
            exec(compile(ast.Module([statement], []), "<init>", "exec"), scope)
        except (Exception, SystemExit):
            continue
    found.update({k: v for k, v in vars(owner).items() if not k.startswith("_") or k not in vars(torch.nn.Module())})
    found.update(owner._modules)
    found.update(owner._buffers)
    found.update(owner._parameters)
    return found
