//! Secrets that were sealed with an older key are sealed again with the current one when a node starts.

use crate::compat::routemaster::token_purpose;
use crate::http::app::App;
use crate::http::change::Change;
use crate::http::problem::Answer;
use tramline::engine::push::{authorization_purpose, secret_purpose, user_purpose};
use tramline::push::Keyring;
use tramline::store::verbs::SealToken;
use tramline::{Policy, Push, Start};

/// Goes over all push subscriptions and tokens. What cannot be opened stays as it is, and is told.
pub(crate) async fn reseal(app: &App) -> Answer<()> {
    let mut subscriptions = 0;
    for subscription in app.ask(app.tram.subscriptions()).await? {
        if subscription.policy.push.is_some() && reseal_subscription(app, &subscription.name).await? {
            subscriptions += 1;
        }
    }
    let tokens = reseal_tokens(app).await?;
    if subscriptions + tokens > 0 {
        tracing::info!(subscriptions, tokens, "secrets were sealed again with the current key");
    }
    Ok(())
}

/// True if something had to change.
async fn reseal_subscription(app: &App, name: &str) -> Answer<bool> {
    let mut change = Change::begin(app, name).await;
    loop {
        let Some(subscription) = change.read().await? else { return Ok(false) };
        let push = subscription.policy.push.as_ref();
        let Some(push) = push.and_then(|push| sealed_again(&app.keyring, name, push)) else {
            return Ok(false);
        };
        let topics: Vec<&str> = subscription.topics.iter().map(|topic| &**topic).collect();
        let policy = Policy { push: Some(push), ..subscription.policy.clone() };
        if change.write(&topics, policy, Start::Now).await?.is_some() {
            return Ok(true);
        }
    }
}

/// How many were sealed again. One that somebody else has sealed meanwhile is left to him.
async fn reseal_tokens(app: &App) -> Answer<usize> {
    let mut count = 0;
    for token in app.ask(app.tram.store().tokens()).await? {
        let Some(from) = token.sealed else { continue };
        let Some(to) = again(&app.keyring, &token_purpose(&token.name), &from, &token.name) else { continue };
        let seal = SealToken { name: token.name, from, to };
        count += usize::from(app.ask(app.tram.store().seal_token(seal)).await?);
    }
    Ok(count)
}

/// `None` if nothing has to change.
fn sealed_again(keyring: &Keyring, name: &str, push: &Push) -> Option<Push> {
    let mut changed = push.clone();
    for secret in &mut changed.secrets {
        if let Some(sealed) = again(keyring, &secret_purpose(name, &secret.id), &secret.sealed, name) {
            secret.sealed = sealed;
        }
    }
    for (purpose, sealed) in
        [(user_purpose(name), &mut changed.user), (authorization_purpose(name), &mut changed.authorization)]
    {
        if let Some(again) = sealed.as_deref().and_then(|sealed| again(keyring, &purpose, sealed, name)) {
            *sealed = Some(again);
        }
    }
    (changed != *push).then_some(changed)
}

/// The same under the current key; `None` if it is already, or cannot be opened.
fn again(keyring: &Keyring, purpose: &str, sealed: &str, whose: &str) -> Option<String> {
    if keyring.is_current(sealed) {
        return None;
    }
    let resealed = keyring.open(purpose, sealed).and_then(|plain| keyring.seal(purpose, &plain));
    resealed.inspect_err(|error| tracing::warn!(of = whose, error = %error, "a secret cannot be opened")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_older_key_sealed_is_sealed_again_once_and_what_none_opens_stays() {
        let old = Keyring::derived("old");
        let authorization = old.seal(&authorization_purpose("s"), b"Bearer x").unwrap();
        let push = Push { authorization: Some(authorization), ..Push::to("https://a.example/") };
        let new = Keyring::derived("new").or(&old);
        let changed = sealed_again(&new, "s", &push).unwrap();
        let sealed = changed.authorization.as_deref().unwrap();
        assert_eq!(Keyring::derived("new").open(&authorization_purpose("s"), sealed).unwrap(), b"Bearer x");
        assert_eq!(sealed_again(&new, "s", &changed), None);
        assert_eq!(sealed_again(&Keyring::derived("other"), "s", &push), None);
    }
}
