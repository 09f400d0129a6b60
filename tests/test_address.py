"""Code of one's own, by address."""

from __future__ import annotations

import sys

import pytest

from cpr_wrap._registry import call, resolve

CODE = """
import importlib

class Net:
    size = 4

    def __init__(self, size=3):
        if size < 0:
            raise ValueError(f"size {size} is negative")
        self.size = size

def late():
    return importlib.import_module("mylater").VALUE

NUMBER = 5
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """A folder with a module, which is the current one but not on the path."""
    (tmp_path / "mynet.py").write_text(CODE)
    (tmp_path / "mylater.py").write_text("VALUE = 7")
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "needy.py").write_text("import no_such_package_at_all")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.setattr(sys, "modules", sys.modules.copy())


def test_a_module_of_the_current_folder_and_names_with_dots():
    assert resolve("mynet:NUMBER") == 5
    assert resolve("mynet:Net.size") == 4
    assert resolve("os.path:join")("a", "b").startswith("a")


def test_imports_inside_its_functions_work_afterwards_and_shadow_nothing(tmp_path):
    (tmp_path / "json.py").write_text("loads = None")
    assert resolve("mynet:late")() == 7
    assert sys.path[-1] == str(tmp_path)
    assert sys.path[0] != str(tmp_path)
    resolve("mynet:late")
    assert sys.path.count(str(tmp_path)) == 1


def test_calling_what_an_address_names():
    assert call("mynet:Net", size=6).size == 6
    assert call(max, 2, 3) == 3
    with pytest.raises(RuntimeError, match="mynet:Net failed: ValueError: size -1 is negative"):
        call("mynet:Net", size=-1)
    with pytest.raises(RuntimeError, match=r"mynet:Net failed: TypeError: .*'sise'"):
        call("mynet:Net", sise=1)
    with pytest.raises(TypeError, match=r"mynet:NUMBER: expected a cl.* or a function, got .* int"):
        call("mynet:NUMBER")


@pytest.mark.parametrize("address", ["mynet", "mynet:", ":Net", "my net:Net", "a:b:c", "../x:y"])
def test_what_is_no_address(address):
    with pytest.raises(ValueError, match="expected an address like module:name"):
        resolve(address)


def test_a_file_is_named_as_a_module():
    with pytest.raises(ValueError, match=r"named as a module, like models\.cnn:Net"):
        resolve("models/cnn.py:Net")


def test_a_module_that_is_not_there():
    with pytest.raises(LookupError, match=r"unknown module 'mynett'.* mean 'mynet'") as info:
        resolve("mynett:Net")
    assert "PYTHONPATH" in str(info.value)
    with pytest.raises(LookupError, match=r"unknown module 'mynet\.deep'"):
        resolve("mynet.deep:Net")


def test_a_name_that_is_not_there():
    with pytest.raises(LookupError, match=r"mynet:Nett: unknown name in mynet 'Nett'.*'Net'\?"):
        resolve("mynet:Nett")


def test_a_module_that_fails():
    with pytest.raises(RuntimeError, match="importing broken failed: ZeroDivisionError"):
        resolve("broken:x")
    with pytest.raises(RuntimeError, match="importing needy failed: No module named 'no_such_pack"):
        resolve("needy:x")
