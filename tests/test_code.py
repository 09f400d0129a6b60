"""The text of a function changes with what it computes, and with nothing else."""

from __future__ import annotations

import functools
import subprocess
import sys

import pytest

from cpr_wrap._code import code_text

FACTOR = 2.0


def scaled(x):
    return FACTOR * x


def uses(x):
    return scaled(x)


def made(source, **world):
    exec(source, world)
    return world["f"]


def times(n):
    return lambda x: n * x


class Callable:
    def __init__(self, n):
        self.n = n

    def __call__(self, x):
        return self.n * x


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made("def f(x): return x + 1"), made("def f(x): return x + 2")),
        (made("def f(x): return x + 1"), made("def f(x): return x - 1")),
        (made("def f(x): return x.abs()"), made("def f(x): return x.exp()")),
        (made("def f(x, n=1): return n * x"), made("def f(x, n=2): return n * x")),
        (made("def f(x, *, n=1): return n * x"), made("def f(x, *, n=2): return n * x")),
        (made("f = lambda x: [i + 1 for i in x]"), made("f = lambda x: [i + 2 for i in x]")),
        (made("def f(x): return C * x", C=1.0), made("def f(x): return C * x", C=2.0)),
        (times(2), times(3)),
        (functools.partial(scaled, 1), functools.partial(scaled, 2)),
        (Callable(2), Callable(3)),
        (Callable(2).__call__, Callable(3).__call__),
        (made("def f(x): return x in {1, 2}"), made("def f(x): return x in {1, 3}")),
        (int, float),
    ],
)
def test_other_functions_have_other_texts(one, other):
    assert code_text(one) == code_text(one)
    assert code_text(one) != code_text(other)


def test_the_same_code_has_the_same_text():
    source = "def f(x, n=1):\n    'About it.'\n    return [n * i for i in x]"
    assert code_text(made(source)) == code_text(made(source))
    assert code_text(times(2)) == code_text(times(2))


def test_functions_and_values_of_the_module_count(monkeypatch):
    before = code_text(uses)
    assert before == code_text(uses)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert code_text(uses) != before


def test_a_function_that_calls_itself_or_an_empty_cell_is_no_trap():
    loop = made("def f(x): return f(x - 1) if x else 0")
    assert "f" in code_text(loop)

    def outer():
        def inner():
            return late

        text = code_text(inner)
        late = 1
        return text, late

    assert outer()[0]


def test_the_text_is_the_same_in_another_process():
    script = (
        "from cpr_wrap._code import code_text; from cpr_wrap.rules.cpr import disagreement; "
        "print(code_text(disagreement.terms) + code_text({'b', 'a', 'c', 'd'}))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert " at 0x" not in texts.pop()
