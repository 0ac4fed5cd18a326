//! A command that is run for each event, by a worker of this library or by `tramline work`.

use crate::model::outcome::Outcome;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::process::{Child, Command};

/// Runs a command for each event: payload on standard input, the rest in variables `TRAMLINE_*`. Exit code 0 is done, 75 (the
/// customary "temporary failure") is tried later without counting, everything else is a failure whose text is the last line of
/// standard error. The command is killed with all that it started when the event is cancelled or takes too long.
#[derive(Clone, Debug)]
pub struct ShellCommand {
    program: String,
    arguments: Vec<String>,
    later: Duration,
    output: Output,
}

/// Where the output of a command goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// Nowhere. The end of standard error is still the text of a failure.
    #[default]
    Hidden,
    /// Where the output of this process goes.
    Shown,
    /// To the standard error of this process, whose standard output is for something else.
    Aside,
}

/// How much of standard error is kept; the rest is read and forgotten, so that the command is not blocked.
const MAX_KEPT: usize = 4 << 10;
const TEMPORARY_FAILURE: i32 = 75;
/// What a command said has arrived when it ends; a process that it left behind may keep its standard error open for ever.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// What an event may lack. A command must not take over what the environment of this process says of another event.
const OPTIONAL: [&str; 4] = ["key", "prev", "skipped", "replayed"];

impl ShellCommand {
    /// Runs a program with arguments; no shell reads them.
    pub fn new<A: Into<String>>(
        program: impl Into<String>,
        arguments: impl IntoIterator<Item = A>,
    ) -> ShellCommand {
        ShellCommand {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            later: Duration::from_secs(60),
            output: Output::Hidden,
        }
    }

    /// How long exit code 75 makes the event wait (60 s unless set).
    #[must_use]
    pub fn later(mut self, delay: Duration) -> ShellCommand {
        self.later = delay;
        self
    }

    /// Where the command's output goes (nowhere unless set).
    #[must_use]
    pub fn output(mut self, output: Output) -> ShellCommand {
        self.output = output;
        self
    }

    /// Runs the command once, with `input` on its standard input and each of `details` in the variable [`variable`] names.
    /// `None` when `stop` came first: the command is killed then, as it is when this future is dropped.
    pub async fn execute(
        &self,
        input: &[u8],
        details: &[(String, String)],
        stop: impl Future<Output = ()>,
    ) -> Option<Outcome> {
        let mut child = match self.command(details).spawn() {
            Ok(child) => child,
            Err(error) => return Some(self.not_run(&error)),
        };
        let mut group = Group::of(&child);
        tokio::select! {
            ended = self.attend(&mut child, input) => {
                group.ended();
                Some(match ended {
                    Ok((status, said)) => self.judge(status, &said),
                    Err(error) => self.not_run(&error),
                })
            }
            () = stop => {
                drop(group);
                if let Err(error) = child.kill().await {
                    tracing::warn!(error = %error, "a command could not be killed");
                }
                None
            }
        }
    }

    fn command(&self, details: &[(String, String)]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command.stdout(match self.output {
            Output::Hidden => Stdio::null(),
            Output::Shown => Stdio::inherit(),
            Output::Aside => Stdio::from(std::io::stderr()),
        });
        #[cfg(unix)]
        command.process_group(0);
        let inherited = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for name in inherited.filter(|name| name.starts_with("TRAMLINE_HEADER_")) {
            command.env_remove(name);
        }
        for name in OPTIONAL {
            command.env_remove(variable(name));
        }
        command.envs(details.iter().map(|(name, value)| (variable(name), value.replace('\0', " "))));
        command
    }

    /// Feeds the command, listens to it and waits for its end.
    async fn attend(&self, child: &mut Child, input: &[u8]) -> std::io::Result<(ExitStatus, Vec<u8>)> {
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let mut said = Vec::new();
        let status = {
            let talk = async {
                tokio::join!(feed(stdin, input), listen(stderr, &mut said, self.output != Output::Hidden))
            };
            let mut talk = std::pin::pin!(talk);
            let ended = tokio::select! {
                _ = &mut talk => None,
                status = child.wait() => Some(status?),
            };
            match ended {
                None => child.wait().await?,
                Some(status) => {
                    let _ = tokio::time::timeout(LAST_WORDS, talk).await;
                    status
                }
            }
        };
        Ok((status, said))
    }

    fn judge(&self, status: ExitStatus, said: &[u8]) -> Outcome {
        if status.success() {
            return Outcome::Done;
        }
        if status.code() == Some(TEMPORARY_FAILURE) {
            return Outcome::Snooze { delay: self.later };
        }
        let said = String::from_utf8_lossy(said);
        match said.lines().rev().find(|line| !line.trim().is_empty()) {
            Some(line) => Outcome::retry(format!("{status}: {}", line.trim())),
            None => Outcome::retry(status.to_string()),
        }
    }

    fn not_run(&self, error: &std::io::Error) -> Outcome {
        Outcome::retry(format!("{} could not be run: {error}", self.program))
    }
}

/// The variable that tells a command a detail of its event: `key` is in `TRAMLINE_KEY`, `header_trace-id` in
/// `TRAMLINE_HEADER_TRACE_ID`.
pub fn variable(detail: &str) -> String {
    let word = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    format!("TRAMLINE_{}", detail.chars().map(word).collect::<String>())
}

/// A command may end without reading; that is its own decision.
async fn feed(stdin: Option<impl AsyncWrite + Unpin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(input).await;
    }
}

/// Reads all, passes it on if asked to, and keeps the end.
async fn listen(from: Option<impl AsyncRead + Unpin>, kept: &mut Vec<u8>, pass_on: bool) {
    let Some(mut from) = from else { return };
    let mut part = vec![0; 8 << 10];
    while let Ok(count @ 1..) = from.read(&mut part).await {
        if pass_on {
            let _ = std::io::Write::write_all(&mut std::io::stderr(), &part[..count]);
        }
        kept.extend_from_slice(&part[..count]);
        kept.drain(..kept.len().saturating_sub(MAX_KEPT));
    }
}

/// The processes of a running command. Dropped before the command has ended, it takes all of them along, not only the first.
struct Group(Option<u32>);

impl Group {
    fn of(child: &Child) -> Group {
        Group(child.id())
    }

    /// The number may belong to somebody else from now on.
    fn ended(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let Some(group) = self.0.and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn shell(script: &str) -> ShellCommand {
        ShellCommand::new("sh", ["-c", script])
    }

    #[test]
    fn details_become_names_of_variables() {
        assert_eq!(variable("event_id"), "TRAMLINE_EVENT_ID");
        assert_eq!(variable("header_trace-id"), "TRAMLINE_HEADER_TRACE_ID");
    }

    #[tokio::test]
    async fn a_process_left_behind_does_not_hold_its_command_up() {
        let ended = shell("sleep 1000 & echo left $! >&2; exit 3").execute(b"", &[], pending()).await;
        let Some(Outcome::Retry { error, .. }) = ended else { panic!("{ended:?}") };
        let (said, process) = error.rsplit_once(' ').unwrap();
        assert_eq!(said, "exit status: 3: left");
        let _ = std::process::Command::new("kill").arg(process).status();
    }

    #[tokio::test]
    async fn a_stopped_command_takes_along_what_it_started() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("alive");
        let script =
            format!("mkfifo {0}.new; mv {0}.new {0}; sh -c 'sleep 1000' > {0}; true", pipe.display());
        let (opened, reader) = tokio::sync::oneshot::channel();
        let stop = async {
            while !pipe.exists() {
                tokio::task::yield_now().await;
            }
            let pipe = pipe.clone();
            let file = tokio::task::spawn_blocking(move || std::fs::File::open(pipe)).await.unwrap().unwrap();
            opened.send(file).unwrap();
        };
        assert_eq!(shell(&script).execute(b"", &[], stop).await, None);
        // The inner process held the writing end: the file ends when it is gone, and not before.
        let written = std::io::read_to_string(reader.await.unwrap()).unwrap();
        assert_eq!(written, "");
    }
}
