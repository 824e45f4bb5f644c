"""Conditions in SQL: what they may hold, which columns they use, and their end by another thread."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pictures import require

from picstore.errors import UsageError
from picstore.storage.conditions import _FUNCTIONS, Condition

ROWS = 300_000  # more than DuckDB gives one thread
TABLE = pa.table({"id": np.arange(ROWS), "width": np.arange(ROWS) % 997, "caption": [f"A {k}" for k in range(ROWS)]})
NAMES = TABLE.schema.names


def mark(text: str, table: Any = TABLE) -> Any:
    condition = Condition(text, table.schema.names)
    return condition.mark(table.select(condition.columns or ["id"]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("width = 3 OR id = 7", lambda id_, width: width == 3 or id_ == 7),
        ("caption LIKE '%77%'", lambda id_, width: "77" in str(id_)),
        ("caption.lower() = 'a 5'", lambda id_, width: id_ == 5),
        ("caption COLLATE NOCASE = 'a 5'", lambda id_, width: id_ == 5),
        ("[width, id][1] = 3 AND list_sum([width]) = 3", lambda id_, width: width == 3),
        ("extract(year FROM date '2020-01-01') = 2020 AND width < 2", lambda id_, width: width < 2),
        ("CASE WHEN width % 2 = 0 THEN width ELSE NULL END > 990", lambda id_, width: width > 990 and width % 2 == 0),
        ("try_cast(right(caption, 1) AS int) IN (1, 2)", lambda id_, width: id_ % 10 in (1, 2)),
        ("regexp_matches(caption, '1$') AND NOT width < 500", lambda i, w: i % 10 == 1 and w >= 500),
        ("width -- a comment", lambda id_, width: width),
    ],
)  # fmt: skip
def test_a_condition_marks_the_rows_for_which_it_holds_in_their_order(text: str, expected: Any) -> None:
    assert mark(text).tolist() == [bool(expected(k, k % 997)) for k in range(ROWS)]


@pytest.mark.parametrize(
    "text",
    [
        "getenv('HOME') IS NULL",
        "current_setting('home_directory') IS NOT NULL",
        "getvariable('x') IS NULL",
        "version() IS NOT NULL",
        "current_user = 'x'",
        "user = 'x'",
        "main.current_user() = 'x'",
        "current_date IS NOT NULL",
        "current_timestamp IS NOT NULL",
        "now() IS NOT NULL",
        "age(date '2020-01-01') IS NOT NULL",
        "caption::TIMESTAMPTZ IS NULL",
        "strptime(caption, '%Z') IS NULL",
        "random() < 0.5",
        "uuid() IS NULL",
        "sleep_ms(1000) IS NULL",
        "nextval('x') > 0",
        "write_log('x') IS NULL",
        "current_localtimestamp() IS NULL",
        "glob('/etc/*') IS NULL",
        "(SELECT content FROM read_text('/etc/hostname')) IS NULL",
        "(SELECT count(*) FROM 'https://127.0.0.1/x.csv') > 0",
        "json_serialize_plan('SELECT 1') IS NULL",
        "in_search_path('a', 'b')",
        "repeat('a', 1000000000) = caption",
        "len(range(1000000000)) > 0",
        "(SELECT count(*) FROM duckdb_settings()) > 0",
        "(SELECT count(*) FROM range(100000000000)) > 0",
        "id IN (SELECT 1)",
        "EXISTS (SELECT 1)",
        "(FROM duckdb_secrets())",
        "row_number() OVER () < 3",
        "max(width) > 3",
        "unnest([1, 2]) > 0",
        "*",
        "COLUMNS(*) > 0",
        "#1 > 0",
        "$1 > 0",
        "width = ?",
        "list_filter([width], x -> getenv(x) = '') IS NULL",
        "caption::JSON IS NULL",
        "width > 3 LIMIT 1",
        "DISTINCT width",
        "1 WHERE true",
        "1 FROM range(3)",
        "1 UNION SELECT 2",
        "1 = 1; COPY (SELECT 1) TO '/tmp/x'",
        "1 = 1; ATTACH '/tmp/x'",
        "1 = 1; PRAGMA database_list",
        "1 = 1; INSTALL httpfs",
        "1 = 1; SET enable_external_access = true",
        "width = 1, width = 2",
        "",
        "true\0",
        "'\ud800' = caption",
        "(" * 9000,
        "NOT " * 2400 + "true",
        "width" + " + 1" * 4000 + " > 0",
    ],
)
def test_what_is_no_function_of_the_columns_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is refused: .*columns are id, width, caption"):
        mark(text)


def test_every_function_on_the_list_is_one_of_its_arguments_alone() -> None:
    require(importlib.util.find_spec("duckdb"), "duckdb")
    import duckdb

    query = "SELECT function_name, function_type, stability, has_side_effects FROM duckdb_functions()"
    with duckdb.connect() as connection:
        told = connection.execute(query).fetchall()
    macros = {name for name, kind, *_ in told if kind == "macro"}  # of functions; the names are those of arithmetic
    steady = {name for name, kind, stable, acts in told if kind == "scalar" and stable == "CONSISTENT" and not acts}
    others = {name for name, kind, stable, acts in told if kind == "scalar" and (stable != "CONSISTENT" or acts)}
    newer = {"if", "overlay"} if duckdb.__version__ < "2" else set()  # are no functions of 1.5, of Python 3.10
    assert not _FUNCTIONS - steady - macros - newer
    assert not _FUNCTIONS & others


@pytest.mark.parametrize(
    ("names", "text", "used"),
    [
        (["id", "width", "Width"], "width > 1", ["width"]),
        (["id", "width", "Width"], '"Width" > 1', ["Width"]),
        (["id", "Score"], "sCORE > 1 AND id = 2", ["id", "Score"]),
        (["id", "a column"], '"a column" > 1', ["a column"]),
        (["id", "holds"], "holds > 1", ["holds"]),
        (["id", "user"], "user > 1", ["user"]),
        (["id"], "'id' = 'caption'", []),
    ],
)
def test_a_condition_uses_the_columns_that_it_names(names: Sequence[str], text: str, used: list[str]) -> None:
    condition = Condition(text, names)
    assert sorted(condition.columns) == sorted(used)
    table = pa.table({name: [k, 10 + k] for k, name in enumerate(used or ["id"])})
    assert condition.mark(table).shape == (2,)


@pytest.mark.parametrize("text", ["WIDTH > 1", 'width > "Width"'])
def test_columns_that_sql_does_not_tell_apart_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"width, Width|Width, width"):
        Condition(text, ["id", "width", "Width"])


def test_an_interrupted_condition_ends_within_a_moment() -> None:
    slow = " OR ".join(f"md5(caption || {k}) = ''" for k in range(300))  # 30 s without an end
    condition = Condition(slow, NAMES)
    stop = threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.05):
            condition.interrupt()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(UsageError, match=r"is refused: INTERRUPT"):
            condition.mark(TABLE)
    finally:
        stop.set()
        thread.join()
