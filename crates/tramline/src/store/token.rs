//! Tokens as every store writes them: scopes and patterns are JSON texts.

use crate::error::{Error, Result};
use crate::model::time::Time;
use crate::model::token::Token;
use serde::de::DeserializeOwned;

/// A row of tokens.
pub(crate) struct TokenRow {
    pub(crate) name: String,
    pub(crate) hash: Vec<u8>,
    pub(crate) scopes: String,
    pub(crate) topics: Option<String>,
    pub(crate) subscriptions: Option<String>,
    pub(crate) created_at: i64,
    pub(crate) expires_at: Option<i64>,
    pub(crate) used_at: Option<i64>,
    pub(crate) sealed: Option<String>,
}

impl TokenRow {
    /// The row of a token that is created at `now`.
    pub(crate) fn new(token: &Token, now: Time) -> Result<TokenRow> {
        token.check()?;
        let text = |patterns| serde_json::to_string(patterns).map_err(unreadable);
        Ok(TokenRow {
            name: token.name.clone(),
            hash: token.hash.to_vec(),
            scopes: serde_json::to_string(&token.scopes).map_err(unreadable)?,
            topics: token.topics.as_ref().map(text).transpose()?,
            subscriptions: token.subscriptions.as_ref().map(text).transpose()?,
            created_at: now.0,
            expires_at: token.expires_at.map(|time| time.0),
            used_at: None,
            sealed: token.sealed.clone(),
        })
    }

    /// The token behind a row.
    pub(crate) fn read(self) -> Result<Token> {
        Ok(Token {
            name: self.name,
            hash: self.hash.try_into().map_err(|_| {
                Error::invalid("a stored token has no hash of 32 bytes", "drop it and create it again")
            })?,
            scopes: parse(&self.scopes)?,
            topics: self.topics.as_deref().map(parse).transpose()?,
            subscriptions: self.subscriptions.as_deref().map(parse).transpose()?,
            created_at: Time(self.created_at),
            expires_at: self.expires_at.map(Time),
            used_at: self.used_at.map(Time),
            sealed: self.sealed,
        })
    }
}

/// Somebody else has the name.
pub(crate) fn taken(name: &str) -> Error {
    Error::conflict(
        format!("there is already a token {name:?}"),
        "choose another name, or drop that one first",
    )
}

/// Nobody has the name.
pub(crate) fn unknown(name: &str) -> Error {
    Error::not_found(format!("there is no token {name:?}"), "check the name in the list of tokens")
}

fn parse<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(unreadable)
}

fn unreadable(error: serde_json::Error) -> Error {
    Error::invalid("a stored token cannot be read", "upgrade: it was written by a newer version")
        .because(error)
}
