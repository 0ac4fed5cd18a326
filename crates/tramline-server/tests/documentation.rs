//! What the documentation shows is what this program does.
#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Node, PROGRAM};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What the shell says between two blocks of a tour.
const NEXT: &str = "== next block";

fn text(name: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(name)).unwrap()
}

/// The fenced blocks of a text, each with its language.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let fenced = text.split("```").skip(1).step_by(2);
    fenced.map(|block| block.split_once('\n').unwrap()).collect()
}

#[test]
fn the_settings_of_the_documentation_are_those_that_are_printed() {
    let documentation = text("docs/operations.md");
    let (_, sample) = documentation.split_once("```sh\ntramline config\n```\n").unwrap();
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TRAMLINE_")) {
        command.env_remove(name);
    }
    let printed = command.arg("config").output().unwrap();
    assert_eq!(blocks(sample)[0], ("toml", std::str::from_utf8(&printed.stdout).unwrap()));
}

/// A block of the tour, and the output that is shown below it.
struct Step {
    commands: String,
    shown: Option<String>,
}

fn tour() -> Vec<Step> {
    let readme = text("README.md");
    let (_, tour) = readme.split_once("\n## A tour in 60 seconds\n").unwrap();
    let (tour, _) = tour.split_once("\n## ").unwrap();
    let mut steps: Vec<Step> = Vec::new();
    for (language, block) in blocks(tour) {
        match (language, steps.last_mut()) {
            ("sh", _) => steps.push(Step { commands: block.to_owned(), shown: None }),
            ("text", Some(step)) => step.shown = Some(block.to_owned()),
            _ => {}
        }
    }
    steps
}

/// Runs the blocks one after the other in one shell that ends with the first failure, and gives what each printed.
fn paste(steps: &[Step], node: &Node) -> Vec<String> {
    // Somebody else on this machine may have the port that readers are told.
    let block = |step: &Step| step.commands.replace("localhost:7070", &node.address);
    let script: String = steps.iter().map(|step| format!("{}\necho; echo '{NEXT}'\n", block(step))).collect();
    let programs = Path::new(PROGRAM).parent().unwrap().display();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap());
    // On a terminal that shows the answer, curl does not show its progress.
    std::fs::write(node.directory.path().join(".curlrc"), "silent\n").unwrap();
    let mut shell = Command::new("sh");
    shell.env("CURL_HOME", node.directory.path());
    // What commands say on either output is shown in the order in which they say it.
    shell.args(["-ec", &format!("exec 2>&1\n{script}")]).current_dir(node.directory.path());
    shell.env("PATH", path).env("TRAMLINE_SERVER", node.url("")).env_remove("TRAMLINE_TOKEN");
    let output = shell.stdin(Stdio::null()).output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{printed}");
    printed.split(NEXT).map(str::to_owned).collect()
}

/// Lines as words, without what differs from run to run, and without what only a terminal shows: titles, and `none` for an empty table.
fn essence(text: &str) -> Vec<Vec<&str>> {
    let is_title = |line: &str| !line.contains(|c: char| c.is_lowercase() || c.is_numeric());
    let lines = text.lines().filter(|line| !is_title(line) && *line != "none");
    lines.map(|line| untimed(line).map(|word| if is_time(word) { "TIME" } else { word }).collect()).collect()
}

/// The words of a line, without how long something took.
fn untimed(line: &str) -> impl Iterator<Item = &str> {
    let (head, rest) = line.split_once(" in ").unwrap_or((line, ""));
    let error = rest.split_once(": ").map_or("", |(_, error)| error);
    head.split_whitespace().chain(error.split_whitespace())
}

fn is_time(word: &str) -> bool {
    word.starts_with("20") && word.trim_end_matches(':').len() == "2026-11-16T00:36:49.587Z".len()
}

#[test]
fn the_tour_works_when_it_is_pasted_and_prints_what_it_shows() {
    let steps = tour();
    let node = Node::start(&[]);
    let printed = paste(&steps, &node);
    assert!(steps.len() > 6);
    for (step, printed) in steps.iter().zip(&printed) {
        if let Some(shown) = &step.shown {
            assert_eq!(essence(printed), essence(shown), "{}", step.commands);
        }
    }
}
