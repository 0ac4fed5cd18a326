//! A thin client of the HTTP API.

use super::failure::{Again, Exit, Failure};
use super::lenient;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Which server, who asks, and how to answer.
#[derive(clap::Args)]
pub(crate) struct Connection {
    /// The server to talk to
    #[arg(long, env = "TRAMLINE_SERVER", default_value = "http://127.0.0.1:7070", global = true)]
    #[arg(value_name = "URL", help_heading = "Server and output")]
    server: String,
    /// The token that shows who asks
    #[arg(
        long,
        env = "TRAMLINE_TOKEN",
        hide_env_values = true,
        global = true,
        help_heading = "Server and output"
    )]
    token: Option<String>,
    /// Print JSON, one object per line
    #[arg(long, global = true, help_heading = "Server and output")]
    pub(crate) json: bool,
}

/// Speaks to one server.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<String>,
}

const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take, unless the request says otherwise.
const ANSWER: Duration = Duration::from_secs(60);

impl Connection {
    /// A client for this server. Nothing is sent yet.
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let wrong = || {
            Failure::usage(format!("{:?} is not the address of a server", self.server))
                .remedy("use http:// or https://, a host and a port")
        };
        let base: Url = self.server.parse().map_err(|_| wrong())?;
        if base.cannot_be_a_base() || !base.has_host() {
            return Err(wrong());
        }
        tramline::tls::prepare();
        let mut http = reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .user_agent(concat!("tramline/", env!("CARGO_PKG_VERSION")));
        // A proxy of the network knows nothing of this machine's own addresses.
        if matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(|error| Failure::new(Exit::Failed, cause(&error)))?;
        Ok(Client { http, base, token: self.token.clone() })
    }
}

impl Client {
    /// Asks for something.
    pub(crate) async fn get(&self, path: &[&str], query: &[(&str, String)]) -> Result<Value, Failure> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.answer(self.request(Method::GET, url).timeout(ANSWER)).await
    }

    /// Sends JSON and reads the answer.
    pub(crate) async fn post(&self, path: &[&str], body: &Value) -> Result<Value, Failure> {
        self.post_within(path, body, ANSWER).await
    }

    /// [`post`](Client::post) with another limit on the time that the answer takes, and into any type: payloads are kept to the
    /// letter only in those that ask for it.
    pub(crate) async fn post_within<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &Value,
        limit: Duration,
    ) -> Result<T, Failure> {
        self.answer(self.with_json(Method::POST, path, body)?.timeout(limit)).await
    }

    /// Creates or replaces.
    pub(crate) async fn put(&self, path: &[&str], body: &impl Serialize) -> Result<Value, Failure> {
        self.answer(self.with_json(Method::PUT, path, body)?.timeout(ANSWER)).await
    }

    /// Removes.
    pub(crate) async fn delete(&self, path: &[&str]) -> Result<Value, Failure> {
        self.delete_with(path, &[]).await
    }

    /// Removes, with something to say about it.
    pub(crate) async fn delete_with(
        &self,
        path: &[&str],
        query: &[(&str, String)],
    ) -> Result<Value, Failure> {
        let mut url = self.url(path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        self.answer(self.request(Method::DELETE, url).timeout(ANSWER)).await
    }

    /// A request that is not plain JSON. It has no limit of time yet.
    pub(crate) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request and reads a JSON answer; an empty one is `null`.
    pub(crate) async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Failure> {
        let body = self.send(request).await?.bytes().await.map_err(|error| self.unreachable(&error))?;
        let body: &[u8] = if body.is_empty() { b"null" } else { &body };
        serde_json::from_slice(body)
            .or_else(|_| lenient::read(body).and_then(serde_json::from_value))
            .map_err(|_| self.no_server())
    }

    /// Something else listens at the address.
    pub(crate) fn no_server(&self) -> Failure {
        Failure::new(Exit::Failed, format!("{} does not answer like a Tramline server", self.origin()))
            .remedy("check the address given with --server")
    }

    /// Sends a request. Answers that are no success are failures.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let wait = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let problem = response.bytes().await.ok().and_then(|body| serde_json::from_slice(&body).ok());
        Err(refusal(status, wait.map(Duration::from_secs), &problem.unwrap_or_default()))
    }

    /// The address of a path. Names are escaped, so that a slash in one is not taken for a separator.
    pub(crate) fn url(&self, path: &[&str]) -> Result<Url, Failure> {
        if let Some(name) = path.iter().find(|name| ["", ".", ".."].contains(name)) {
            return Err(Failure::usage(format!("{name:?} is not a name")));
        }
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        Ok(url)
    }

    fn with_json(
        &self,
        method: Method,
        path: &[&str],
        body: &impl Serialize,
    ) -> Result<RequestBuilder, Failure> {
        let body = serde_json::to_vec(body).map_err(|error| Failure::new(Exit::Failed, error.to_string()))?;
        let request = self.request(method, self.url(path)?);
        Ok(request.header("content-type", "application/json").body(body))
    }

    /// The connection failed, or broke while the answer was read.
    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let message = format!("the server at {} cannot be reached: {}", self.origin(), cause(error));
        let mut failure = Failure::new(Exit::Unreachable, message)
            .remedy("start it with `tramline serve`, or say where it is with --server or TRAMLINE_SERVER");
        failure.again = Some(Again::Soon);
        failure
    }

    /// The address without a user or password that may be in it.
    fn origin(&self) -> String {
        self.base.origin().ascii_serialization()
    }
}

/// What the server said, as a failure.
fn refusal(status: StatusCode, wait: Option<Duration>, problem: &Value) -> Failure {
    let text = |field: &str| problem[field].as_str().filter(|text| !text.is_empty());
    let exit = if status == StatusCode::NOT_FOUND { Exit::NotFound } else { Exit::Failed };
    let message = match text("detail").or(text("title")) {
        Some(said) => said.to_owned(),
        None => format!("the server answered {status}"),
    };
    let mut failure = Failure::new(exit, message);
    failure.remedy = match (text("remedy"), status.as_u16()) {
        (Some(remedy), _) => Some(remedy.to_owned()),
        (None, 401) => Some("show who you are with --token or TRAMLINE_TOKEN".to_owned()),
        (None, _) => None,
    };
    failure.line = problem["line"].as_u64();
    if matches!(status.as_u16(), 429 | 500 | 502..=504) {
        failure.again = Some(wait.map_or(Again::Soon, Again::After));
    }
    failure
}

/// The innermost reason, which names what went wrong without the address, in which a secret may be.
fn cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    if error.is_timeout() { "no answer in time".to_owned() } else { cause.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn client(server: &str) -> Result<Client, Failure> {
        Connection { server: server.to_owned(), token: None, json: false }.client()
    }

    #[test]
    fn names_are_escaped_in_paths() {
        let client = client("http://localhost:1/base/").unwrap();
        let url = client.url(&["v1", "topics", "acme/mail sent", "events"]).unwrap();
        assert_eq!(url.as_str(), "http://localhost:1/base/v1/topics/acme%2Fmail%20sent/events");
        assert_eq!(client.url(&["v1", "topics", ".."]).unwrap_err().exit, Exit::Usage);
    }

    #[test]
    fn an_address_must_have_a_host() {
        for wrong in ["localhost", "mailto:a@b", "http://"] {
            assert_eq!(client(wrong).err().map(|failure| failure.exit), Some(Exit::Usage), "{wrong}");
        }
    }

    #[test]
    fn a_password_in_the_address_is_not_shown() {
        assert_eq!(client("http://me:secret@host:1/x").unwrap().origin(), "http://host:1");
    }

    #[test]
    fn a_refusal_shows_what_the_server_said() {
        let problem = json!({"title": "Not found", "detail": "there is no x", "remedy": "create it"});
        let failure = refusal(StatusCode::NOT_FOUND, None, &problem);
        assert_eq!(
            (failure.exit, failure.to_string()),
            (Exit::NotFound, "there is no x\n  create it".to_owned())
        );
        let busy = refusal(StatusCode::SERVICE_UNAVAILABLE, Some(Duration::from_secs(3)), &Value::Null);
        assert_eq!(busy.again, Some(Again::After(Duration::from_secs(3))));
        assert_eq!(refusal(StatusCode::CONFLICT, None, &Value::Null).again, None);
    }
}
