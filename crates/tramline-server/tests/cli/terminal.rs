//! What people see on a terminal, and programs do not.

use crate::node::PROGRAM;
use crate::server::Server;
use serde_json::json;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

const BOLD: &str = "\x1b[1m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const ESCAPE: char = '\x1b';

/// A server with a subscription and an event in it.
fn server() -> Server {
    let server = Server::start();
    server.subscribe("s", json!({"topics": ["t"]}));
    server.ok(&["emit", "t", "1", "--key", "k"]);
    server
}

/// A command on a terminal of its own, which shows both outputs.
fn terminal(server: &Server, arguments: &[&str], environment: &[(&str, &str)]) -> Command {
    let quoted: Vec<String> = arguments.iter().map(|argument| format!("'{argument}'")).collect();
    // A terminal that nobody looks at has no size, and nothing is drawn where there is no room. The program ends with it, also where whoever
    // runs the tests has told them to outlast his own.
    let line =
        format!("stty cols 120 rows 40; exec env --default-signal=HUP '{PROGRAM}' {}", quoted.join(" "));
    let mut command = Command::new("script");
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let like = server.command(&[]);
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env_remove("TRAMLINE_TOKEN").env_remove("NO_COLOR").env_remove("RUST_LOG").env("TERM", "xterm");
    command.envs(environment.iter().copied()).current_dir(server.file(""));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command
}

/// What a command writes until it ends.
fn on_terminal(server: &Server, arguments: &[&str], environment: &[(&str, &str)]) -> String {
    let output = terminal(server, arguments, environment).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn tables_have_titles_on_a_terminal_and_in_bold() {
    let seen = on_terminal(&server(), &["stats"], &[]);
    assert!(seen.starts_with(&format!("{BOLD}SUBSCRIPTION  READY")), "{seen:?}");
    assert!(seen.lines().nth(1).unwrap().starts_with("s             1 "), "{seen:?}");
}

#[test]
fn no_color_leaves_the_titles_and_takes_the_colours() {
    let server = server();
    let seen = on_terminal(&server, &["stats"], &[("NO_COLOR", "1")]);
    assert!(seen.starts_with("SUBSCRIPTION  READY") && !seen.contains(ESCAPE), "{seen:?}");
    // An empty variable says nothing.
    assert!(on_terminal(&server, &["stats"], &[("NO_COLOR", "")]).contains(BOLD));
    let worked = on_terminal(&server, &["work", "s", "--drain", "--exec", "true"], &[("NO_COLOR", "1")]);
    assert!(worked.contains(" done in ") && !worked.contains(ESCAPE), "{worked:?}");
}

#[test]
fn an_outcome_is_green_or_red_on_a_terminal() {
    let server = server();
    let failed = on_terminal(&server, &["work", "s", "--drain", "--exec", "exit 1"], &[]);
    assert!(failed.contains(&format!(" {RED}retry\x1b[0m in ")), "{failed:?}");
    server.ok(&["emit", "t", "2"]);
    let done = on_terminal(&server, &["work", "s", "--drain", "--exec", "true"], &[]);
    assert!(done.contains(&format!(" {GREEN}done\x1b[0m in ")), "{done:?}");
}

/// The first line that a server logs on a terminal. It ends with its terminal.
fn first_line(server: &Server, environment: &[(&str, &str)]) -> String {
    let serve = ["serve", "--listen", "127.0.0.1:0", "--store", "sqlite::memory:"];
    let mut child = terminal(server, &serve, environment).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    line
}

#[test]
fn the_log_of_a_server_has_colours_on_a_terminal_unless_nobody_wants_them() {
    let server = server();
    let seen = first_line(&server, &[]);
    assert!(seen.contains("tramline::") && seen.contains(ESCAPE), "{seen:?}");
    let plain = first_line(&server, &[("NO_COLOR", "1")]);
    assert!(plain.contains("tramline::") && !plain.contains(ESCAPE), "{plain:?}");
}

#[test]
fn a_large_emit_shows_how_far_it_is_and_leaves_nothing_behind() {
    let server = server();
    server.file_with("events.ndjson", &"{\"payload\": 1}\n".repeat(5_000));
    let seen = on_terminal(&server, &["emit", "t", "--ndjson", "events.ndjson"], &[]);
    assert!(seen.contains('█') && seen.contains(" of 73.24 KiB, "), "{seen:?}");
    let (_, after) = seen.rsplit_once(ESCAPE).unwrap();
    assert!(after.ends_with("5000\r\n") && !after.contains('█'), "{seen:?}");
}

#[test]
fn a_pipe_has_no_titles_no_colours_and_no_progress() {
    let server = server();
    let stats = server.run(&["stats"]);
    assert!(stats.out.starts_with("s\t1\t") && stats.out.lines().count() == 1, "{stats:?}");
    let worked = server.run(&["work", "s", "--drain", "--exec", "exit 1"]);
    assert!(worked.err.contains(" retry in ") && !worked.err.contains(ESCAPE), "{worked:?}");
    server.file_with("events.ndjson", &"{\"payload\": 1}\n".repeat(5_000));
    let emitted = server.run(&["emit", "t", "--ndjson", "events.ndjson"]);
    assert_eq!((emitted.out.as_str(), emitted.err.as_str()), ("5000\n", ""));
}
