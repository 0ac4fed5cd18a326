//! What may be said of a push subscription.

use crate::http::problem::{Answer, Problem};
use crate::http::push::secrets;
use std::collections::BTreeMap;
use std::time::Duration;
use tramline::engine::push::authorization_purpose;
use tramline::push::{Keyring, check_callback};
use tramline::{Format, Push, Time};

/// The fields of a subscription that are about push. What is left out is as it was, or the default.
#[derive(Default)]
pub(crate) struct Fields {
    pub(crate) callback: Option<String>,
    pub(crate) max_events: Option<u32>,
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) format: Option<Format>,
    pub(crate) headers: Option<BTreeMap<String, String>>,
    pub(crate) concurrency: Option<u32>,
    pub(crate) rate: Option<Option<u32>>,
    pub(crate) request_timeout_ms: Option<u64>,
    pub(crate) disable_after_ms: Option<Option<u64>>,
    pub(crate) handshake: Option<bool>,
    pub(crate) secrets: Option<Vec<String>>,
    pub(crate) authorization: Option<Option<String>>,
}

/// What secrets are sealed with, for whom, and when.
pub(crate) struct Sealer<'a> {
    pub(crate) keyring: &'a Keyring,
    pub(crate) subscription: &'a str,
    pub(crate) now: Time,
}

impl Fields {
    /// True if nothing was said.
    fn is_empty(&self) -> bool {
        let Fields { callback, max_events, timeout_ms, format, headers, .. } = self;
        let first = callback.is_none() && max_events.is_none() && timeout_ms.is_none() && format.is_none();
        let Fields { concurrency, rate, request_timeout_ms, disable_after_ms, .. } = self;
        let second =
            headers.is_none() && concurrency.is_none() && rate.is_none() && request_timeout_ms.is_none();
        let third = disable_after_ms.is_none() && self.handshake.is_none();
        first && second && third && self.secrets.is_none() && self.authorization.is_none()
    }

    /// Refuses fields of push on a subscription that workers claim from.
    pub(crate) fn refuse(&self) -> Answer<()> {
        match self.is_empty() {
            true => Ok(()),
            false => Err(Problem::invalid(
                "callback and the like are for push subscriptions",
                "set kind to push, or leave them out",
            )),
        }
    }

    /// How it is sent, on top of how it was sent before.
    pub(crate) fn push(self, old: Option<Push>, sealer: &Sealer<'_>) -> Answer<Push> {
        let old = old.unwrap_or_default();
        let moved = self.callback.as_ref().is_some_and(|callback| *callback != old.callback);
        let callback = self.callback.unwrap_or(old.callback);
        if callback.is_empty() {
            return Err(Problem::invalid("a push subscription needs a callback", "set the URL to send to"));
        }
        check_callback(&callback, false)?;
        let millis = |given: Option<u64>, old: Duration| given.map_or(old, Duration::from_millis);
        let secrets = match self.secrets {
            None => old.secrets,
            Some(texts) => texts.iter().map(|text| secrets::seal(text, sealer)).collect::<Answer<_>>()?,
        };
        let authorization = match self.authorization {
            // What was for one receiver is not shown to another.
            None if moved => None,
            None => old.authorization,
            Some(None) => None,
            Some(Some(text)) => Some(authorization(&text, sealer)?),
        };
        Ok(Push {
            callback,
            max_events: self.max_events.unwrap_or(old.max_events),
            timeout: millis(self.timeout_ms, old.timeout),
            format: self.format.unwrap_or(old.format),
            headers: self.headers.unwrap_or(old.headers),
            concurrency: self.concurrency.unwrap_or(old.concurrency),
            rate: self.rate.unwrap_or(old.rate),
            request_timeout: millis(self.request_timeout_ms, old.request_timeout),
            disable_after: self
                .disable_after_ms
                .map_or(old.disable_after, |after| after.map(Duration::from_millis)),
            handshake: self.handshake.unwrap_or(old.handshake),
            secrets,
            user: old.user.filter(|_| !moved),
            authorization,
        })
    }
}

fn authorization(text: &str, sealer: &Sealer<'_>) -> Answer<String> {
    let plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if text.is_empty() || text.len() > 4096 || !text.bytes().all(plain) {
        return Err(Problem::invalid(
            "this cannot be an Authorization header",
            "use up to 4,096 printable characters, such as Bearer and a token",
        ));
    }
    Ok(sealer.keyring.seal(&authorization_purpose(sealer.subscription), text.as_bytes())?)
}
