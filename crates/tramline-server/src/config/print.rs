//! The resolved settings as a file, commented with the help of the flags.

use super::Config;
use super::masked::without_password;
use super::settings::{ROOT_TOKEN, SECRET_KEY, Settings};
use crate::bench::BoxError;

impl Config {
    /// The resolved settings as a TOML file with comments. Secrets are left out.
    pub(crate) fn render(&self) -> Result<String, BoxError> {
        use clap::CommandFactory;
        let values = toml::Table::try_from(self)?;
        let command = Described::command();
        let about = |name: &str| {
            let found = command.get_arguments().find(|argument| argument.get_id() == name);
            found.and_then(|argument| argument.get_help()).map(ToString::to_string)
        };
        let mut text =
            String::from("# Tramline's settings. Flags and environment variables come before this file.\n");
        let names = command
            .get_arguments()
            .map(|argument| argument.get_id().as_str())
            .chain(["root_token", "secret_key"]);
        for name in names {
            let about = about(name).unwrap_or_else(|| secret(name));
            text.push_str(&format!("\n# {about}\n"));
            match values.get(name) {
                Some(_) if ["root_token", "secret_key"].contains(&name) => {
                    text.push_str(&format!("# {name} = \"(set, not shown)\"\n"));
                }
                Some(value) => text.push_str(&format!("{name} = {}\n", shown(value))),
                None => text.push_str(&format!("# {name} =\n")),
            }
        }
        Ok(text)
    }
}

/// Secrets have no flags, and so no help.
fn secret(name: &str) -> String {
    match name {
        "root_token" => format!("A token that may do everything; better set {ROOT_TOKEN}"),
        _ => format!(
            "The key under which secrets are encrypted at rest, made of the root token unless set; better set {SECRET_KEY}"
        ),
    }
}

/// A value as TOML, without the secrets that a URL may hold.
fn shown(value: &toml::Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), |text| toml::Value::from(without_password(text)).to_string())
}

/// For the help texts of the flags, which are the comments of the file.
#[derive(clap::Parser)]
struct Described {
    #[command(flatten)]
    _settings: Settings,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> Result<Settings, toml::de::Error> {
        toml::from_str(text)
    }

    #[test]
    fn what_config_prints_is_a_file_that_gives_the_same_settings() {
        let config = settings("max_body = 5\nlog_format = 'json'").unwrap().resolve().unwrap();
        let printed = config.render().unwrap();
        assert_eq!(settings(&printed).unwrap().resolve().unwrap(), config);
        assert!(printed.contains("# The largest request body"), "{printed}");
    }

    #[test]
    fn every_setting_is_printed() {
        let all = Config {
            store_listen_url: Some("x".into()),
            wake: Some("x".into()),
            tls_cert: Some("x".into()),
            tls_key: Some("x".into()),
            root_token: Some("long enough".into()),
            secret_key: Some("hidden".into()),
            push_proxy: Some("x".into()),
            statsd: Some("localhost:8125".into()),
            otlp_endpoint: Some("http://localhost:4318".into()),
            address_file: Some("x".into()),
            store_limit_bytes: Some(1 << 30),
            ..Settings::default().resolve().unwrap()
        };
        let printed = all.render().unwrap();
        for name in toml::Table::try_from(&all).unwrap().keys() {
            assert!(printed.contains(&format!("{name} = ")), "{name} in {printed}");
        }
        assert!(!printed.contains("long enough") && !printed.contains("hidden"));
    }

    #[test]
    fn passwords_are_not_shown_whatever_the_setting() {
        let url = || "http://user:hidden@host:1/?password=hidden".to_owned();
        let config = Config {
            store: url(),
            store_listen_url: Some(url()),
            wake: Some(url()),
            push_proxy: Some(url()),
            otlp_endpoint: Some(url()),
            ..Settings::default().resolve().unwrap()
        };
        let printed = config.render().unwrap();
        assert!(!printed.contains("hidden"), "{printed}");
        assert_eq!(printed.matches("http://user:***@host:1/?password=***").count(), 5);
    }
}
