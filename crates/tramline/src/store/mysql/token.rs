//! Tokens.

use super::session::Session;
use super::sql::{Columns, bytes, maybe, maybe_text, text};
use crate::error::Result;
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::token::{TokenRow, taken, unknown};
use crate::store::verbs::SealToken;
use sqlx::mysql::MySqlRow;

pub(super) async fn put(session: &mut Session<'_>, token: &Token) -> Result<Token> {
    let row = TokenRow::new(token, session.now)?;
    let sql = format!(
        "INSERT IGNORE INTO tramline_token VALUES ({}, {}, {}, {}, {}, {}, {}, NULL, {})",
        text(&row.name),
        bytes(&row.hash),
        text(&row.scopes),
        maybe_text(row.topics.as_deref()),
        maybe_text(row.subscriptions.as_deref()),
        row.created_at,
        maybe(row.expires_at),
        maybe_text(row.sealed.as_deref()),
    );
    if session.count(sql).await? == 1 { row.read() } else { Err(taken(&token.name)) }
}

pub(super) async fn all(session: &mut Session<'_>) -> Result<Vec<Token>> {
    let sql = "SELECT name, hash, scopes, topics, subscriptions, created_at, expires_at, used_at, sealed \
               FROM tramline_token ORDER BY name";
    let token = |row: &MySqlRow| {
        TokenRow {
            name: row.text(0)?,
            hash: row.blob(1)?,
            scopes: row.text(2)?,
            topics: row.maybe_text(3)?,
            subscriptions: row.maybe_text(4)?,
            created_at: row.int(5)?,
            expires_at: row.maybe_int(6)?,
            used_at: row.maybe_int(7)?,
            sealed: row.maybe_text(8)?,
        }
        .read()
    };
    session.rows(sql).await?.iter().map(token).collect()
}

pub(super) async fn delete(session: &mut Session<'_>, name: &str) -> Result<()> {
    let sql = format!("DELETE FROM tramline_token WHERE name = {}", text(name));
    if session.count(sql).await? == 1 { Ok(()) } else { Err(unknown(name)) }
}

pub(super) async fn seal(session: &mut Session<'_>, seal: &SealToken) -> Result<bool> {
    let sql = format!(
        "UPDATE tramline_token SET sealed = {} WHERE name = {} AND sealed = {}",
        text(&seal.to),
        text(&seal.name),
        text(&seal.from)
    );
    Ok(session.count(sql).await? == 1)
}

/// In the order of their names, so that two nodes cannot wait for each other.
pub(super) fn touch(session: &mut Session<'_>, uses: &[(String, Time)]) {
    let mut uses = uses.to_vec();
    uses.sort();
    for (name, at) in uses {
        session.write(format!(
            "UPDATE tramline_token SET used_at = GREATEST(COALESCE(used_at, 0), {}) WHERE name = {}",
            at.0,
            text(&name)
        ));
    }
}
