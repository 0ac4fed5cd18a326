//! Tokens.

use super::session::Session;
use crate::error::Result;
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::token::{TokenRow, taken, unknown};
use crate::store::verbs::SealToken;
use sqlx::Row;
use sqlx::postgres::PgRow;

pub(super) async fn put(session: &mut Session<'_>, token: &Token) -> Result<Token> {
    let row = TokenRow::new(token, session.now)?;
    let sql =
        "INSERT INTO tramline_token VALUES ($1, $2, $3, $4, $5, $6, $7, NULL, $8) ON CONFLICT DO NOTHING";
    let query = session
        .query(sql)
        .bind(row.name.clone())
        .bind(row.hash.clone())
        .bind(row.scopes.clone())
        .bind(row.topics.clone())
        .bind(row.subscriptions.clone())
        .bind(row.created_at)
        .bind(row.expires_at)
        .bind(row.sealed.clone());
    if session.run(query).await? == 1 { row.read() } else { Err(taken(&token.name)) }
}

pub(super) async fn all(session: &mut Session<'_>) -> Result<Vec<Token>> {
    let sql = "SELECT name, hash, scopes, topics, subscriptions, created_at, expires_at, used_at, sealed \
               FROM tramline_token ORDER BY name";
    let query = session.query(sql);
    let rows = session.all(query).await?;
    let token = |row: &PgRow| {
        TokenRow {
            name: row.try_get(0)?,
            hash: row.try_get(1)?,
            scopes: row.try_get(2)?,
            topics: row.try_get(3)?,
            subscriptions: row.try_get(4)?,
            created_at: row.try_get(5)?,
            expires_at: row.try_get(6)?,
            used_at: row.try_get(7)?,
            sealed: row.try_get(8)?,
        }
        .read()
    };
    rows.iter().map(token).collect()
}

pub(super) async fn delete(session: &mut Session<'_>, name: &str) -> Result<()> {
    let query = session.query("DELETE FROM tramline_token WHERE name = $1").bind(name.to_owned());
    if session.run(query).await? == 1 { Ok(()) } else { Err(unknown(name)) }
}

pub(super) async fn seal(session: &mut Session<'_>, seal: &SealToken) -> Result<bool> {
    let sql = "UPDATE tramline_token SET sealed = $1 WHERE name = $2 AND sealed = $3";
    let query = session.query(sql).bind(seal.to.clone()).bind(seal.name.clone()).bind(seal.from.clone());
    Ok(session.run(query).await? == 1)
}

/// In the order of their names, so that two nodes cannot wait for each other.
pub(super) async fn touch(session: &mut Session<'_>, uses: &[(String, Time)]) -> Result<()> {
    let mut uses = uses.to_vec();
    uses.sort();
    let sql = "UPDATE tramline_token SET used_at = greatest(coalesce(used_at, 0), $1) WHERE name = $2";
    for (name, at) in uses {
        let query = session.query(sql).bind(at.0).bind(name);
        session.run(query).await?;
    }
    Ok(())
}
