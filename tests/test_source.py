"""The text of a function changes with what it computes, and with nothing else."""

from __future__ import annotations

import functools
import importlib.util
import linecache
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from cpr_wrap._source import source_text, value_text
from cpr_wrap.rules.cpr import disagreement

FACTOR = 2.0


def scaled(x):
    return FACTOR * x


def times(n):
    return lambda x: n * x


def holding(value):
    """A function that closes over something."""

    def f(x):
        return x, value

    return f


def linear(seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return torch.nn.Linear(2, 2)


class Callable:
    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return self.n * x


def from_file(folder, name, source):
    """The function `f` of a module made of some source."""
    file = folder / f"{name}.py"
    file.write_text(source)
    linecache.checkcache()
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.f


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (times(2), times(3)),
        (functools.partial(scaled, 1), functools.partial(scaled, 2)),
        (Callable(2), Callable(3)),
        (Callable(2).__call__, Callable(3).__call__),
        (times, scaled),
        # Their printed forms are alike.
        (holding(torch.zeros(2000)), holding(torch.arange(2000) * 1e-9)),
        (holding(linear(0)), holding(linear(1))),
        (holding({"a": [np.zeros(2)]}), holding({"a": [np.ones(2)]})),
        (holding((torch.tanh,)), holding((torch.relu,))),
        (
            functools.partial(scaled, torch.zeros(2)),
            functools.partial(scaled, torch.full((2,), 1e-9)),
        ),
        (Callable(linear(0)), Callable(linear(1))),
        (Callable(Callable(np.float32(1))), Callable(Callable(np.float32(2)))),
        (Callable({1, 2}), Callable({1, 3})),
    ],
)
def test_other_functions_have_other_texts(one, other):
    assert source_text(one) == source_text(one)
    assert source_text(one) != source_text(other)


@pytest.mark.parametrize(
    "changed",
    [
        "def f(x): return x + 2",  # the function
        "def f(x): return g(x)\ndef g(x): return 2 * x",  # what it calls
        "C = 3\ndef f(x): return C * x",  # what it reads
    ],
)
def test_the_text_changes_with_the_modules_source(tmp_path, changed):
    before = source_text(from_file(tmp_path, "some_rule", "def f(x): return x + 1"))
    assert source_text(from_file(tmp_path, "some_rule", "def f(x): return x + 1")) == before
    assert source_text(from_file(tmp_path, "some_rule", changed)) != before


def test_code_without_source_tells_its_revision():
    world = {}
    exec("def f(x): return x", world)
    world["f"].__module__ = "nowhere"
    with pytest.raises(ValueError, match=r"source of nowhere\.f cannot be read.*`revision`"):
        source_text(world["f"])
    world["f"].revision = 3
    assert source_text(world["f"]) == "nowhere.f revision 3"


def test_a_chain_of_objects_is_followed_so_far_and_places_in_memory_do_not_count():
    ring = Callable(object())
    ring.n = [ring, object(), torch.float32]
    text = value_text(ring)
    assert " at 0x" not in text
    assert "float32" in text


def test_code_that_cannot_be_read_is_known_by_its_name():
    world = {}
    exec("def f(x): return x", world)
    world["f"].__module__ = "nowhere"
    assert value_text(Callable(world["f"])) == "Callable [['n', nowhere.f]]"


def test_functions_that_call_themselves_or_each_other_end():
    def there(x):
        return back(x - 1) if x else there

    def back(x):
        return there(x), them

    them = [there, back]
    assert source_text(there) == source_text(there)
    assert value_text(them) == value_text(them)


def _wrapped(function):
    def call(x):
        return function(x)

    return call


def test_the_text_changes_with_what_a_function_in_many_others_holds():
    def made(factor):
        def scaled(x):
            return factor * x

        return _wrapped(_wrapped(_wrapped(_wrapped(scaled))))

    assert source_text(made(0.1)) == source_text(made(0.1))
    assert source_text(made(0.1)) != source_text(made(0.2))


def test_an_object_that_holds_its_own_method_ends():
    callable_ = Callable(1)
    callable_.n = [callable_.__call__]
    assert source_text(callable_) == source_text(callable_)


def test_a_function_without_source_is_refused_inside_another_too():
    world = {}
    exec("def f(x): return x", world)
    world["f"].__module__ = "nowhere"
    with pytest.raises(ValueError, match=r"source of nowhere\.f cannot be read"):
        source_text(holding(world["f"]))


def test_an_empty_cell_is_no_trap():
    def outer():
        def inner():
            return late

        text = source_text(inner)
        late = 1
        return text, late

    assert outer()[0]


@pytest.mark.integration
def test_the_text_is_the_same_in_another_process():
    script = (
        "from cpr_wrap._source import source_text; from cpr_wrap.rules.cpr import disagreement; "
        "print(source_text(disagreement.terms))"
    )
    # A new interpreter, not a copy of one: names have other hashes there.
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    there = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
    ).stdout
    here = source_text(disagreement.terms)
    assert there == f"{here}\n"
    assert " at 0x" not in here
