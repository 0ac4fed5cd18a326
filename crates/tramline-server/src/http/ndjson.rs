//! Streams of events, one per line: stored in groups as they come, so that a stream may be as long as it likes.

use crate::http::app::App;
use crate::http::body::Reader;
use crate::http::caller::Caller;
use crate::http::emit::{self, EmittedOut, Read, Receipts};
use crate::http::json::json_response;
use crate::http::problem::{Answer, Problem};
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use bytes::{Bytes, BytesMut};

/// So many lines are stored together or not at all.
const GROUP: usize = 1_024;
/// A group is also full when its lines weigh this much.
pub(crate) const GROUP_BYTES: usize = 8 << 20;
/// How many receipts an answer lists; a longer stream is answered with its last ones.
const MOST_RECEIPTS: usize = 100_000;

/// Emits all lines. The answer to a bad line says how many events were stored before it.
pub(crate) async fn emit(
    app: &App,
    caller: &Caller,
    topic: &str,
    headers: &HeaderMap,
    body: Body,
) -> Answer<Response> {
    let mut reader = Reader::new(headers, body, &app.bodies)?;
    let idempotency_key = emit::text(headers, "idempotency-key")?;
    let mut stream = Stream { idempotency_key, ..Stream::new(app, caller, topic, headers) };
    let mut lines = Lines::new(emit::longest_line(app.config.max_payload));
    loop {
        let piece = reader.next().await.map_err(|problem| stream.stopped(problem))?;
        let last = piece.is_none();
        match piece {
            Some(piece) => lines.push(&piece),
            None => lines.end(),
        }
        while let Some(line) = lines.next().map_err(|problem| stream.stopped(problem))? {
            stream.line(line).await?;
        }
        let kept = reader.keep(lines.rest.len() + stream.bytes);
        kept.map_err(|problem| stream.stopped(problem))?;
        if last {
            stream.flush().await?;
            let answer = Receipts { events: stream.receipts };
            return Ok(json_response(StatusCode::CREATED, serde_json::to_vec(&answer)?));
        }
    }
}

/// What has come of a stream so far.
struct Stream<'a> {
    app: &'a App,
    caller: &'a Caller,
    topic: &'a str,
    headers: &'a HeaderMap,
    idempotency_key: Option<&'a str>,
    group: Vec<Read>,
    bytes: usize,
    /// The number of the line that is being read, and of the first one of the group.
    line: u64,
    group_line: u64,
    groups: u64,
    stored: u64,
    receipts: Vec<EmittedOut>,
}

impl<'a> Stream<'a> {
    fn new(app: &'a App, caller: &'a Caller, topic: &'a str, headers: &'a HeaderMap) -> Stream<'a> {
        Stream {
            app,
            caller,
            topic,
            headers,
            idempotency_key: None,
            group: Vec::new(),
            bytes: 0,
            line: 0,
            group_line: 1,
            groups: 0,
            stored: 0,
            receipts: Vec::new(),
        }
    }

    async fn line(&mut self, line: Bytes) -> Answer<()> {
        self.line += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let read = self.read(&line).await;
        if self.group.is_empty() {
            self.group_line = self.line;
        }
        self.bytes += line.len();
        self.group.push(read.map_err(|problem| problem.at_line(self.line, self.stored))?);
        if self.group.len() == GROUP || self.bytes >= GROUP_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn read(&self, line: &Bytes) -> Answer<Read> {
        let read = emit::event(self.topic, line, self.app.config.max_payload)?;
        // Where a group ends is not for the client to know, and its main event might be in the one before.
        if read.is_sub {
            return Err(Problem::invalid(
                "a sub-event cannot come in a stream of lines",
                "emit it in one array with its main event",
            ));
        }
        read.check(self.app, self.caller).await?;
        Ok(read)
    }

    /// Stores the group.
    async fn flush(&mut self) -> Answer<()> {
        if self.group.is_empty() {
            return Ok(());
        }
        self.bytes = 0;
        let group = std::mem::take(&mut self.group).into_iter();
        let (mut events, keys): (Vec<_>, Vec<_>) = group.map(|read| (read.event, read.key)).unzip();
        if let Some(key) = self.idempotency_key {
            // Every group has a key of its own, so that repeating the stream repeats none of them.
            let key = if self.groups == 0 { key.to_owned() } else { format!("{key}/{}", self.groups) };
            events[0] = events[0].clone().idempotency_key(key);
        }
        self.groups += 1;
        let count = events.len() as u64;
        let started = tokio::time::Instant::now();
        let stored = emit::store(self.app, self.topic, self.headers, events).await;
        let receipt = stored.map_err(|problem| problem.at_line(self.group_line, self.stored))?;
        self.app.metrics.emit_seconds.observe(self.topic, started.elapsed());
        self.stored += count;
        if self.receipts.len() + keys.len() > MOST_RECEIPTS {
            self.receipts.clear();
        }
        self.receipts.extend(emit::receipts(receipt, keys));
        Ok(())
    }

    /// The problem with where the stream stopped. Lines of a group that is not full are not stored.
    fn stopped(&self, problem: Problem) -> Problem {
        problem.at_line(self.line + 1, self.stored)
    }
}

/// Cuts pieces into lines.
struct Lines {
    rest: BytesMut,
    /// Up to here there is no end of a line.
    seen: usize,
    longest: usize,
    ended: bool,
}

impl Lines {
    fn new(longest: usize) -> Lines {
        Lines { rest: BytesMut::new(), seen: 0, longest, ended: false }
    }

    fn push(&mut self, piece: &[u8]) {
        self.rest.extend_from_slice(piece);
    }

    fn end(&mut self) {
        self.ended = true;
    }

    fn next(&mut self) -> Answer<Option<Bytes>> {
        let found = self.rest[self.seen..].iter().position(|byte| *byte == b'\n');
        let length = found.map_or(self.rest.len(), |at| self.seen + at);
        if length > self.longest {
            return Err(Problem::too_large(self.longest));
        }
        match found {
            Some(_) => {
                self.seen = 0;
                let mut line = self.rest.split_to(length + 1).freeze();
                line.truncate(length);
                Ok(Some(line))
            }
            None if self.ended && !self.rest.is_empty() => {
                self.seen = 0;
                Ok(Some(self.rest.split().freeze()))
            }
            None => {
                self.seen = self.rest.len();
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_wherever_the_pieces_are_cut() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..=text.len() {
            let mut lines = Lines::new(100);
            let mut found = Vec::new();
            for piece in text.chunks(size) {
                lines.push(piece);
                while let Some(line) = lines.next().unwrap() {
                    found.push(line);
                }
            }
            lines.end();
            while let Some(line) = lines.next().unwrap() {
                found.push(line);
            }
            assert_eq!(found, ["one", "", "two", "three"], "pieces of {size}");
        }
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut lines = Lines::new(10);
        lines.push(&[b'x'; 11]);
        assert_eq!(lines.next().unwrap_err().status(), 413);
    }
}
