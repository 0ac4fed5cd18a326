//! Who may do what: tokens are kept in memory, so that a request asks no store.

use crate::http::problem::{Answer, Problem};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use tramline::{Pattern, Scope, Store, Subscription, Time, Token};

/// How often tokens are read again, so that all nodes know of changes.
const EVERY: Duration = Duration::from_secs(2);

/// The caller of a request, and what it may do.
#[derive(Clone, Debug)]
pub(crate) struct Caller(Arc<Rights>);

#[derive(Debug)]
struct Rights {
    name: String,
    scopes: Vec<Scope>,
    topics: Option<Vec<Pattern>>,
    subscriptions: Option<Vec<Pattern>>,
    expires_at: Option<Time>,
}

impl Caller {
    /// Somebody who may do everything.
    fn all_mighty(name: &str) -> Caller {
        Caller(Arc::new(Rights {
            name: name.to_owned(),
            scopes: vec![Scope::Admin],
            topics: None,
            subscriptions: None,
            expires_at: None,
        }))
    }

    fn of(token: Token) -> Caller {
        Caller(Arc::new(Rights {
            name: token.name,
            scopes: token.scopes,
            topics: token.topics,
            subscriptions: token.subscriptions,
            expires_at: token.expires_at,
        }))
    }

    /// The name, for records of who did what.
    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    /// Checks that the caller has one of these scopes. Admins have all.
    pub(crate) fn needs(&self, any: &[Scope]) -> Answer<()> {
        let has = |scope: &Scope| *scope == Scope::Admin || any.contains(scope);
        if self.0.scopes.iter().any(has) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks a scope in a topic. The answer does not tell whether the topic exists.
    pub(crate) fn topic(&self, any: &[Scope], topic: &str) -> Answer<()> {
        self.needs(any)?;
        if self.sees_topic(topic) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks a scope in a subscription by its name.
    pub(crate) fn subscription(&self, any: &[Scope], name: &str) -> Answer<()> {
        self.needs(any)?;
        if matches(&self.0.subscriptions, name) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks that everything a subscription consumes may be seen too.
    pub(crate) fn consumes<T: AsRef<str>>(&self, topics: &[T]) -> Answer<()> {
        if topics.iter().all(|topic| self.sees_topic(topic.as_ref())) { Ok(()) } else { Err(forbidden()) }
    }

    /// Checks that the caller is an admin of everything.
    pub(crate) fn everywhere(&self) -> Answer<()> {
        self.needs(&[])?;
        let limited = self.0.topics.is_some() || self.0.subscriptions.is_some();
        if limited { Err(forbidden()) } else { Ok(()) }
    }

    pub(crate) fn sees_topic(&self, topic: &str) -> bool {
        matches(&self.0.topics, topic)
    }

    pub(crate) fn sees(&self, subscription: &Subscription) -> bool {
        matches(&self.0.subscriptions, &subscription.name)
            && subscription.topics.iter().all(|topic| self.sees_topic(topic))
    }

    pub(crate) fn sees_subscription_named(&self, name: &str) -> bool {
        matches(&self.0.subscriptions, name)
    }
}

fn matches(patterns: &Option<Vec<Pattern>>, name: &str) -> bool {
    patterns.as_ref().is_none_or(|patterns| patterns.iter().any(|pattern| pattern.matches(name)))
}

fn forbidden() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "the token does not allow this here",
        "use a token with the scope and a pattern for this name",
    )
}

fn unauthorized(detail: &str) -> Problem {
    Problem::new(
        StatusCode::UNAUTHORIZED,
        detail,
        "send a valid token as `Authorization: Bearer ..`, or as the user name of Basic",
    )
}

impl<S: Send + Sync> FromRequestParts<S> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Answer<Caller> {
        parts.extensions.get::<Caller>().cloned().ok_or_else(|| unauthorized("nobody has checked the token"))
    }
}

/// The tokens of the store, and the root token.
pub(crate) struct Access {
    store: Arc<dyn Store>,
    root: Option<([u8; 32], Caller)>,
    /// Who calls without a token, where that is allowed: on loopback, while there are none.
    anybody: Option<Caller>,
    known: RwLock<Known>,
    /// When tokens were last read, so that wrong ones do not cause more reading than right ones.
    read_at: tokio::sync::Mutex<Option<Instant>>,
    used: Mutex<HashMap<String, Time>>,
}

#[derive(Default)]
struct Known {
    tokens: HashMap<[u8; 32], Caller>,
    /// The store's time at a moment of the machine's clock.
    time: Option<(Time, Instant)>,
}

impl Known {
    fn now(&self) -> Time {
        self.time.map_or(Time(0), |(time, at)| time.after(at.elapsed()))
    }
}

impl Access {
    /// Reads the tokens. `loopback`: nobody but this machine can call.
    pub(crate) async fn open(
        store: Arc<dyn Store>,
        root: Option<&str>,
        loopback: bool,
    ) -> tramline::Result<Access> {
        let access = Access {
            store,
            root: root.map(|token| (hash(token), Caller::all_mighty("root"))),
            anybody: loopback.then(|| Caller::all_mighty("local")),
            known: RwLock::default(),
            read_at: tokio::sync::Mutex::default(),
            used: Mutex::default(),
        };
        access.read().await?;
        Ok(access)
    }

    /// True if nobody can call with a token, because there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.root.is_none() && self.known().tokens.is_empty()
    }

    /// Who calls.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Answer<Caller> {
        let Some(secret) = secret(headers)? else {
            return match &self.anybody {
                Some(anybody) if self.is_empty() => {
                    is_local(headers)?;
                    Ok(anybody.clone())
                }
                _ => Err(unauthorized("there is no token")),
            };
        };
        let hash = hash(&secret);
        if let Some((root, caller)) = &self.root
            && bool::from(root.ct_eq(&hash))
        {
            return Ok(caller.clone());
        }
        if let Some(caller) = self.find(&hash)? {
            return Ok(caller);
        }
        // Another node may have created it a moment ago.
        self.read_again().await;
        self.find(&hash)?.ok_or_else(|| unauthorized("the token is not known"))
    }

    /// The caller with this hash. What is looked up is a hash of the secret, so the time it takes tells nothing of the secret.
    fn find(&self, hash: &[u8; 32]) -> Answer<Option<Caller>> {
        let known = self.known();
        let Some((stored, caller)) = known.tokens.get_key_value(hash) else { return Ok(None) };
        if !bool::from(stored.ct_eq(hash)) {
            return Ok(None);
        }
        let now = known.now();
        if caller.0.expires_at.is_some_and(|end| end <= now) {
            return Err(unauthorized("the token has expired"));
        }
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        match used.get_mut(caller.name()) {
            Some(at) => *at = now,
            None => {
                used.insert(caller.name().to_owned(), now);
            }
        }
        Ok(Some(caller.clone()))
    }

    /// Reads the tokens now: something has changed.
    pub(crate) async fn read(&self) -> tramline::Result<()> {
        let mut read_at = self.read_at.lock().await;
        *read_at = Some(Instant::now());
        let (tokens, time) = (self.store.tokens().await?, self.store.now().await?);
        let tokens = tokens.into_iter().map(|token| (token.hash, Caller::of(token))).collect();
        let known = Known { tokens, time: Some((time, Instant::now())) };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    async fn read_again(&self) {
        let recent = self.read_at.lock().await.is_some_and(|at| at.elapsed() < EVERY / 2);
        if !recent && let Err(error) = self.read().await {
            tracing::warn!(error = %error, "tokens cannot be read; those that are known go on");
        }
    }

    /// Keeps tokens current and records their use, until it is dropped.
    pub(crate) async fn keep_current(&self) {
        loop {
            tokio::time::sleep(EVERY).await;
            self.read_again().await;
            self.write_uses().await;
        }
    }

    /// Records when tokens were used since the last time.
    pub(crate) async fn write_uses(&self) {
        let uses = std::mem::take(&mut *self.used.lock().unwrap_or_else(PoisonError::into_inner));
        if uses.is_empty() {
            return;
        }
        if let Err(error) = self.store.touch_tokens(uses.into_iter().collect()).await {
            tracing::debug!(error = %error, "the last use of tokens was not recorded");
        }
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash under which a secret is kept.
pub(crate) fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// The secret in a request: a bearer token, or the user name of Basic.
fn secret(headers: &HeaderMap) -> Answer<Option<String>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(None) };
    let unreadable = || unauthorized("the Authorization header cannot be read");
    let (scheme, rest) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unreadable)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(Some(rest.trim().to_owned()));
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let bytes = BASE64_STANDARD.decode(rest.trim()).map_err(|_| unreadable())?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable())?;
        return Ok(Some(text.split(':').next().unwrap_or_default().to_owned()));
    }
    Err(unreadable())
}

/// Without tokens, only callers that mean this machine: a web page elsewhere could otherwise make a browser call.
fn is_local(headers: &HeaderMap) -> Answer<()> {
    let origin = headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default());
    let origin = origin.map(|origin| origin.split_once("://").map_or("", |(_, host)| host));
    let host = headers.get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    if origin.into_iter().chain(host).all(is_loopback) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        "while there are no tokens, only this machine may call, by its own address",
        "call http://127.0.0.1 or http://localhost, or create a token",
    ))
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(authorization: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, authorization.parse().unwrap())])
    }

    #[test]
    fn a_secret_is_a_bearer_token_or_the_user_name_of_basic() {
        assert_eq!(secret(&headers("Bearer tl_x")).unwrap().as_deref(), Some("tl_x"));
        assert_eq!(secret(&headers("basic dGxfeDo=")).unwrap().as_deref(), Some("tl_x"));
        assert_eq!(secret(&HeaderMap::new()).unwrap(), None);
        for bad in ["tl_x", "Digest a", "Basic ?"] {
            assert_eq!(secret(&headers(bad)).unwrap_err().status(), 401);
        }
    }

    #[test]
    fn only_this_machine_is_local() {
        for good in ["localhost:7070", "127.0.0.1", "[::1]:80", "127.8.9.1:1"] {
            assert!(is_loopback(good), "{good}");
        }
        for bad in ["evil.example:7070", "10.0.0.1", "localhost.evil.example", ""] {
            assert!(!is_loopback(bad), "{bad}");
        }
    }
}
