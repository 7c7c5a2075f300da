"""Parts by name: registering, the nearest spelling, options, and parts of one's own."""

import inspect

import pytest

from lastlayer._core.registry import Registry, check_options, digest, find, nearest, options_of, split_path


@pytest.fixture
def registry() -> Registry[int]:
    made: Registry[int] = Registry("fruit", "package.module:fruit")
    made.add("pear", 1)
    made.add("apple", 2)
    return made


def test_parts_are_found_by_name(registry):
    assert registry.names() == ["apple", "pear"]
    assert registry.get("pear") == 1
    assert "pear" in registry
    assert "plum" not in registry


def test_an_unknown_name_is_told_with_the_nearest_and_all_others(registry):
    with pytest.raises(ValueError, match="fruit 'appel' is unknown") as caught:
        registry.get("appel")
    for word in ("did you mean 'apple'?", "available: apple, pear", "or package.module:fruit"):
        assert word in str(caught.value)
    with pytest.raises(ValueError, match="did you mean 'pear'"):
        registry.get("Birne", meant="peer")


def test_a_name_is_registered_once(registry):
    with pytest.raises(ValueError, match="'pear' is registered twice"):
        registry.add("pear", 3)
    assert registry.get("pear") == 1


def test_nothing_near_is_no_suggestion():
    assert nearest("gama", ["gamma", "tau"]) == " (did you mean 'gamma'?)"
    assert nearest("xyzzy", ["gamma", "tau"]) == ""


def test_options_are_the_named_parameters_with_their_defaults():
    def factory(in_shape, width=4, *rest, depth, **more):
        pass

    assert options_of(factory, without=("in_shape",)) == {"width": 4, "depth": inspect.Parameter.empty}


def test_an_option_that_a_part_does_not_take_is_refused():
    check_options("model mlp", ["width"], {"width": 4, "depth": 2})
    with pytest.raises(ValueError, match=r"model mlp has no option 'widht' \(did you mean 'width'\?\); it has width"):
        check_options("model mlp", ["widht"], ["width"])
    with pytest.raises(ValueError, match="model x has no option 'width'; it has none"):
        check_options("model x", ["width"], [])
    with pytest.raises(ValueError, match="'zzz' of another"):
        check_options("model x", ["zzz"], ["width"], lambda option: f" {option!r} of another")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("a.b:c", ("a.b", "c")),
        ("a.b.c", ("a.b", "c")),
        ("a:c", ("a", "c")),
        ("plain", None),
        (":c", None),
        ("a:", None),
        (".c", None),
    ],
)
def test_a_part_of_the_users_own_is_a_module_and_a_name(name, parts):
    assert split_path(name) == parts


def test_parts_of_the_users_own_lie_in_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "parts_in_the_working_folder.py"
    file.write_text("def part():\n    return 7\nnumber = 3\n")
    found = find("parts_in_the_working_folder", "part", "fruit 'x'")
    assert found() == 7
    before = digest("parts_in_the_working_folder", found)
    assert len(before) == 64
    file.write_text(file.read_text() + "# changed\n")
    assert digest("parts_in_the_working_folder", found) != before
    with pytest.raises(ValueError, match=r"fruit 'x'.*number"):
        find("parts_in_the_working_folder", "number", "fruit 'x'")


def test_a_module_that_is_not_there_or_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"fruit 'x': module 'no_such_module_here' cannot be imported"):
        find("no_such_module_here", "part", "fruit 'x'")
    (tmp_path / "parts_that_fail.py").write_text("1 / 0\n")
    with pytest.raises(ValueError, match="importing parts_that_fail raised ZeroDivisionError"):
        find("parts_that_fail", "part", "fruit 'x'")
