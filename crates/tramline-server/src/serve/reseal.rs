//! Secrets that were sealed with an older key are sealed again with the current one when a node starts.

use crate::bench::BoxError;
use crate::http::app::Shared;
use tramline::engine::push::{authorization_purpose, secret_purpose, user_purpose};
use tramline::push::Keyring;
use tramline::{Policy, Push, Start};

/// Goes over all push subscriptions. What cannot be opened stays as it is, and is told.
pub(super) async fn reseal(app: &Shared) -> Result<(), BoxError> {
    let mut count = 0;
    for subscription in app.tram.subscriptions().await? {
        let Some(push) = &subscription.policy.push else { continue };
        let Some(push) = sealed_again(&app.keyring, &subscription.name, push) else { continue };
        let topics: Vec<&str> = subscription.topics.iter().map(|topic| &**topic).collect();
        let policy = Policy { push: Some(push), ..subscription.policy.clone() };
        app.tram.put_subscription(&subscription.name, &topics, policy, Start::Now).await?;
        count += 1;
    }
    if count > 0 {
        tracing::info!(subscriptions = count, "secrets were sealed again with the current key");
    }
    Ok(())
}

/// `None` if nothing has to change.
fn sealed_again(keyring: &Keyring, name: &str, push: &Push) -> Option<Push> {
    let again = |purpose: &str, sealed: &str| {
        if keyring.is_current(sealed) {
            return None;
        }
        let resealed = keyring.open(purpose, sealed).and_then(|plain| keyring.seal(purpose, &plain));
        resealed
            .inspect_err(|error| {
                tracing::warn!(subscription = name, error = %error, "a secret cannot be opened");
            })
            .ok()
    };
    let mut changed = push.clone();
    for secret in &mut changed.secrets {
        if let Some(sealed) = again(&secret_purpose(name, &secret.id), &secret.sealed) {
            secret.sealed = sealed;
        }
    }
    for (purpose, sealed) in
        [(user_purpose(name), &mut changed.user), (authorization_purpose(name), &mut changed.authorization)]
    {
        if let Some(again) = sealed.as_deref().and_then(|sealed| again(&purpose, sealed)) {
            *sealed = Some(again);
        }
    }
    (changed != *push).then_some(changed)
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
