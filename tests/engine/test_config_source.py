"""Where a configuration comes from, and how its text is read."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dslaunch.engine.config import load_config
from dslaunch.engine.config_source import load_source, parse_text
from dslaunch.engine.errors import ConfigError


def test_json_with_comments_and_trailing_commas() -> None:
    text = """{
      // a line
      "a": "http://not/a/comment, # nor this,]", # another
      /* a
         block */ "b": [1, 2,],
    }"""
    assert parse_text(text, "x.json") == {"a": "http://not/a/comment, # nor this,]", "b": [1, 2]}


def test_syntax_errors_name_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "ds_config.json"
    path.write_text('{\n  // comment\n  "a": 1,\n  "b" 2\n}\n')
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    assert caught.value.what == f"{path}:4:7: not valid JSON: expecting ':' delimiter"


def test_text_that_is_not_quite_json_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"train_batch_size": 2, // mine\n}')
    assert load_source(path).notes == (
        f"{path} has comments and trailing commas: read here, but it is not JSON to other programs",
    )
    assert load_config(path).notes == load_source(path).notes
    path.write_text('{"train_batch_size": 2}')
    assert load_source(path).notes == ()


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(b'\xef\xbb\xbf{"train_batch_size": 2}')
    assert load_config(path).batch.train_batch_size == 2
    path.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.what == f"{path} is not UTF-8 text"


def test_duplicate_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_text('{"a": 1, "b": {"c": 1, "c": 2}, "a": 3}', "x.json")
    assert caught.value.what == "Duplicate keys in DeepSpeed config: ['c', 'a']"


def test_sources(tmp_path: Path) -> None:
    raw = {"train_batch_size": 4}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(raw))
    encoded = base64.urlsafe_b64encode(json.dumps(raw).encode()).decode()
    for source in (raw, str(path), path, encoded):
        assert load_config(source).batch.train_batch_size == 4
    with pytest.raises(ConfigError) as caught:
        load_config("no/such/file.json")
    assert caught.value.what == (
        "Expected a string path to an existing deepspeed config, or a dictionary or a valid base64. "
        "Received: no/such/file.json"
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**12) | st.floats() | st.text(max_size=8) | st.just("auto"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner, max_size=2),
    max_leaves=6,
)


@given(JSON_VALUES, st.data())
def test_comments_and_trailing_commas_change_nothing(value: object, data: st.DataObject) -> None:
    """Strings that look like comments or hold commas and brackets stay as they are."""
    body = {"a": value, 'b"//x': "http://y /* z */ # ,]", "c,}": [value, "\\"]}
    text = json.dumps(body, indent=2)
    lines = text.split("\n")
    comments = st.sampled_from(["", " // one, two}", " # three ]", " /* four\n five, */"])
    loose = "\n".join(line + data.draw(comments) for line in lines)
    loose = re.sub(r"\n(\s*[}\]])", r",\n\1", loose) if data.draw(st.booleans()) else loose
    assert json.dumps(parse_text(loose, "x.json")) == json.dumps(body)
