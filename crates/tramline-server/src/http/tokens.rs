//! Tokens: created with a secret that is shown once, listed and dropped. Only for admins of everything: whoever could create
//! tokens within a pattern could create one beyond it.

use crate::http::access::hash;
use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::json::{Json, List, When, ok};
use crate::http::params::{Name, Page, Params};
use crate::http::problem::{Answer, Problem};
use crate::http::schema;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tramline::store::verbs::PutToken;
use tramline::{Pattern, Scope, Time, Token};
use utoipa::ToSchema;

/// How many tokens a store keeps at most: every node has all of them in memory.
const MOST: usize = 10_000;

/// A token to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenIn {
    #[schema(value_type = schema::TokenName)]
    name: String,
    #[schema(min_items = 1)]
    scopes: Vec<Scope>,
    /// Patterns of topics, such as `acme/*` or `acme/**`; left out: all
    #[schema(value_type = Option<Vec<schema::Pattern>>, max_items = 100)]
    topics: Option<Vec<Pattern>>,
    /// Patterns of subscriptions; left out: all
    #[schema(value_type = Option<Vec<schema::Pattern>>, max_items = 100)]
    subscriptions: Option<Vec<Pattern>>,
    expires_at: Option<When>,
}

impl TokenIn {
    /// True if whoever has it can always create others.
    fn opens_all_doors(&self) -> bool {
        let everywhere = self.topics.is_none() && self.subscriptions.is_none();
        everywhere && self.expires_at.is_none() && self.scopes.contains(&Scope::Admin)
    }
}

/// A token, without its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenOut {
    name: String,
    scopes: Vec<Scope>,
    #[schema(value_type = Option<Vec<schema::Pattern>>)]
    topics: Option<Vec<Pattern>>,
    #[schema(value_type = Option<Vec<schema::Pattern>>)]
    subscriptions: Option<Vec<Pattern>>,
    created_at: When,
    expires_at: Option<When>,
    /// When it was last used, within a few seconds
    used_at: Option<When>,
}

/// A new token.
#[derive(Serialize, ToSchema)]
pub(crate) struct NewToken {
    /// The secret. It is not kept, and cannot be shown again
    token: String,
    #[serde(flatten)]
    about: TokenOut,
}

impl From<Token> for TokenOut {
    fn from(token: Token) -> TokenOut {
        TokenOut {
            name: token.name,
            scopes: token.scopes,
            topics: token.topics,
            subscriptions: token.subscriptions,
            created_at: When(token.created_at),
            expires_at: token.expires_at.map(When),
            used_at: token.used_at.map(When),
        }
    }
}

/// Creates a token. Its secret is in the answer, and nowhere else.
#[utoipa::path(post, path = "/v1/tokens", tag = "tokens", request_body = TokenIn,
    responses((status = 201, body = NewToken), (status = 409, description = "The name is taken, or there are too many")), security(("token" = ["admin"])))]
pub(crate) async fn create(
    State(app): State<Shared>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    caller.everywhere()?;
    let body = app.read(&headers, body).await?;
    let token: TokenIn = body::parse(&body)?;
    if app.access.is_empty() && !token.opens_all_doors() {
        return Err(Problem::invalid(
            "the first token has to be one that may do everything, or nobody could create another",
            "create one with the scope admin, without patterns and without an end first; or set TRAMLINE_ROOT_TOKEN",
        ));
    }
    let secret = format!("tl_{}", BASE64_URL_SAFE_NO_PAD.encode(random::<32>()?));
    let token = Token {
        name: token.name,
        hash: hash(&secret),
        scopes: token.scopes,
        topics: token.topics,
        subscriptions: token.subscriptions,
        created_at: Time(0),
        expires_at: token.expires_at.map(|time| time.0),
        used_at: None,
        sealed: None,
    };
    let token = keep(&app, token, caller.name()).await?;
    Ok(Json(StatusCode::CREATED, NewToken { token: secret, about: token.into() }).into_response())
}

/// Keeps a token, if there is room for it.
pub(crate) async fn keep(app: &App, token: Token, by: &str) -> Answer<Token> {
    if app.ask(app.tram.store().tokens()).await?.len() >= MOST {
        return Err(Problem::new(
            StatusCode::CONFLICT,
            "there are too many tokens",
            "drop those that nobody uses",
        ));
    }
    let token = app.ask(app.tram.store().put_token(PutToken { token, now: None })).await?;
    app.ask(app.access.read()).await?;
    tracing::info!(token = token.name, by, "token created");
    Ok(token)
}

/// Bytes that nobody can guess.
pub(crate) fn random<const BYTES: usize>() -> Answer<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    getrandom::fill(&mut bytes).map_err(|_| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "the system has no random numbers to give", "try again")
    })?;
    Ok(bytes)
}

/// All tokens by name, without their secrets.
#[utoipa::path(get, path = "/v1/tokens", tag = "tokens", params(Page), responses((status = 200, body = List<TokenOut>)),
    security(("token" = ["admin"])))]
pub(crate) async fn list(
    State(app): State<Shared>,
    caller: Caller,
    Params(page): Params<Page>,
) -> Answer<Response> {
    caller.everywhere()?;
    app.access.write_uses().await;
    let (tokens, next) = page.cut(app.ask(app.tram.store().tokens()).await?, |token| &token.name);
    Ok(ok(List { items: tokens.into_iter().map(TokenOut::from).collect(), next }).into_response())
}

/// Drops a token. It is refused here at once, and on other nodes within seconds.
#[utoipa::path(delete, path = "/v1/tokens/{name}", tag = "tokens", params(("name" = schema::TokenName, Path)),
    responses((status = 204, description = "Dropped")), security(("token" = ["admin"])))]
pub(crate) async fn delete(State(app): State<Shared>, caller: Caller, name: Name) -> Answer<Response> {
    caller.everywhere()?;
    app.ask(app.tram.store().delete_token(&name.0)).await?;
    app.ask(app.access.read()).await?;
    tracing::info!(token = name.0, by = caller.name(), "token dropped");
    Ok(StatusCode::NO_CONTENT.into_response())
}
