"""The examples in docstrings, where a processor may round the last digit of a float otherwise."""

import doctest
import importlib
import math
import re

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w.])")


def words_and_numbers(text: str) -> tuple[str, list[str]]:
    """`text` without its numbers and its spaces, and the numbers."""
    return "".join(NUMBER.sub("#", text).split()), NUMBER.findall(text)


class Checker(doctest.OutputChecker):
    """Takes floats for equal that agree to a relative 1e-5, or to a unit in the last place."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        if super().check_output(want, got, optionflags):
            return True
        (words, expected), (said, found) = words_and_numbers(want), words_and_numbers(got)
        return words == said and all(map(equal, expected, found))


def equal(expected: str, found: str) -> bool:
    if expected.lstrip("+-").isdigit():  # An integer: it is not rounded.
        return expected == found
    value, places = float(expected), len(expected.partition("e")[0].partition(".")[2])
    near = 1e-5 * abs(value)
    if "e" not in expected and places > 2:
        near = max(near, 1.01 * 10.0**-places)
    elif value == 0:
        near = 1e-6
    return math.isclose(value, float(found), rel_tol=0, abs_tol=near)


def failures(module: str) -> int:
    """How many examples of `module` fail; what they printed goes to standard output."""
    runner = doctest.DocTestRunner(Checker(), verbose=False)
    loaded = importlib.import_module(module)
    for test in doctest.DocTestFinder().find(loaded, module):
        runner.run(test)
    return runner.summarize(verbose=False).failed
