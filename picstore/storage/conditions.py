"""Conditions in SQL: expressions over a record's columns, evaluated by DuckDB.

DuckDB's parser turns the text into a tree, and each node of the tree must be of a kind that this module lists. A
condition is thus a function of a record's columns alone. A condition reaches no file, setting, variable, clock or
random number, even if a later DuckDB has new functions for them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from picstore.arrays import Bools
from picstore.errors import UsageError, missing_extra

# Kinds of expressions that a condition may contain, as DuckDB's syntax tree names them. Subqueries, windows, lambdas,
# stars and parameters are not allowed.
_KINDS = frozenset({
    "BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "OPERATOR",
    "TYPE",
})  # fmt: skip
# Types to which values may be cast. Types with a time zone are left out, because the time zone depends on the machine.
_TYPES = frozenset(
    """
    array bigint bit blob bool boolean bpchar bytea char date datetime dec decimal double float float4 float8 hugeint
    int int1 int128 int16 int2 int32 int4 int64 int8 integer integral interval list long null numeric real short
    signed smallint string text time timestamp timestamp_ms timestamp_ns timestamp_s tinyint ubigint uhugeint uinteger
    usmallint utinyint varchar
""".split()  # noqa: SIM905 - a table of words
)
# Functions whose results depend only on their arguments, and whose time and memory are linear in the arguments' size.
# `repeat`, `lpad`, `range` and `format` are left out, because an argument such as 10**12 makes their result exceed the
# memory; `levenshtein`, because its time is quadratic. DuckDB does not check its own limits during a function call
# (docs/decisions.md).
_FUNCTIONS = frozenset(
    """
    + - * / // % ** ^ & | ~ << >> @ || ^@ && @> <@ <-> <=> ->> !~~ !~~* ~~ ~~* ~~~ xor
    like_escape ilike_escape not_like_escape not_ilike_escape
    add subtract multiply divide mod fmod fdiv abs sign ceil ceiling floor round round_even trunc even
    sqrt cbrt exp ln log log2 log10 pow power gcd greatest_common_divisor lcm least_common_multiple factorial gamma
    lgamma sin cos tan cot asin acos atan atan2 sinh cosh tanh asinh acosh atanh degrees radians pi nextafter
    isnan isinf isfinite signbit greatest least bit_count bit_length hash if nullif constant_or_null
    lower lcase upper ucase length len strlen char_length character_length length_grapheme octet_length
    left right left_grapheme right_grapheme substr substring substring_grapheme overlay reverse replace translate
    trim ltrim rtrim concat concat_ws contains starts_with prefix ends_with suffix instr strpos position
    ascii ord unicode chr encode decode strip_accents nfc_normalize url_encode url_decode
    hex unhex to_hex from_hex bin unbin to_binary from_binary base64 to_base64 from_base64 md5 sha1 sha256
    split string_split str_split string_to_array split_part string_split_regex str_split_regex regexp_split_to_array
    regexp_matches regexp_full_match regexp_extract regexp_extract_all regexp_replace regexp_escape
    parse_path parse_dirname parse_dirpath parse_filename
    json_extract json_extract_path json_extract_string json_extract_path_text json_value json_exists json_valid
    json_type json_keys json_array_length json_contains
    make_date make_time make_timestamp date_part datepart date_trunc datetrunc date_diff datediff date_sub datesub
    date_add year quarter month week day hour minute second millisecond microsecond century decade millennium era
    dayofweek dayofmonth dayofyear weekday weekofyear yearweek isodow isoyear dayname monthname last_day julian epoch
    epoch_ms epoch_us epoch_ns time_bucket to_years to_quarters to_months to_weeks to_days to_hours to_minutes
    to_seconds to_milliseconds to_microseconds to_decades to_centuries to_millennia
    row list_value list_pack array_value list_extract array_extract list_element element_at list_slice array_slice
    list_contains list_has array_contains array_has list_has_all array_has_all list_has_any array_has_any
    list_position list_indexof array_position array_indexof array_length list_concat list_cat array_concat array_cat
    list_sort array_sort list_reverse_sort array_reverse_sort list_reverse array_reverse list_distinct array_distinct
    list_unique array_unique list_intersect array_intersect array_to_string flatten
    list_sum list_avg list_min list_max list_count list_product list_median list_mode list_first list_last
    list_any_value list_bool_and list_bool_or list_var_pop list_var_samp list_stddev_pop list_stddev_samp
    list_distance array_distance list_inner_product array_inner_product list_dot_product array_dot_product
    list_negative_inner_product array_negative_inner_product list_negative_dot_product array_negative_dot_product
    list_cosine_similarity array_cosine_similarity list_cosine_distance array_cosine_distance array_cross_product
""".split()  # noqa: SIM905 - a table of words
)
# Largest depth of parentheses, because DuckDB 2 takes two minutes to reject 9,000 open parentheses.
_MAX_DEPTH = 100
_CLOSED: dict[str, Any] = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}


class Condition:
    """Checked SQL condition. It may use the columns ``names``; the attribute ``columns`` lists those that it does use.

    Raise MissingDependency if DuckDB is not installed, UsageError if the text is not an expression over ``names``.
    """

    def __init__(self, text: str, names: Sequence[str]) -> None:
        try:
            import duckdb
        except ImportError as error:
            raise missing_extra("conditions in SQL need DuckDB", "sql") from error
        self.text = text
        self._names = names
        self._connection = duckdb.connect(config=_CLOSED)
        self.columns: list[str] = []
        for node in _objects(self._parse()):
            if "class" in node:
                self._check(node)
        twice = {name for name in self.columns if [each.lower() for each in self.columns].count(name.lower()) > 1}
        if twice:
            self._refuse(f"SQL does not tell the columns {', '.join(sorted(twice))} apart")

    def mark(self, table: Any) -> Bools:
        """Return a mask, bool (rows,), of the rows of a ``pyarrow.Table`` for which the condition holds.

        Raise UsageError if the evaluation fails or is interrupted.
        """
        import duckdb

        try:
            holds = duckdb.SQLExpression(self.text).cast("BOOLEAN").alias("holds")
            found = self._connection.from_arrow(table).select(holds).fetchnumpy()["holds"]
        except duckdb.Error as error:
            self._refuse(_first_line(error), error)
        return np.ma.filled(found, False).astype(np.bool_)

    def interrupt(self) -> None:
        """Interrupt :meth:`mark` if another thread runs it; else do nothing."""
        self._connection.interrupt()

    def _parse(self) -> Any:
        """Return DuckDB's syntax tree of the text, decoded from JSON; raise UsageError unless it is one expression."""
        import duckdb

        if "\0" in self.text:  # DuckDB 1 would ignore the zero byte and all text after it.
            self._refuse("it holds a zero byte")
        depths = itertools.accumulate((each == "(") - (each == ")") for each in self.text)
        if max(depths, default=0) > _MAX_DEPTH:
            self._refuse(f"its parentheses are nested more than {_MAX_DEPTH} deep")
        try:
            # Encoding raises UnicodeError if the text contains half of a surrogate pair.
            given = [f"SELECT {self.text}".encode().decode()]
            (tree,) = self._connection.execute("SELECT json_serialize_sql(?)", given).fetchall()[0]
            parsed = json.loads(tree)
        except (duckdb.Error, UnicodeError, ValueError, RecursionError) as error:
            self._refuse(_first_line(error), error)
        if parsed["error"]:
            self._refuse(str(parsed["error_message"]).partition("\n")[0])
        nodes = [statement["node"] for statement in parsed["statements"]]
        others = ("where_clause", "group_expressions", "having", "qualify", "sample", "modifiers")
        if len(nodes) != 1 or nodes[0]["type"] != "SELECT_NODE" or len(nodes[0]["select_list"]) != 1:
            self._refuse("it is not one expression")
        if nodes[0]["from_table"]["type"] != "EMPTY" or any(nodes[0].get(each) for each in others):
            self._refuse("it is more than an expression")
        return nodes[0]["select_list"][0]

    def _check(self, node: dict[str, Any]) -> None:
        """Raise UsageError if a syntax tree's node is not allowed; if it names a column, add this to ``columns``."""
        kind = node["class"]
        if kind not in _KINDS:
            self._refuse(f"a {kind.lower()} is not an expression over a record's columns")
        if kind == "FUNCTION":
            name = node["function_name"].lower()
            if name not in _FUNCTIONS or node["catalog"]:
                self._refuse(f"the function {name!r} is not allowed; docs/sampling.md leads to the list of functions")
            # DuckDB parses ``caption.lower()`` as the function ``lower`` in the schema "caption", so a schema is really
            # a column's name. Only "main" is not: DuckDB 1 states it where its parser turns other syntax into a
            # function.
            if node["schema"] not in ("", "main"):
                self._use([node["schema"]])
        elif kind == "COLUMN_REF":
            self._use(node["column_names"])
        elif kind in ("CAST", "TYPE"):
            for name in _type_names(node):
                if name.lower() not in _TYPES:
                    self._refuse(f"the type {name} is not allowed; docs/sampling.md leads to the list of types")

    def _use(self, path: list[str]) -> None:
        (*qualified, name) = path
        found = [each for each in self._names if each == name] or [
            each for each in self._names if each.lower() == name.lower()
        ]
        if qualified or not found:
            self._refuse(f"there is no column {'.'.join(path)!r}")
        if len(found) > 1:
            self._refuse(f"{name!r} may be each of the columns {', '.join(found)}")
        if found[0] not in self.columns:
            self.columns.append(found[0])

    def _refuse(self, reason: str, cause: Exception | None = None) -> NoReturn:
        given = f"{self.text[:200]}…" if len(self.text) > 200 else self.text
        text = f"the condition {given!r} is refused: {reason}; columns are {', '.join(self._names)}"
        raise UsageError(text) from cause


def _type_names(node: dict[str, Any]) -> Iterator[str]:
    """Yield the type names in a node: DuckDB 1 has them in ``cast_type`` of a cast, DuckDB 2 in nodes of class TYPE."""
    if "type_name" in node:
        yield node["type_name"]
    yield from (each["id"] for each in _objects(node.get("cast_type")) if "id" in each)


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting.extend(each)
        elif isinstance(each, dict):
            waiting.extend(each.values())
            yield each


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
