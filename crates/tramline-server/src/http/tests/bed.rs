//! A node in memory, and calls to it.

use crate::config::Config;
use crate::http::access::Access;
use crate::http::app::{App, Shared};
use crate::http::metrics::Metrics;
use crate::http::timed::Timed;
use crate::http::{openapi, routes};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use tower::ServiceExt;
use tramline::{Options, Tramline};
use utoipa::openapi::OpenApi;
use utoipa::openapi::path::Operation;

/// The token that may do everything.
pub(super) const ROOT: &str = "root-secret-of-the-tests";

/// A node in memory.
pub(super) struct Bed {
    pub(super) app: Shared,
    pub(super) api: OpenApi,
    router: Router,
}

/// What came back.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

impl Reply {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// The JSON of an answer that has to be a success.
    pub(super) fn good(self) -> Value {
        assert!(self.status.is_success(), "{} {}", self.status, self.text);
        if self.text.is_empty() { Value::Null } else { self.json() }
    }

    /// Checks that it is a problem of this status, with everything that a problem has.
    pub(super) fn problem(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        assert_eq!(self.headers[header::CONTENT_TYPE], "application/problem+json");
        let problem = self.json();
        for field in ["type", "title", "detail", "remedy"] {
            assert!(problem[field].as_str().is_some_and(|text| !text.is_empty()), "{field} of {problem}");
        }
        assert_eq!(problem["status"], status);
        problem
    }
}

impl Bed {
    /// A node without tokens, on loopback.
    pub(super) async fn open() -> Bed {
        Bed::with(Config::defaults().unwrap()).await
    }

    /// A node with a root token.
    pub(super) async fn guarded() -> Bed {
        Bed::with(Config { root_token: Some(ROOT.into()), ..Config::defaults().unwrap() }).await
    }

    pub(super) async fn with(config: Config) -> Bed {
        let tram = Tramline::open("sqlite::memory:").await.unwrap();
        let access = Access::open(tram.store().clone(), config.root_token.as_deref(), true).await.unwrap();
        Bed::of(App::new(tram, config, access, Arc::new(Metrics::default())))
    }

    /// A node on a file, whose store is measured as that of a server is.
    pub(super) async fn on_file(path: &Path, config: Config) -> Bed {
        let metrics = Arc::new(Metrics::default());
        let measured = metrics.clone();
        let options = Options::new(format!("sqlite://{}", path.display()))
            .watch_store(move |store| Arc::new(Timed::new(store, measured.clone())));
        let tram = Tramline::with(options).await.unwrap();
        let access = Access::open(tram.store().clone(), config.root_token.as_deref(), true).await.unwrap();
        Bed::of(App::new(tram, config, access, metrics))
    }

    /// Another node on the same store.
    pub(super) async fn twin(&self, config: Config) -> Bed {
        let tram = self.app.tram.clone();
        let access = Access::open(tram.store().clone(), config.root_token.as_deref(), true).await.unwrap();
        Bed::of(App::new(tram, config, access, Arc::new(Metrics::default())))
    }

    pub(super) fn of(app: Shared) -> Bed {
        let router = routes::router(app.clone());
        Bed { app, api: openapi::describe(), router }
    }

    /// What comes back has to be described.
    pub(super) async fn send(&self, request: Request<Body>) -> Reply {
        let operation = self.operation(request.method(), request.uri().path());
        let what = format!("{} {}", request.method(), request.uri().path());
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        if let Some(operation) = operation {
            let known = operation.responses.responses.contains_key(parts.status.as_str());
            assert!(known, "{what} answers {}, which is not described", parts.status);
        }
        let bytes = body.collect().await.unwrap().to_bytes();
        let text = String::from_utf8_lossy(&bytes).into_owned();
        Reply { status: parts.status, headers: parts.headers, text }
    }

    /// The description of what serves a call.
    fn operation(&self, method: &Method, path: &str) -> Option<&Operation> {
        let fits = |template: &str| {
            let (wanted, given) = (template.split('/'), path.split('/'));
            wanted.clone().count() == given.clone().count()
                && wanted.zip(given).all(|(wanted, given)| wanted.starts_with('{') || wanted == given)
        };
        let (_, item) = self.api.paths.paths.iter().find(|(template, _)| fits(template))?;
        match *method {
            Method::GET => item.get.as_ref(),
            Method::PUT => item.put.as_ref(),
            Method::POST => item.post.as_ref(),
            Method::DELETE => item.delete.as_ref(),
            _ => None,
        }
    }

    /// An answer of which nobody has read the body.
    pub(super) async fn unread(&self, request: Request<Body>) -> axum::response::Response {
        self.router.clone().oneshot(request).await.unwrap()
    }

    /// A call with a token and JSON.
    pub(super) async fn call(&self, method: Method, path: &str, token: Option<&str>, body: &str) -> Reply {
        let mut request =
            Request::builder().method(method).uri(path).header("content-type", "application/json");
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        self.send(request.body(Body::from(body.to_owned())).unwrap()).await
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Reply {
        self.call(Method::POST, path, self.token(), &body.to_string()).await
    }

    pub(super) async fn put(&self, path: &str, body: Value) -> Reply {
        self.call(Method::PUT, path, self.token(), &body.to_string()).await
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.call(Method::GET, path, self.token(), "").await
    }

    pub(super) async fn delete(&self, path: &str) -> Reply {
        self.call(Method::DELETE, path, self.token(), "").await
    }

    fn token(&self) -> Option<&str> {
        self.app.config.root_token.as_deref()
    }
}
