//! Printing: tables for people, tab-separated lines for pipes, JSON for programs.

use super::failure::Failure;
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// Standard output, and what it is good for.
#[derive(Clone, Copy)]
pub(crate) struct Printer {
    json: bool,
    terminal: bool,
}

/// A title and how a cell of its column is made from an item.
pub(crate) type Column = (&'static str, fn(&Value) -> String);

impl Printer {
    /// For the standard output of this process.
    pub(crate) fn new(json: bool) -> Printer {
        Printer { json, terminal: std::io::stdout().is_terminal() }
    }

    /// True when JSON was asked for.
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// True when a person is looking.
    pub(crate) fn terminal(&self) -> bool {
        self.terminal && !self.json
    }

    /// One item: as JSON, or as the text that `text` makes of it.
    pub(crate) fn item(&self, item: &Value, text: impl FnOnce(&Value) -> String) -> Result<(), Failure> {
        if self.json { self.text(&item.to_string()) } else { self.text(&text(item)) }
    }

    /// Items, one per line, in columns.
    pub(crate) fn items(&self, items: &[Value], columns: &[Column]) -> Result<(), Failure> {
        if self.json {
            return items.iter().try_for_each(|item| self.text(&item.to_string()));
        }
        let rows: Vec<Vec<String>> =
            items.iter().map(|item| columns.iter().map(|(_, cell)| clean(&cell(item))).collect()).collect();
        if !self.terminal {
            return rows.iter().try_for_each(|row| self.text(&row.join("\t")));
        }
        if rows.is_empty() {
            return self.text("none");
        }
        let titles: Vec<String> = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        let lines = aligned(&titles, &rows);
        self.text(&bold(&lines[0]))?;
        lines[1..].iter().try_for_each(|line| self.text(line))
    }

    /// One item with many fields, one per line; those that it does not have are left out.
    pub(crate) fn fields(&self, item: &Value, names: &[&str]) -> Result<(), Failure> {
        if self.json {
            return self.text(&item.to_string());
        }
        for name in names.iter().filter(|name| item.get(**name).is_some()) {
            let line = format!("{name}: {}", clean(&cell(&item[*name])));
            self.text(&if self.terminal() { line.replacen(name, &bold(name), 1) } else { line })?;
        }
        Ok(())
    }

    /// Lines of text as they are.
    pub(crate) fn text(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        written(writeln!(out, "{}", text.trim_end_matches('\n')).and_then(|()| out.flush()))
    }
}

/// A reader that has seen enough, like `head`, ends a command quietly and with success.
fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}

/// Titles and rows with every column as wide as its widest cell.
fn aligned(titles: &[String], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([titles[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..titles.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    std::iter::once(line(titles)).chain(rows.iter().map(|row| line(row))).collect()
}

/// A value in a cell: texts without quotes, lists with commas, nothing as a dash.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(all) if all.is_empty() => "-".to_owned(),
        Value::Array(all) => all.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

/// A number of milliseconds as people say it.
pub(crate) fn duration(value: &Value) -> String {
    match value.as_u64() {
        Some(millis) => humantime::format_duration(std::time::Duration::from_millis(millis)).to_string(),
        None => cell(value),
    }
}

/// Text of strangers, safe to show: control characters would move the cursor or break a line in two.
pub(crate) fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { clean.extend(c.escape_default()) } else { clean.push(c) }
    }
    clean
}

/// Emphasis on a terminal, unless the user wants none.
pub(crate) fn bold(text: &str) -> String {
    paint(text, "1")
}

/// A colour on a terminal, as the number of its escape sequence.
pub(crate) fn paint(text: &str, style: &str) -> String {
    if !wants_colours() {
        return text.to_owned();
    }
    format!("\x1b[{style}m{text}\x1b[0m")
}

/// False if the user wants no colours at all.
pub(crate) fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let lines = aligned(&row(["NAME", "N"]), &[row(["é", "1"]), row(["longer", "22"])]);
        assert_eq!(lines, ["NAME    N", "é       1", "longer  22"]);
    }

    #[test]
    fn values_are_shown_without_quotes() {
        let values = json!([null, "a", 1, ["x", "y"], true]);
        let shown: Vec<String> = values.as_array().unwrap().iter().map(cell).collect();
        assert_eq!(shown, ["-", "a", "1", "x,y", "true"]);
        assert_eq!(duration(&json!(90_000)), "1m 30s");
    }

    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        assert_eq!(clean("a\x1b[2J\nb\tc"), "a\\u{1b}[2J\\nb\\tc");
    }
}
