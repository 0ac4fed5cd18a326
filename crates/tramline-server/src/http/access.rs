//! Who may do what: tokens are kept in memory, so that a request asks no store.

use crate::http::caller::{Caller, unauthorized};
use crate::http::problem::{Answer, Problem};
use axum::http::{HeaderMap, StatusCode, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use subtle::ConstantTimeEq;
use tokio::time::Instant;
use tramline::{Store, Time};

/// How often nodes tell each other of tokens and workers, through the store.
pub(crate) const EVERY: Duration = Duration::from_secs(2);
/// Tokens are not read more often than this because of some that are not known.
const PAUSE: Duration = Duration::from_millis(100);

/// The tokens of the store, and the root token.
pub(crate) struct Access {
    store: Arc<dyn Store>,
    root: Option<([u8; 32], Caller)>,
    /// Who calls without a token, where that is allowed: on loopback, while there are none.
    anybody: Option<Caller>,
    known: RwLock<Known>,
    /// When tokens were last read. Who has to know better waits for one reading together with others.
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

    /// True if this is the root's token.
    pub(crate) fn is_root(&self, secret: &str) -> bool {
        let hash = hash(secret);
        self.root.as_ref().is_some_and(|(root, _)| bool::from(root.ct_eq(&hash)))
    }

    /// True while nobody needs a token: on loopback, while there are none.
    pub(crate) fn is_open(&self) -> bool {
        self.anybody.is_some() && self.is_empty()
    }

    /// The store's time, as far as this node knows.
    pub(crate) fn now(&self) -> Time {
        self.known().now()
    }

    /// Who calls.
    pub(crate) async fn caller(&self, headers: &HeaderMap) -> Answer<Caller> {
        let secrets = secrets(headers)?;
        if secrets.is_empty() {
            return match &self.anybody {
                Some(anybody) if self.is_empty() => {
                    is_local(headers)?;
                    Ok(anybody.clone())
                }
                _ => Err(unauthorized("there is no token")),
            };
        }
        let hashes: Vec<[u8; 32]> = secrets.iter().map(|secret| hash(secret)).collect();
        if let Some((root, caller)) = &self.root
            && hashes.iter().any(|hash| bool::from(root.ct_eq(hash)))
        {
            return Ok(caller.clone());
        }
        if let Some(caller) = self.find_any(&hashes)? {
            return Ok(caller);
        }
        // Another node may have created it a moment ago.
        self.read_again().await;
        self.find_any(&hashes)?.ok_or_else(|| unauthorized("the token is not known"))
    }

    fn find_any(&self, hashes: &[[u8; 32]]) -> Answer<Option<Caller>> {
        for hash in hashes {
            if let Some(caller) = self.find(hash)? {
                return Ok(Some(caller));
            }
        }
        Ok(None)
    }

    /// The caller with this hash. What is looked up is a hash of the secret, so the time it takes tells nothing of the secret.
    fn find(&self, hash: &[u8; 32]) -> Answer<Option<Caller>> {
        let known = self.known();
        let Some((stored, caller)) = known.tokens.get_key_value(hash) else { return Ok(None) };
        if !bool::from(stored.ct_eq(hash)) {
            return Ok(None);
        }
        let now = known.now();
        if caller.has_expired(now) {
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
        self.read_at(&mut *self.read_at.lock().await).await
    }

    async fn read_at(&self, read_at: &mut Option<Instant>) -> tramline::Result<()> {
        *read_at = Some(Instant::now());
        let (tokens, time) = (self.store.tokens().await?, self.store.now().await?);
        let tokens = tokens.into_iter().map(|token| (token.hash, Caller::of(token))).collect();
        let known = Known { tokens, time: Some((time, Instant::now())) };
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(())
    }

    /// Knows afterwards what was in the store when it was called.
    async fn read_again(&self) {
        let called = Instant::now();
        let mut read_at = self.read_at.lock().await;
        if read_at.is_some_and(|at| at >= called) {
            return;
        }
        if let Some(at) = *read_at {
            tokio::time::sleep(PAUSE.saturating_sub(at.elapsed())).await;
        }
        if let Err(error) = self.read_at(&mut read_at).await {
            tracing::warn!(error = %error, "tokens cannot be read; those that are known go on");
        }
    }

    /// Keeps tokens current, and records their use.
    pub(crate) async fn keep_current(&self) {
        self.read_again().await;
        self.write_uses().await;
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

/// What may be the secret in a request: a bearer token, or the user name of Basic. That ends at a colon by the book, but tokens of
/// Routemaster's clients may have some, and their passwords have none.
pub(crate) fn secrets(headers: &HeaderMap) -> Answer<Vec<String>> {
    let Some(value) = headers.get(header::AUTHORIZATION) else { return Ok(Vec::new()) };
    let unreadable = || unauthorized("the Authorization header cannot be read");
    let (scheme, rest) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or_else(unreadable)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Ok(vec![rest.trim().to_owned()]);
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let bytes = BASE64_STANDARD.decode(rest.trim()).map_err(|_| unreadable())?;
        let text = String::from_utf8(bytes).map_err(|_| unreadable())?;
        let short = text.split(':').next().unwrap_or_default();
        let long = text.rsplit_once(':').map(|(user, _)| user).filter(|long| *long != short);
        return Ok(std::iter::once(short).chain(long).map(str::to_owned).collect());
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
        assert_eq!(secrets(&headers("Bearer tl_x")).unwrap(), ["tl_x"]);
        assert_eq!(secrets(&headers("basic dGxfeDo=")).unwrap(), ["tl_x"]);
        let basic = |text: &str| headers(&format!("Basic {}", BASE64_STANDARD.encode(text)));
        assert_eq!(secrets(&basic("a:b:x")).unwrap(), ["a", "a:b"], "a password or a token has a colon");
        assert_eq!(secrets(&HeaderMap::new()).unwrap(), [""; 0]);
        for bad in ["tl_x", "Digest a", "Basic ?"] {
            assert_eq!(secrets(&headers(bad)).unwrap_err().status(), 401);
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
