//! `tramline emit --ndjson`: events by the line.
//!
//! A thread reads ahead. What has been read goes out in one request, at most 1,024 lines: a fast source fills them, a slow one does
//! not wait. Each request has an idempotency key of its own, so that it can be repeated when its answer is lost.

use super::Cx;
use super::emit::{About, event_line};
use super::failure::{Exit, Failure};
use super::outage::Outage;
use indicatif::{ProgressBar, ProgressStyle};
use reqwest::Method;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// The lines of one request: what the server stores as one.
const LINES: usize = 1024;
/// About how large a request becomes at most.
const BYTES: usize = 1 << 20;
/// How often a request is sent before the command gives up.
const TRIES: u32 = 6;
const ANSWER: Duration = Duration::from_secs(60);

/// Many events for one topic.
pub(super) struct Many {
    pub(super) topic: String,
    /// Where they come from; `-` is standard input.
    pub(super) file: PathBuf,
    /// The lines are payloads, and this is said of all of them.
    pub(super) about: Option<About>,
    pub(super) from_line: u64,
}

/// A line and its number, from 1.
struct Line(u64, std::io::Result<String>);

/// What goes out in one request.
#[derive(Default)]
struct Batch {
    body: String,
    /// The number of each line in it.
    numbers: Vec<u64>,
}

/// Sends all lines.
pub(super) async fn run(cx: Cx, many: Many) -> Result<(), Failure> {
    let (reader, size) = open(&many.file)?;
    let bar = progress(size);
    let mut lines = read_ahead(reader, many.from_line);
    let run = getrandom::u64().map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
    let mut emitted = 0;
    while let Some(batch) = next_batch(&mut lines, many.about.as_ref()).await? {
        let answer = send(&cx, &many.topic, run, &batch).await?;
        emitted += batch.numbers.len();
        bar.inc(if size.is_some() { batch.body.len() as u64 } else { batch.numbers.len() as u64 });
        receipts(&cx, &answer)?;
    }
    bar.finish_and_clear();
    if cx.print.json() { Ok(()) } else { cx.print.text(&json!(emitted).to_string()) }
}

fn open(file: &Path) -> Result<(Box<dyn BufRead + Send>, Option<u64>), Failure> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(BufReader::new(std::io::stdin())), None));
    }
    let opened = File::open(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    let size = opened.metadata().ok().map(|about| about.len());
    Ok((Box::new(BufReader::new(opened)), size))
}

/// Shown only to a person.
fn progress(size: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, style) = match size {
        Some(size) => (ProgressBar::new(size), "{bar:40} {bytes} of {total_bytes}, {eta} left"),
        None => (ProgressBar::no_length(), "{spinner} {human_pos} events, {per_sec}"),
    };
    bar.with_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The lines that are not empty. The thread ends with the input, or when nobody wants more.
fn read_ahead(reader: Box<dyn BufRead + Send>, from_line: u64) -> Receiver<Line> {
    let (to, lines) = channel(4 * LINES);
    std::thread::spawn(move || read_lines(reader, from_line, &to));
    lines
}

fn read_lines(reader: Box<dyn BufRead + Send>, from_line: u64, to: &Sender<Line>) {
    for (line, number) in reader.lines().zip(1..) {
        let ended = line.is_err();
        let wanted = number >= from_line && line.as_ref().map_or(true, |line| !line.trim().is_empty());
        if (wanted && to.blocking_send(Line(number, line)).is_err()) || ended {
            return;
        }
    }
}

/// Waits for a line, and takes what else is there already.
async fn next_batch(lines: &mut Receiver<Line>, about: Option<&About>) -> Result<Option<Batch>, Failure> {
    let mut batch = Batch::default();
    let mut next = lines.recv().await;
    while let Some(line) = next {
        batch.add(line, about)?;
        if batch.numbers.len() == LINES || batch.body.len() >= BYTES {
            break;
        }
        next = lines.try_recv().ok();
    }
    Ok((!batch.numbers.is_empty()).then_some(batch))
}

impl Batch {
    fn add(&mut self, Line(number, text): Line, about: Option<&About>) -> Result<(), Failure> {
        let go_on_at = self.numbers.first().copied().unwrap_or(number);
        let wrong = |why: String| go_on(number, go_on_at, Failure::new(Exit::Failed, why));
        let text = text.map_err(|error| wrong(error.to_string()))?;
        match about {
            None => self.body += &text,
            Some(about) => {
                self.body +=
                    &event_line(&text, about).map_err(|error| wrong(format!("not JSON: {error}")))?;
            }
        }
        self.body.push('\n');
        self.numbers.push(number);
        Ok(())
    }

    /// The number in the input of a line of this batch, counted from 1.
    fn number(&self, line: u64) -> u64 {
        let at = usize::try_from(line.saturating_sub(1)).unwrap_or(usize::MAX);
        self.numbers.get(at).or(self.numbers.first()).copied().unwrap_or(line)
    }
}

async fn send(cx: &Cx, topic: &str, run: u64, batch: &Batch) -> Result<Value, Failure> {
    let url = cx.client.url(&["v1", "topics", topic, "events"])?;
    let key = format!("emit-{run:016x}-{}", batch.number(1));
    let mut outage = Outage::default();
    loop {
        let request = cx.client.request(Method::POST, url.clone()).timeout(ANSWER);
        let request = request.header("content-type", "application/x-ndjson").header("idempotency-key", &key);
        let failure = match cx.client.answer(request.body(batch.body.clone())).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        if failure.again.is_none() || outage.failures() + 1 == TRIES {
            let refused = failure.line.map_or(batch.number(1), |line| batch.number(line));
            return Err(go_on(refused, batch.number(1), failure));
        }
        outage.wait(failure).await?;
    }
}

/// Which line it was, and where to begin when it is mended.
fn go_on(refused: u64, from: u64, mut failure: Failure) -> Failure {
    failure.message = format!("line {refused}: {}", failure.message);
    let before = failure.remedy.map(|remedy| remedy + "; ").unwrap_or_default();
    failure.remedy =
        Some(format!("{before}all lines before {from} are stored: go on with --from-line {from}"));
    failure
}

fn receipts(cx: &Cx, answer: &Value) -> Result<(), Failure> {
    let events = answer["events"].as_array().map_or(&[][..], Vec::as_slice);
    if cx.print.json() { cx.print.items(events, &[]) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn batches(input: String, from_line: u64) -> Vec<Batch> {
        let (to, mut lines) = channel(4 * LINES);
        let reader = Box::new(std::io::Cursor::new(input));
        tokio::task::spawn_blocking(move || read_lines(reader, from_line, &to)).await.unwrap();
        let mut batches = Vec::new();
        while let Some(batch) = next_batch(&mut lines, None).await.unwrap() {
            batches.push(batch);
        }
        batches
    }

    #[tokio::test]
    async fn lines_are_cut_into_requests_of_1024() {
        let batches = batches("{}\n".repeat(2500), 1).await;
        let sizes: Vec<usize> = batches.iter().map(|batch| batch.numbers.len()).collect();
        assert_eq!(sizes, [1024, 1024, 452]);
        assert_eq!(batches[1].number(1), 1025);
    }

    #[tokio::test]
    async fn large_lines_fill_a_request_sooner() {
        let line = format!("\"{}\"\n", "x".repeat(BYTES / 2));
        assert_eq!(batches(line.repeat(5), 1).await.len(), 3);
    }

    #[tokio::test]
    async fn empty_lines_are_skipped_and_still_counted() {
        let batches = batches("1\n\n  \n4\n5\n".to_owned(), 2).await;
        assert_eq!(batches[0].numbers, [4, 5]);
        assert_eq!(batches[0].number(2), 5);
    }

    #[test]
    fn a_refused_line_is_named_with_where_to_go_on() {
        let failure = go_on(7, 3, Failure::new(Exit::Failed, "no payload").remedy("add one"));
        let expected =
            "line 7: no payload\n  add one; all lines before 3 are stored: go on with --from-line 3";
        assert_eq!(failure.to_string(), expected);
    }
}
