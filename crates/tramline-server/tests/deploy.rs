//! The files under `deploy/`: well-formed, and true of this program.

#![expect(clippy::unwrap_used, reason = "a failed test says where")]

mod node;

use node::{Node, PROGRAM};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(path(name)).unwrap()
}

/// What a program says; `None` if this machine does not have it.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    match Command::new(program).args(arguments).stdin(Stdio::null()).output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        said => Some(said.unwrap()),
    }
}

/// The metrics that expressions name, each with whether it is asked for as a histogram.
fn named<'a>(expressions: impl Iterator<Item = &'a str>) -> BTreeSet<(&'a str, bool)> {
    let words = expressions.flat_map(|text| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    let names = words.filter(|word| word.starts_with("tramline_"));
    names.map(|name| name.strip_suffix("_bucket").map_or((name, false), |name| (name, true))).collect()
}

/// A graph of a metric that does not exist stays empty for ever, and an alert of it never comes.
#[tokio::test]
async fn every_metric_of_the_dashboard_and_of_the_alerts_is_served() {
    let board: Value = serde_json::from_str(&text("grafana-dashboard.json")).unwrap();
    let page = Node::start(&[]).metrics().await;
    let served: BTreeSet<(&str, bool)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name, kind == "histogram"))
        .collect();
    let panels = board["panels"].as_array().unwrap();
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    let shown = named(targets.map(|target| target["expr"].as_str().unwrap()));
    assert!(shown.len() > 20 && shown.is_subset(&served), "{:?}", shown.difference(&served));
    let operations = text("../docs/operations.md");
    // A row of the table of alerts begins with an expression that compares something.
    let alerts = operations.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let alerts =
        alerts.map(|(expression, _)| expression).filter(|it| it.contains(" > ") || it.contains(" < "));
    let watched = named(alerts);
    assert!(watched.len() > 8 && watched.is_subset(&served), "{:?}", watched.difference(&served));
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert_eq!(ids.len(), panels.len(), "panels have numbers of their own");
}

#[test]
fn the_unit_is_one_that_systemd_understands() {
    let unit = text("tramline.service").replace("/usr/local/bin/tramline", PROGRAM);
    for line in ["DynamicUser=yes", "StateDirectory=tramline", "ProtectSystem=strict", "NoNewPrivileges=yes"]
    {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tramline.service");
    std::fs::write(&file, unit).unwrap();
    let Some(said) = run("systemd-analyze", &["verify", "--man=no", file.to_str().unwrap()]) else { return };
    let complaints = String::from_utf8(said.stderr).unwrap();
    let ours: Vec<&str> = complaints.lines().filter(|line| line.contains("tramline.service")).collect();
    assert_eq!(ours, [""; 0]);
}

#[test]
fn the_yaml_files_are_well_formed() {
    for name in ["compose.yaml", "prometheus.yaml"] {
        let text = text(name);
        for (number, line) in text.lines().enumerate() {
            let indent = line.len() - line.trim_start_matches(' ').len();
            assert!(!line.contains('\t') && indent % 2 == 0, "{name}:{}: {line}", number + 1);
        }
        let read = "import sys, yaml; yaml.safe_load(open(sys.argv[1]))";
        let has_yaml = run("python3", &["-c", "import yaml"]).is_some_and(|said| said.status.success());
        if has_yaml {
            let said = run("python3", &["-c", read, path(name).to_str().unwrap()]).unwrap();
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
        }
    }
}

/// A variable that is no setting would be passed over in silence.
#[test]
fn the_settings_of_the_compose_file_exist() {
    let compose = text("compose.yaml");
    let settings: BTreeSet<&str> = compose
        .lines()
        .filter_map(|line| line.trim().split_once(": ")?.0.strip_prefix("TRAMLINE_"))
        .collect();
    assert_eq!(settings, BTreeSet::from(["LOG_FORMAT", "ROOT_TOKEN", "STORE"]));
    let printed = Command::new(PROGRAM).arg("config").env_remove("TRAMLINE_CONFIG").output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    for setting in settings {
        let key = setting.to_ascii_lowercase();
        let has_it = |line: &str| line.trim_start_matches("# ").starts_with(&format!("{key} ="));
        assert!(printed.lines().any(has_it), "{key}");
    }
}

/// The check of the image, run as it is, but at the port of a node.
#[tokio::test]
async fn the_health_check_of_the_image_tells_a_server_that_is_ready_from_none() {
    let dockerfile = text("Dockerfile");
    let line = dockerfile.lines().find(|line| line.starts_with("HEALTHCHECK")).unwrap();
    let command: Vec<String> = serde_json::from_str(line.split_once(" CMD ").unwrap().1).unwrap();
    let healthy = |address: &str| {
        let port = address.rsplit_once(':').unwrap().1;
        let script = command[2].replace("/7070", &format!("/{port}"));
        run(&command[0], &[&command[1], &script]).is_none_or(|said| said.status.success())
    };
    let mut node = Node::start(&[]);
    assert!(healthy(&node.address));
    node.kill();
    if run("bash", &["-c", ":"]).is_some() {
        assert!(!healthy(&node.address));
    }
}
