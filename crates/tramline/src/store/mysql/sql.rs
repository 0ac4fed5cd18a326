//! Values as SQL text, and rows as values.
//!
//! Statements go as text and not prepared, because only so can many of them share a round trip. Every value is a number or a string of
//! hexadecimal digits: nothing has to be escaped, whatever the server's mode and character set.

use crate::error::Result;
use crate::model::time::Time;
use sqlx::Row;
use sqlx::mysql::MySqlRow;
use std::fmt::Write;

/// How many values one list has at most: longer ones are cut into several statements.
pub(super) const LIST: usize = 500;

/// The server's time in milliseconds, whatever the session's time zone. It stands still during a statement.
pub(super) const NOW: &str = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000";

/// Bytes.
pub(super) fn bytes(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2 + 3);
    text.push_str("x'");
    push_digits(bytes, &mut text);
    text.push('\'');
    text
}

fn digits(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    push_digits(bytes, &mut text);
    text
}

fn push_digits(bytes: &[u8], text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// A text.
pub(super) fn text(text: &str) -> String {
    bytes(text.as_bytes())
}

/// A text, or NULL.
pub(super) fn maybe_text(value: Option<&str>) -> String {
    value.map_or_else(null, text)
}

/// Bytes, or NULL.
pub(super) fn maybe_bytes(value: Option<&[u8]>) -> String {
    value.map_or_else(null, bytes)
}

/// A number, or NULL.
pub(super) fn maybe(value: Option<i64>) -> String {
    value.map_or_else(null, |number| number.to_string())
}

/// A time, or NULL.
pub(super) fn maybe_time(value: Option<Time>) -> String {
    maybe(value.map(|time| time.0))
}

fn null() -> String {
    "NULL".to_owned()
}

/// Numbers with commas between them, for `IN`; NULL, which is equal to nothing, where there are none.
pub(super) fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    join(numbers.into_iter().map(|number| number.to_string()))
}

/// Texts with commas between them, for `IN`.
pub(super) fn texts<'a>(all: impl IntoIterator<Item = &'a str>) -> String {
    join(all.into_iter().map(text))
}

/// What is there, with commas between; NULL if there is nothing.
pub(super) fn join(mut all: impl Iterator<Item = String>) -> String {
    let Some(mut text) = all.next() else { return null() };
    for one in all {
        text.push(',');
        text.push_str(&one);
    }
    text
}

/// Numbers as a table `n (a)`, for `STRAIGHT_JOIN`: each is looked up by itself, in this order.
///
/// Not `IN`, where rows are to be locked: for a list the servers may read all rows that share the beginning of a key, and a statement
/// that locks waits for every row that it reads. The inner SELECT is for MySQL, which cannot lock beside a bare JSON_TABLE.
pub(super) fn numbered(numbers: impl IntoIterator<Item = i64>) -> String {
    let numbers: Vec<i64> = numbers.into_iter().collect();
    // One is common, and a JSON document would take most of the time of its statement.
    if let [a] = numbers[..] {
        return format!("(SELECT {a} AS a) n");
    }
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    table("j.a", &quoted(&numbers.join(",")), "a BIGINT PATH '$'")
}

/// The same of a variable that has them with commas between, or NULL: one statement finds what the next one looks up.
pub(super) fn numbered_by(variable: &str) -> String {
    table("j.a", &format!("CONCAT('[', COALESCE({variable}, ''), ']')"), "a BIGINT PATH '$'")
}

/// Pairs of numbers as a table `n (a, b)`. Not alternatives either: it takes MariaDB 50 ms to make up its mind about 500 of them.
pub(super) fn paired(pairs: impl IntoIterator<Item = (i64, i64)>) -> String {
    let pairs: Vec<(i64, i64)> = pairs.into_iter().collect();
    if let [(a, b)] = pairs[..] {
        return format!("(SELECT {a} AS a, {b} AS b) n");
    }
    let pairs: Vec<String> = pairs.into_iter().map(|(a, b)| format!("[{a},{b}]")).collect();
    table("j.a, j.b", &quoted(&pairs.join(",")), "a BIGINT PATH '$[0]', b BIGINT PATH '$[1]'")
}

/// Rows of four numbers as a table `n (a, b, c, d)`.
pub(super) fn fours(rows: &[[i64; 4]]) -> String {
    if let [[a, b, c, d]] = rows {
        return format!("(SELECT {a} AS a, {b} AS b, {c} AS c, {d} AS d) n");
    }
    let rows: Vec<String> = rows.iter().map(|[a, b, c, d]| format!("[{a},{b},{c},{d}]")).collect();
    let columns = "a BIGINT PATH '$[0]', b BIGINT PATH '$[1]', c BIGINT PATH '$[2]', d BIGINT PATH '$[3]'";
    table("j.a, j.b, j.c, j.d", &quoted(&rows.join(",")), columns)
}

/// Numbers and texts as a table `n (a, b)`.
pub(super) fn named<'a>(pairs: impl IntoIterator<Item = (i64, &'a str)>) -> String {
    let pairs: Vec<(i64, &str)> = pairs.into_iter().collect();
    if let [(a, b)] = pairs[..] {
        return format!("(SELECT {a} AS a, {} AS b) n", text(b));
    }
    let pairs: Vec<String> =
        pairs.into_iter().map(|(a, b)| format!("[{a},\"{}\"]", digits(b.as_bytes()))).collect();
    let columns = "a BIGINT PATH '$[0]', b VARCHAR(2048) PATH '$[1]'";
    table("j.a, UNHEX(j.b) AS b", &quoted(&pairs.join(",")), columns)
}

fn quoted(rows: &str) -> String {
    format!("'[{rows}]'")
}

fn table(select: &str, rows: &str, columns: &str) -> String {
    format!("(SELECT {select} FROM JSON_TABLE({rows}, '$[*]' COLUMNS ({columns})) j) n")
}

/// A condition on two columns, for few pairs. Neither server makes good use of `(a, b) IN (..)`.
pub(super) fn pairs(columns: (&str, &str), pairs: impl IntoIterator<Item = (i64, i64)>) -> String {
    let mut text = String::new();
    for (a, b) in pairs {
        let or = if text.is_empty() { "(" } else { " OR " };
        let _ = write!(text, "{or}{} = {a} AND {} = {b}", columns.0, columns.1);
    }
    if text.is_empty() { "FALSE".to_owned() } else { text + ")" }
}

/// Statements that insert rows, or write those that exist: `head` up to `VALUES`, `tail` behind the rows. As many as keep each below what
/// a packet may have.
pub(super) fn insert(head: &str, rows: impl Iterator<Item = String>, tail: &str, most: usize) -> Vec<String> {
    let mut statements: Vec<String> = Vec::new();
    let mut text = String::new();
    for row in rows {
        if !text.is_empty() && text.len() + row.len() + tail.len() > most {
            statements.push(std::mem::take(&mut text) + tail);
        }
        text.push_str(if text.is_empty() { head } else { "," });
        text.push_str(&row);
    }
    if !text.is_empty() {
        statements.push(text + tail);
    }
    statements
}

/// The tail of an insert that writes these columns of rows that exist.
pub(super) fn overwrite(columns: &[&str]) -> String {
    let set = columns.iter().map(|column| format!("{column} = VALUES({column})"));
    format!(" ON DUPLICATE KEY UPDATE {}", join(set))
}

/// Reads columns by their place. Text rows carry no types worth checking.
pub(super) trait Columns {
    fn int(&self, at: usize) -> Result<i64>;
    fn maybe_int(&self, at: usize) -> Result<Option<i64>>;
    fn text(&self, at: usize) -> Result<String>;
    fn maybe_text(&self, at: usize) -> Result<Option<String>>;
    fn blob(&self, at: usize) -> Result<Vec<u8>>;
    fn maybe_blob(&self, at: usize) -> Result<Option<Vec<u8>>>;

    fn flag(&self, at: usize) -> Result<bool> {
        Ok(self.int(at)? != 0)
    }

    /// A number that is never negative.
    fn count(&self, at: usize) -> Result<u64> {
        Ok(self.int(at)?.cast_unsigned())
    }

    fn small(&self, at: usize) -> Result<i16> {
        Ok(self.int(at)? as i16)
    }

    fn time(&self, at: usize) -> Result<Time> {
        self.int(at).map(Time)
    }
}

impl Columns for MySqlRow {
    fn int(&self, at: usize) -> Result<i64> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn maybe_int(&self, at: usize) -> Result<Option<i64>> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn text(&self, at: usize) -> Result<String> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn maybe_text(&self, at: usize) -> Result<Option<String>> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn blob(&self, at: usize) -> Result<Vec<u8>> {
        Ok(self.try_get_unchecked(at)?)
    }

    fn maybe_blob(&self, at: usize) -> Result<Option<Vec<u8>>> {
        Ok(self.try_get_unchecked(at)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_text_holds_it_is_digits_in_a_statement() {
        assert_eq!(text("a'\\\0\u{e9}"), "x'61275c00c3a9'");
        assert_eq!(maybe_text(None), "NULL");
    }

    #[test]
    fn an_empty_list_is_equal_to_nothing() {
        assert_eq!(list([]), "NULL");
        assert_eq!(list([1, -2]), "1,-2");
        assert_eq!(pairs(("a", "b"), []), "FALSE");
        assert_eq!(pairs(("a", "b"), [(1, 2), (3, 4)]), "(a = 1 AND b = 2 OR a = 3 AND b = 4)");
    }

    #[test]
    fn lists_to_be_joined_are_numbers_and_digits() {
        assert!(numbered([1, -2]).contains("JSON_TABLE('[1,-2]'"));
        assert!(paired([(1, 2), (3, 4)]).contains("JSON_TABLE('[[1,2],[3,4]]'"));
        assert!(fours(&[[1, 2, 3, -4], [5, 6, 7, 8]]).contains("JSON_TABLE('[[1,2,3,-4],[5,6,7,8]]'"));
        assert_eq!(numbered([7]), "(SELECT 7 AS a) n");
        assert_eq!(paired([(7, -8)]), "(SELECT 7 AS a, -8 AS b) n");
        assert_eq!(fours(&[[7, -8, 9, 0]]), "(SELECT 7 AS a, -8 AS b, 9 AS c, 0 AS d) n");
        assert_eq!(named([(7, "a'")]), "(SELECT 7 AS a, x'6127' AS b) n");
        let two = named([(1, "a'"), (2, "b")]);
        assert!(two.contains("UNHEX(j.b) AS b FROM JSON_TABLE('[[1,\"6127\"],[2,\"62\"]]'"));
    }

    #[test]
    fn an_insert_is_cut_before_it_is_too_long_and_never_inside_a_row() {
        let rows = || ["(1)", "(2)", "(3)"].into_iter().map(str::to_owned);
        assert_eq!(insert("I ", rows(), ";", 100), ["I (1),(2),(3);"]);
        assert_eq!(insert("I ", rows(), ";", 9), ["I (1),(2);", "I (3);"]);
        assert_eq!(insert("I ", rows(), ";", 1), ["I (1);", "I (2);", "I (3);"]);
        assert!(insert("I ", std::iter::empty(), ";", 9).is_empty());
    }
}
