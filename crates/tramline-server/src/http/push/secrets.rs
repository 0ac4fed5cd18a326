//! Signing secrets of a push subscription: several while one is replaced, encrypted, and shown only when they are made.

use crate::http::app::{App, Shared};
use crate::http::body;
use crate::http::caller::Caller;
use crate::http::change::Change;
use crate::http::json::{Json, ok};
use crate::http::params::{Name, Names};
use crate::http::problem::{Answer, Problem};
use crate::http::push::fields::Sealer;
use crate::http::push::shown::SecretOut;
use crate::http::schema;
use crate::http::subscriptions::named;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tramline::engine::push::secret_purpose;
use tramline::push::Secret;
use tramline::{Incarnation, Policy, Push, Scope, SealedSecret, SecretKind, Start, Subscription};
use utoipa::ToSchema;

const MANAGE: &[Scope] = &[Scope::Manage];

/// A new secret.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretIn {
    /// The secret itself, `whsec_..` or `whsk_..`; one is made unless set
    secret: Option<String>,
    /// Which kind to make; `hmac` unless set
    kind: Option<SecretKind>,
}

/// A secret that was added.
#[derive(Serialize, ToSchema)]
pub(crate) struct SecretAdded {
    #[serde(flatten)]
    about: SecretOut,
    /// The secret, if it was made here. It is never shown again
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

/// Adds a secret. Requests are signed with all of them, so that receivers can change over in their own time.
#[utoipa::path(post, path = "/v1/subscriptions/{name}/secrets", tag = "push", params(("name" = schema::Name, Path)),
    request_body = SecretIn, responses((status = 201, body = SecretAdded)), security(("token" = ["manage"])))]
pub(crate) async fn add(
    State(app): State<Shared>,
    caller: Caller,
    name: Name,
    headers: HeaderMap,
    body: Body,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, name).await?;
    let body = app.read(&headers, body).await?;
    let given: SecretIn = body::parse(&body)?;
    sending(&subscription)?;
    let (secret, made) = match (given.secret, given.kind) {
        (Some(_), Some(_)) => {
            return Err(Problem::invalid("a secret says itself of which kind it is", "leave out the kind"));
        }
        (Some(text), None) => (text, None),
        (None, kind) => {
            let made = match kind.unwrap_or(SecretKind::Hmac) {
                SecretKind::Hmac => Secret::generate_hmac()?,
                SecretKind::Ed25519 => Secret::generate_ed25519()?,
            };
            (made.reveal(), Some(made.reveal()))
        }
    };
    let now = app.ask(app.tram.store().now()).await?;
    let sealed = seal(&secret, &Sealer { keyring: &app.keyring, subscription: &subscription.name, now })?;
    let about = SecretOut::new(&sealed);
    change_push(&app, &subscription.name, |push| {
        push.secrets.insert(0, sealed.clone());
        Ok(())
    })
    .await?;
    Ok(Json(StatusCode::CREATED, SecretAdded { about, secret: made }).into_response())
}

/// The secrets that are left.
#[derive(Serialize, ToSchema)]
pub(crate) struct Secrets {
    secrets: Vec<SecretOut>,
}

/// Removes a secret: nothing is signed with it from then on.
#[utoipa::path(delete, path = "/v1/subscriptions/{name}/secrets/{secret}", tag = "push",
    params(("name" = schema::Name, Path), ("secret" = String, Path)),
    responses((status = 200, body = Secrets)), security(("token" = ["manage"])))]
pub(crate) async fn remove(
    State(app): State<Shared>,
    caller: Caller,
    Names(name, id): Names,
) -> Answer<Response> {
    let subscription = named(&app, &caller, MANAGE, Name(name)).await?;
    let push = change_push(&app, &subscription.name, |push| {
        let before = push.secrets.len();
        push.secrets.retain(|secret| secret.id != id);
        match push.secrets.len() == before {
            true => Err(Problem::not_found("the subscription has no such secret")),
            false => Ok(()),
        }
    });
    let secrets = push.await?.secrets.iter().map(SecretOut::new).collect();
    Ok(ok(Secrets { secrets }).into_response())
}

/// Seals a secret under an id that says nothing of it.
pub(crate) fn seal(text: &str, sealer: &Sealer<'_>) -> Answer<SealedSecret> {
    let secret = Secret::parse(text)?;
    let id = format!("{:016x}", Incarnation::random().0);
    let sealed =
        sealer.keyring.seal(&secret_purpose(sealer.subscription, &id), secret.reveal().as_bytes())?;
    let public = secret.public();
    let kind = if public.is_some() { SecretKind::Ed25519 } else { SecretKind::Hmac };
    Ok(SealedSecret { id, kind, sealed, public, since: sealer.now })
}

/// How a push subscription is sent.
pub(crate) fn sending(subscription: &Subscription) -> Answer<Push> {
    subscription
        .policy
        .push
        .clone()
        .ok_or_else(|| Problem::invalid("this is not a push subscription", "create one with kind push"))
}

/// Changes how a subscription is sent, and gives what came of it.
async fn change_push(app: &App, name: &str, mut alter: impl FnMut(&mut Push) -> Answer<()>) -> Answer<Push> {
    let mut change = Change::begin(app, name).await;
    loop {
        let found = change.read().await?;
        let found = found.ok_or_else(|| Problem::not_found("the subscription was deleted"))?;
        let mut push = sending(&found)?;
        alter(&mut push)?;
        let topics: Vec<&str> = found.topics.iter().map(|topic| &**topic).collect();
        let policy = Policy { push: Some(push.clone()), ..found.policy.clone() };
        if change.write(&topics, policy, Start::Now).await?.is_some() {
            return Ok(push);
        }
    }
}
