//! A request as it is shown: some lines for people, an object for programs.

use crate::cli::print::clean;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use serde_json::{Map, Value, json};
use tramline::push::Unverified;

/// Headers that every client sends, and that say nothing of the events.
const DULL: [&str; 6] = ["host", "accept", "accept-encoding", "connection", "content-length", "user-agent"];
/// How much of an event is shown to people.
const SHOWN: usize = 2000;

/// What is known of the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signature {
    /// Signed with one of the secrets.
    Valid,
    /// Signed, but not so that it can be trusted.
    Invalid(Unverified),
    /// Not signed.
    None,
    /// Signed, and there is no secret to check with.
    Unchecked,
}

impl Signature {
    fn word(self) -> &'static str {
        match self {
            Signature::Valid => "valid",
            Signature::Invalid(_) => "invalid",
            Signature::None => "none",
            Signature::Unchecked => "unchecked",
        }
    }
}

/// What came.
pub(super) struct Received {
    method: String,
    path: String,
    status: StatusCode,
    headers: Vec<(String, String)>,
    /// Nothing for a handshake.
    content: Option<(Signature, Content)>,
}

/// What was pushed.
enum Content {
    Events(Vec<Value>),
    Text(String),
    Bytes(Vec<u8>),
}

impl Received {
    pub(super) fn handshake(head: &Parts) -> Received {
        Received::new(head, StatusCode::OK, None)
    }

    pub(super) fn request(head: &Parts, body: &[u8], status: StatusCode, signature: Signature) -> Received {
        Received::new(head, status, Some((signature, Content::of(body))))
    }

    fn new(head: &Parts, status: StatusCode, content: Option<(Signature, Content)>) -> Received {
        let telling = head.headers.iter().filter(|(name, _)| !DULL.contains(&name.as_str()));
        let headers = telling.map(|(name, value)| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.to_string(), if name == AUTHORIZATION { scheme(value) } else { text })
        });
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
        Received {
            method: head.method.to_string(),
            path: path.to_owned(),
            status,
            headers: headers.collect(),
            content,
        }
    }

    /// All of it.
    pub(super) fn json(&self) -> Value {
        let headers: Map<String, Value> =
            self.headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
        let mut all = json!({
            "method": self.method, "path": self.path, "status": self.status.as_u16(), "headers": headers
        });
        let Some((signature, content)) = &self.content else { return all };
        all["signature"] = signature.word().into();
        if let Signature::Invalid(why) = signature {
            all["reason"] = why.to_string().into();
        }
        match content {
            Content::Events(events) => all["events"] = events.clone().into(),
            Content::Text(text) => all["body"] = text.clone().into(),
            Content::Bytes(bytes) => all["body_base64"] = BASE64_STANDARD.encode(bytes).into(),
        }
        all
    }

    /// What matters, a line for each header and event.
    pub(super) fn text(&self) -> String {
        let mut text = clean(&format!("{} {} -> {}", self.method, self.path, self.status.as_u16()));
        if let Some((signature, content)) = &self.content {
            text += &format!("; {}; signature: {}", content.amount(), signature.word());
            if let Signature::Invalid(why) = signature {
                text += &format!(" ({why})");
            }
        }
        let headers = self.headers.iter().map(|(name, value)| format!("{name}: {value}"));
        for line in headers.chain(self.content.iter().flat_map(|(_, content)| content.lines())) {
            text += &format!("\n  {}", clean(&line));
        }
        text
    }
}

impl Content {
    /// A list of events, an object with `events`, one event, or whatever else it is.
    fn of(body: &[u8]) -> Content {
        match serde_json::from_slice(body) {
            Ok(Value::Array(events)) => Content::Events(events),
            Ok(Value::Object(mut object)) => match object.remove("events") {
                Some(Value::Array(events)) => Content::Events(events),
                other => {
                    object.extend(other.map(|other| ("events".to_owned(), other)));
                    Content::Events(vec![object.into()])
                }
            },
            Ok(other) => Content::Events(vec![other]),
            Err(_) => match std::str::from_utf8(body) {
                Ok(text) => Content::Text(text.to_owned()),
                Err(_) => Content::Bytes(body.to_vec()),
            },
        }
    }

    fn amount(&self) -> String {
        match self {
            Content::Events(events) if events.len() == 1 => "1 event".to_owned(),
            Content::Events(events) => format!("{} events", events.len()),
            Content::Text(text) => format!("{} bytes", text.len()),
            Content::Bytes(bytes) => format!("{} bytes", bytes.len()),
        }
    }

    fn lines(&self) -> Vec<String> {
        match self {
            Content::Events(events) => events.iter().map(|event| short(&event.to_string())).collect(),
            Content::Text(text) => text.lines().map(short).collect(),
            Content::Bytes(_) => Vec::new(),
        }
    }
}

/// Of a password, only that there is one.
fn scheme(value: &HeaderValue) -> String {
    let text = String::from_utf8_lossy(value.as_bytes());
    format!("{} ..", text.split(' ').next().unwrap_or_default())
}

fn short(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} ..", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn head() -> Parts {
        let request = Request::post("http://h/hook?a")
            .header("host", "h")
            .header("authorization", "Basic c2VjcmV0")
            .header("webhook-id", "msg\u{9b}1");
        request.body(()).unwrap().into_parts().0
    }

    fn received(body: &str, signature: Signature) -> Received {
        Received::request(&head(), body.as_bytes(), StatusCode::NO_CONTENT, signature)
    }

    #[test]
    fn a_request_is_shown_without_passwords_and_control_characters() {
        let text = received("[{\"a\":1},\"\\u001b\"]", Signature::Valid).text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "POST /hook?a -> 204; 2 events; signature: valid");
        assert_eq!(lines[1..3], ["  authorization: Basic ..", "  webhook-id: msg\\u{9b}1"]);
        assert_eq!(lines[3..], ["  {\"a\":1}", "  \"\\u001b\""]);
    }

    #[test]
    fn events_are_found_in_lists_objects_and_alone() {
        let events = |body: &str| received(body, Signature::None).json()["events"].clone();
        assert_eq!(events("[1,2]"), json!([1, 2]));
        assert_eq!(events("{\"events\":[1,2],\"batch\":7}"), json!([1, 2]));
        assert_eq!(events("{\"events\":1}"), json!([{"events": 1}]));
        assert_eq!(events("{\"id\":\"7\"}"), json!([{"id": "7"}]));
    }

    #[test]
    fn what_is_no_json_is_shown_as_it_is() {
        let json = received("plain\ntext", Signature::Unchecked).json();
        assert_eq!((&json["body"], &json["signature"]), (&json!("plain\ntext"), &json!("unchecked")));
        let bytes = Received::request(&head(), b"\xff", StatusCode::OK, Signature::None);
        assert_eq!(bytes.json()["body_base64"], "/w==");
        assert!(bytes.text().starts_with("POST /hook?a -> 200; 1 bytes; signature: none\n"));
    }

    #[test]
    fn a_reason_comes_with_an_invalid_signature() {
        let received = received("[]", Signature::Invalid(Unverified::TooOld));
        assert_eq!(received.json()["signature"], "invalid");
        assert!(received.text().contains("signature: invalid (the request was signed too long ago"));
    }

    #[test]
    fn a_long_event_is_cut_for_people_only() {
        let received = received(&format!("[\"{}\"]", "ü".repeat(SHOWN)), Signature::None);
        assert!(
            received.text().ends_with("ü ..")
                && received.json()["events"][0].as_str().unwrap().ends_with('ü')
        );
    }
}
