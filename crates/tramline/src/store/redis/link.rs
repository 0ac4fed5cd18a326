//! The scripts, and what the errors of the server mean.

use super::connection::{Connection, code, was_not_done};
use super::options::RedisOptions;
use super::session::is_checked;
use crate::error::{Error, Kind, Result};
use crate::model::time::Time;
use redis::{Cmd, ErrorKind, RedisError, ServerErrorKind, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// How many fields of a hash are read together: a head may carry a state of any size.
const FIELDS: usize = 64;

/// The words of one Redis command.
pub(super) type Command = Vec<Vec<u8>>;

/// A script and its name.
struct Script {
    sha: String,
    text: &'static str,
}

/// A connection that comes back by itself. Cheap to clone.
#[derive(Clone)]
pub(super) struct Link {
    connection: Arc<Connection>,
    scripts: Arc<Scripts>,
}

struct Scripts {
    read: Script,
    commit: Script,
    claim: Script,
    renumber: Script,
    small: Script,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Link")
    }
}

/// How the writing of a step ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// It is written, and this is the time.
    Done(Micros),
    /// Something that it had read is different by now.
    Changed,
    /// It is somebody else's turn.
    Wait,
    /// The server did nothing: it is another one by now, or cannot serve.
    Refused(Error),
}

/// What became of a call that must not be repeated as it is.
enum Sent {
    Answered(Value),
    Refused(Error),
}

/// A time of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Micros(pub(super) i64);

impl Micros {
    pub(super) fn time(self) -> Time {
        Time(self.0 / 1000)
    }
}

/// What a moment of reading gave.
pub(super) struct Moment {
    pub(super) now: Micros,
    /// For each read its reply, and what that is known by when it is checked.
    pub(super) replies: Vec<(Value, Vec<u8>)>,
}

/// What a step has read and writes.
pub(super) struct Commit<'a> {
    /// Whose step it is, if it has the turn.
    pub(super) name: &'a [u8],
    /// Who has the turn.
    pub(super) turn: &'a [u8],
    /// A hash that is always there.
    pub(super) meta: &'a [u8],
    /// It is done on a server that is full, too.
    pub(super) when_full: bool,
    /// It is done only if nothing went wrong since this was so.
    pub(super) breaks: u64,
    /// Sorted, so that fields of one hash are read together.
    pub(super) reads: &'a [(&'a Command, &'a [u8])],
    pub(super) writes: &'a [Command],
}

impl Link {
    pub(super) async fn open(options: &RedisOptions) -> Result<Link> {
        crate::tls::prepare();
        let connection = Arc::new(Connection::open(options).await?);
        let scripts = Scripts {
            read: Script::new(include_str!("scripts/read.lua")),
            commit: Script::new(include_str!("scripts/commit.lua")),
            claim: Script::new(include_str!("scripts/claim.lua")),
            renumber: Script::new(include_str!("scripts/renumber.lua")),
            small: Script::new(include_str!("scripts/small.lua")),
        };
        Ok(Link { connection, scripts: Arc::new(scripts) })
    }

    /// Grows when something goes wrong.
    pub(super) fn breaks(&self) -> Arc<AtomicU64> {
        self.connection.breaks()
    }

    /// Reads at one moment. What only reads may be repeated.
    pub(super) async fn read(&self, key: &[u8], commands: &[Command]) -> Result<Moment> {
        let mut call = self.scripts.read.call(&[key]);
        let groups = || commands.chunk_by(of_one_hash).flat_map(|group| group.chunks(FIELDS));
        for group in groups() {
            add_together(&mut call, group.iter());
        }
        let Value::Array(answer) = self.repeatable(&self.scripts.read, &call).await? else {
            return Err(strange());
        };
        let mut answer = answer.into_iter();
        let now = micros(answer.next(), answer.next())?;
        let mut replies = Vec::with_capacity(commands.len());
        for group in groups() {
            // What did not fit into this moment is left out at the end.
            let (Some(reply), Some(digest)) = (answer.next(), answer.next()) else { break };
            match (group, reply, digest) {
                ([command], reply, _) if !is_checked(command) => replies.push((reply, Vec::new())),
                ([_], reply, Value::BulkString(digest)) => replies.push((reply, digest)),
                ([_], reply, _) => {
                    let sign = sign(&reply);
                    replies.push((reply, sign));
                }
                (_, Value::Array(fields), _) if fields.len() == group.len() => {
                    replies.extend(fields.into_iter().map(|field| {
                        let sign = sign(&field);
                        (field, sign)
                    }));
                }
                _ => return Err(strange()),
            }
        }
        Ok(Moment { now, replies })
    }

    /// Writes a step, if what it has read is still so. An error leaves open whether it happened, unless it says that nothing did.
    pub(super) async fn commit(&self, commit: &Commit<'_>) -> Result<Ended> {
        let mut call = self.scripts.commit.call(&[commit.turn, commit.meta]);
        let when_full = if commit.when_full { "full" } else { "" };
        let groups =
            || commit.reads.chunk_by(|(a, _), (b, _)| of_one_hash(a, b)).flat_map(|g| g.chunks(FIELDS));
        call.arg(commit.name).arg(self.connection.kind()).arg(when_full).arg(groups().count());
        for group in groups() {
            add_together(&mut call, group.iter().map(|(command, _)| *command));
            for (_, sign) in group {
                call.arg(sign);
            }
        }
        commit.writes.iter().for_each(|command| add(&mut call, command));
        let mut nothing = self.scripts.commit.call(&[commit.turn, commit.meta]);
        nothing.arg("").arg(self.connection.kind()).arg("").arg(0);
        let answer = match self.once(&self.scripts.commit, &call, &nothing, commit.breaks).await? {
            Sent::Answered(answer) => answer,
            Sent::Refused(error) => return Ok(Ended::Refused(error)),
        };
        match answer {
            Value::Array(time) => {
                let mut time = time.into_iter();
                Ok(Ended::Done(micros(time.next(), time.next())?))
            }
            other => match text(&other).as_deref() {
                Some("changed") => Ok(Ended::Changed),
                Some("wait") => Ok(Ended::Wait),
                _ => Err(strange()),
            },
        }
    }

    /// A claim in one script: its answer, or nothing if it has to be done in steps.
    pub(super) async fn claim(
        &self,
        turn: &[u8],
        words: &[Vec<u8>],
        breaks: u64,
    ) -> Result<Option<Vec<Value>>> {
        let mut call = self.scripts.claim.call(&[turn]);
        for word in words {
            call.arg(word.as_slice());
        }
        // No catalogue has this version, so it gives up at once.
        let mut nothing = self.scripts.claim.call(&[turn]);
        nothing.arg(words.first().map(Vec::as_slice).unwrap_or_default()).arg("");
        match self.once(&self.scripts.claim, &call, &nothing, breaks).await? {
            Sent::Answered(Value::Array(answer)) => Ok(Some(answer)),
            _ => Ok(None),
        }
    }

    /// Leaves numbers out if another server, or the same one after a new start, goes on with the store: what it does not know of may be in
    /// use. May be repeated.
    /// Gives the least epoch of what is claimed from now on.
    pub(super) async fn renumber(&self, meta: &[u8], slices: &[u8], words: &[String]) -> Result<i64> {
        let mut call = self.scripts.renumber.call(&[meta, slices]);
        call.arg(words);
        match self.repeatable(&self.scripts.renumber, &call).await? {
            Value::Int(epoch) => Ok(epoch),
            _ => Err(strange()),
        }
    }

    /// One small command that is done on a server that is full, too. It may be repeated.
    pub(super) async fn small(&self, meta: &[u8], words: &[Vec<u8>]) -> Result<Value> {
        let mut call = self.scripts.small.call(&[meta]);
        for word in words {
            call.arg(word.as_slice());
        }
        self.repeatable(&self.scripts.small, &call).await
    }

    async fn repeatable(&self, script: &Script, call: &Cmd) -> Result<Value> {
        match self.send(call).await {
            Err(error) if is_unknown(&error) => Ok(self.send(&script.in_full(call)).await?),
            answer => Ok(answer?),
        }
    }

    /// A call that must not be repeated as it is: it may rest on what another server has said, such as numbers that are new only there.
    /// So nothing may have gone wrong since `breaks` was what it is. `nothing` is a call that does nothing.
    async fn once(&self, script: &Script, call: &Cmd, nothing: &Cmd, breaks: u64) -> Result<Sent> {
        match self.connection.send_once(call, breaks).await {
            Ok(Some(answer)) => Ok(Sent::Answered(answer)),
            Ok(None) => Ok(Sent::Refused(Error::unavailable(
                "the connection to Redis was lost",
                "check that Redis runs and can be reached; work goes on by itself",
            ))),
            Err(error) if is_unknown(&error) => {
                self.send(&script.in_full(nothing)).await?;
                Ok(Sent::Refused(error.into()))
            }
            Err(error) if was_not_done(&error) => Ok(Sent::Refused(error.into())),
            Err(error) => Err(error.into()),
        }
    }

    /// Values that never change, so that it does not matter at which moment.
    pub(super) async fn values(&self, keys: &[Vec<u8>]) -> Result<Vec<Value>> {
        let mut get = redis::cmd("MGET");
        get.arg(keys);
        match self.send(&get).await? {
            Value::Array(values) if values.len() == keys.len() => Ok(values),
            _ => Err(strange()),
        }
    }

    /// One command that may be repeated.
    pub(super) async fn send(&self, command: &Cmd) -> redis::RedisResult<Value> {
        self.connection.send(command).await
    }

    /// One command for every node of a Cluster, the replicas too.
    pub(super) async fn send_to_all(&self, command: &Cmd) -> redis::RedisResult<Value> {
        self.connection.send_to_all(command).await
    }
}

/// The server was started anew, or is another one now, or somebody flushed its scripts. Sent with its text, a script goes to the node
/// that has the key; `SCRIPT LOAD` would ask all of them.
fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl Script {
    fn new(text: &'static str) -> Script {
        Script { sha: sha1(text.as_bytes()), text }
    }

    /// A call of it, still without arguments.
    fn call(&self, keys: &[&[u8]]) -> Cmd {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha).arg(keys.len());
        for key in keys {
            call.arg(*key);
        }
        call
    }

    /// The same call with the text instead of its name.
    fn in_full(&self, call: &Cmd) -> Cmd {
        let mut full = redis::cmd("EVAL");
        full.arg(self.text);
        for argument in call.args_iter().skip(2) {
            if let redis::Arg::Simple(word) = argument {
                full.arg(word);
            }
        }
        full
    }
}

/// Adds a command to the arguments of a script.
fn add(call: &mut Cmd, command: &Command) {
    call.arg(command.len());
    for word in command {
        call.arg(word.as_slice());
    }
}

/// True if both read a field of the same hash, and alike.
fn of_one_hash(one: &Command, other: &Command) -> bool {
    let is_field = |command: &Command| command.first().is_some_and(|word| word.eq_ignore_ascii_case(b"HGET"));
    is_field(one) && one.len() == other.len() && one[..2] == other[..2]
}

/// Adds one command, or one for several fields of a hash: a call from a script takes the server longer than what is called.
fn add_together<'c>(call: &mut Cmd, mut commands: impl ExactSizeIterator<Item = &'c Command>) {
    let Some(first) = commands.next() else { return };
    if commands.len() == 0 {
        return add(call, first);
    }
    let is_loose = first[0].first().is_some_and(u8::is_ascii_lowercase);
    call.arg(commands.len() + 3).arg(if is_loose { "hmget" } else { "HMGET" }).arg(&first[1]).arg(&first[2]);
    for command in commands {
        call.arg(&command[2]);
    }
}

pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// What is longer is known by its digest; as in the scripts.
const SMALL: usize = 100;

/// What a reply is known by when it is checked, unless it is a list.
pub(super) fn sign(reply: &Value) -> Vec<u8> {
    match reply {
        Value::BulkString(bytes) if bytes.len() > SMALL => sha1(bytes).into_bytes(),
        Value::BulkString(bytes) => [b"=", bytes.as_slice()].concat(),
        Value::Int(number) => format!(":{number}").into_bytes(),
        Value::Array(items) if items.is_empty() => b"0".to_vec(),
        _ => b"-".to_vec(),
    }
}

fn micros(seconds: Option<Value>, micros: Option<Value>) -> Result<Micros> {
    let number = |value: Option<Value>| text(&value?)?.parse::<i64>().ok();
    let (seconds, micros) = number(seconds).zip(number(micros)).ok_or_else(strange)?;
    Ok(Micros(seconds * 1_000_000 + micros))
}

/// Scripts are known by the SHA-1 of their text.
fn sha1(text: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, text);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn strange() -> Error {
    Error::unavailable(
        "Redis answered something else than a script of this program gives",
        "see the server's log",
    )
}

impl From<RedisError> for Error {
    fn from(error: RedisError) -> Error {
        let (what, remedy) = match (code(&error), error.kind()) {
            ("OOM", _) => (
                "Redis is full",
                "Redis is full; raise maxmemory, or let retention, limits and workers make room",
            ),
            ("MISCONF", _) => ("Redis failed", "Redis cannot write to its disk; see its log"),
            ("NOAUTH" | "WRONGPASS" | "NOPERM", _) | (_, ErrorKind::AuthenticationFailed) => {
                ("Redis refused this user", "check user, password and rights in the URL")
            }
            ("READONLY", _) => ("Redis failed", "this server is a replica; name the primary in the URL"),
            ("CLUSTERDOWN", _) => {
                ("Redis failed", "the Cluster is down; work goes on by itself when it is up")
            }
            ("BUSY", _) => {
                ("Redis failed", "another program's script keeps Redis busy; end it with SCRIPT KILL")
            }
            (_, ErrorKind::InvalidClientConfig) => ("Redis failed", "check the URL"),
            _ => ("Redis failed", "check that Redis runs and can be reached; work goes on by itself"),
        };
        Error::new(Kind::Unavailable, what, remedy).because(error)
    }
}
