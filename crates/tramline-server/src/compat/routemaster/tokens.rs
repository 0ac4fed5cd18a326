//! Tokens of clients. They are Tramline's own, with two differences: the secret may be chosen, and the root may list it.
//!
//! In Routemaster a name is a label that several tokens may have, and each token is a client of its own. Tramline's names are unique:
//! the first token of a name has it, the next ones have `:2` and so on after it.

use super::access::{Client, LONGEST, is_plain};
use super::subscribers;
use crate::http::access::hash;
use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::json::{Json, ok};
use crate::http::params::Name;
use crate::http::problem::{Answer, Problem};
use crate::http::tokens::{keep, random};
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use tramline::{Pattern, Scope, Time, Token};

/// What follows the name in a generated token: two dashes and 16 bytes in hexadecimal.
const SUFFIX: usize = 34;

/// A token to create.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenIn {
    name: String,
    token: Option<String>,
}

/// A token as it is shown to the root; sealed as this, so that nobody else reads it.
#[derive(Serialize, Deserialize)]
struct Shown {
    name: String,
    token: Option<String>,
}

/// POST /api_tokens.
pub(super) async fn create(
    State(app): State<Shared>,
    client: Client,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let by = client.root()?;
    let body = app.read(&headers, body).await?;
    let wanted: TokenIn = body::parse(&body)?;
    if app.access.is_open() {
        return Err(Problem::malformed(
            "the first token has to be the root's, or nobody could create another",
            "set TRAMLINE_ROOT_TOKEN and start the server again",
        ));
    }
    let secret = secret(&wanted)?;
    if app.access.is_root(&secret) {
        return Err(Problem::malformed(
            "this is the root's own token",
            "give another token, or none to have one made",
        ));
    }
    let shown = Shown { name: wanted.name, token: Some(secret) };
    let mut tries = 3;
    while let Err(problem) = put(&app, &shown, by).await {
        tries -= 1;
        // Somebody has taken the name a moment ago: the next one is free.
        if problem.status() != StatusCode::CONFLICT || tries == 0 {
            return Err(problem);
        }
    }
    Ok(Json(StatusCode::CREATED, shown).into_response())
}

/// Keeps a token, unless the very same is there.
async fn put(app: &App, shown: &Shown, by: &str) -> Answer<()> {
    let known = app.ask(app.tram.store().tokens()).await?;
    if !is_kept(app, &known, shown)? {
        keep(app, token(app, &known, shown)?, by).await?;
    }
    Ok(())
}

/// The secret that was asked for, or a new one.
fn secret(wanted: &TokenIn) -> Answer<String> {
    if !is_plain(&wanted.name) {
        return Err(Problem::malformed("bad name", "use 1 to 64 lower case letters, digits and : _ -"));
    }
    match &wanted.token {
        Some(token) if is_plain(token) => Ok(token.clone()),
        Some(_) => Err(Problem::malformed("bad token", "use 1 to 64 lower case letters, digits and : _ -")),
        None if wanted.name.len() + SUFFIX > LONGEST => Err(Problem::malformed(
            "the name is too long for a token to be made of it",
            "use at most 30 characters, or give a token",
        )),
        None => Ok(format!("{}--{}", wanted.name, hexadecimal(&random::<16>()?))),
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// True if the very same token is there already. One secret cannot be of two tokens.
fn is_kept(app: &App, known: &[Token], wanted: &Shown) -> Answer<bool> {
    let Some(secret) = &wanted.token else { return Ok(false) };
    let hash = hash(secret);
    match known.iter().find(|token| token.hash == hash) {
        None => Ok(false),
        Some(token) if show(app, token).is_some_and(|shown| shown.name == wanted.name) => Ok(true),
        Some(_) => Err(Problem::malformed("the token is taken", "delete it first, or choose another")),
    }
}

/// The token as it is kept. It opens nothing of Tramline's own API: this one decides by itself what a client may do.
fn token(app: &App, known: &[Token], shown: &Shown) -> Answer<Token> {
    let name = free_name(known, &shown.name);
    let sealed = app.keyring.seal(&purpose(&name), &serde_json::to_vec(shown)?)?;
    Ok(Token {
        hash: hash(shown.token.as_deref().unwrap_or_default()),
        scopes: vec![Scope::Publish, Scope::Consume],
        topics: Some(Vec::new()),
        subscriptions: Some(vec![name.parse::<Pattern>()?]),
        created_at: Time(0),
        expires_at: None,
        used_at: None,
        sealed: Some(sealed),
        name,
    })
}

/// The name, or the first number after it that nobody has.
fn free_name(known: &[Token], wanted: &str) -> String {
    let taken: HashSet<&str> = known.iter().map(|token| token.name.as_str()).collect();
    let numbered = (2..).map(|number: u32| format!("{wanted}:{number}"));
    let mut names = std::iter::once(wanted.to_owned()).chain(numbered);
    names.find(|name| !taken.contains(name.as_str())).unwrap_or_default()
}

/// For what a token is sealed.
pub(crate) fn purpose(name: &str) -> String {
    format!("token/{name}/secret")
}

/// A token of this API. One whose key was lost is still listed, without its secret.
fn show(app: &App, token: &Token) -> Option<Shown> {
    let sealed = token.sealed.as_ref()?;
    let opened = app.keyring.open(&purpose(&token.name), sealed).ok();
    let shown = opened.and_then(|opened| serde_json::from_slice(&opened).ok());
    Some(shown.unwrap_or_else(|| Shown { name: token.name.clone(), token: None }))
}

/// GET /api_tokens. An empty list is a list: Routemaster's own client breaks at its 204.
pub(super) async fn list(State(app): State<Shared>, client: Client) -> Answer<Response> {
    client.root()?;
    let tokens = app.ask(app.tram.store().tokens()).await?;
    Ok(ok(tokens.iter().filter_map(|token| show(&app, token)).collect::<Vec<_>>()).into_response())
}

/// DELETE /api_tokens/{token}: with its subscriber. 204, whether there was one or not.
pub(super) async fn delete(State(app): State<Shared>, client: Client, secret: Name) -> Answer<Response> {
    let by = client.root()?;
    let hash = hash(&secret.0);
    let mut tokens = app.ask(app.tram.store().tokens()).await?;
    tokens.retain(|token| token.hash == hash && token.sealed.is_some());
    for token in &tokens {
        match app.ask(app.tram.store().delete_token(&token.name)).await {
            Err(problem) if problem.status() == StatusCode::NOT_FOUND => {}
            deleted => deleted?,
        }
        app.ask(app.access.read()).await?;
        // After the token, so that its client cannot subscribe again in between.
        subscribers::remove(&app, &token.name).await?;
        tracing::info!(token = token.name, by, "token dropped");
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}
