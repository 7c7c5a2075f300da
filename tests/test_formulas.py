"""Every public formula names its paper and its test, both exist, and docs/formulas.md says the same."""

import pytest

from tests import formulas


@pytest.mark.parametrize("part", formulas.PARTS)
def test_every_formula_names_its_paper_and_its_test(part):
    found = [line for one in formulas.formulas(part) for line in formulas.mistakes(one)]
    assert not found, "\n".join(found)


def test_the_page_of_formulas_is_up_to_date():
    assert formulas.PAGE.read_text(encoding="utf-8") == formulas.page(), "run: python -m tests.formulas --write"


def test_a_docstring_is_read_as_it_is_written():
    def example():
        """One sentence
        on two lines.

            a = b
            c = d

        Args:
            x: not    this

        Paper: Keren et al. 2018, section 2,
        and 004.
        Tests: tests/test_formulas.py::test_one, tests/no_file.py::test_two
        """

    one = formulas.read("example", example)
    assert one.formula == "a = b\nc = d"
    assert formulas.with_names(one.paper) == "Keren et al. 2018, section 2, and Pan and Cao 2023"
    assert [line.partition("there is ")[2] for line in formulas.mistakes(one)] == [
        "no test tests/test_formulas.py::test_one",
        "no test tests/no_file.py::test_two",
    ]
