import datetime
import re

import pytest

from experiments import tasks
from experiments.config import TaskConfig
from experiments.errors import UserError
from experiments.tasks import human_dates

PATTERNS = (
    "%b %d, %Y|%B %d, %Y|%A, %B %d, %Y|%d %b %Y|%d %B %Y|%d %b %y|%d %B, %Y|%b %d %Y|%B %d %Y"
    "|%a, %b %d, %Y|%A, %d %B %Y|%A %d %b %Y|%Y %b %d|%Y/%m/%d|%d.%m.%Y|%d.%m.%y|%m/%d/%y"
).split("|")


def read(text):
    """Every date that one of the patterns makes of a text, by datetime."""
    found = set()
    for pattern in PATTERNS:
        try:
            found.add(datetime.datetime.strptime(text, pattern).date())
        except ValueError:
            continue
    return found


def test_targets_are_what_the_sources_say(loaded):
    for split in loaded("human_dates").splits.values():
        for source, target in zip(split.source_text, split.target_text, strict=True):
            date = datetime.date.fromisoformat(target)
            assert human_dates.FIRST <= date <= human_dates.LAST
            assert read(source) == {date}, source


def test_many_forms(loaded):
    texts = loaded("human_dates").splits["train"].source_text
    shapes = {re.sub(r"[a-z]+", "a", re.sub(r"\d+", "0", text)) for text in texts}
    assert len(shapes) == 9
    assert len(human_dates.FORMATS) == len(set(human_dates.FORMATS)) == 18


def test_characters(loaded):
    task = loaded("human_dates")
    ids = task.splits["test"].target_ids
    assert set(ids.lengths) == {10}
    assert task.target.tokens(ids[0]) == list(task.splits["test"].target_text[0])


def test_clean():
    assert human_dates.clean(" Thursday, 3rd  May 2007 ") == "thursday, 3 may 2007"


def test_more_than_there_are():
    with pytest.raises(UserError, match="'human_dates' has 300000"):
        tasks.check(TaskConfig(name="human_dates", train_examples=298_001))
