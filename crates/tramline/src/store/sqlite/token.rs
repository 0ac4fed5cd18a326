//! Tokens.

use super::session::Session;
use crate::error::Result;
use crate::model::time::Time;
use crate::model::token::Token;
use crate::store::token::{TokenRow, taken, unknown};
use crate::store::verbs::SealToken;
use rusqlite::{Connection, params};

pub(super) fn put(session: &Session<'_>, token: &Token) -> Result<Token> {
    let row = TokenRow::new(token, session.now)?;
    let sql = "INSERT INTO tramline_token VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?) ON CONFLICT DO NOTHING";
    let values = params![
        row.name,
        row.hash,
        row.scopes,
        row.topics,
        row.subscriptions,
        row.created_at,
        row.expires_at,
        row.sealed
    ];
    let stored = session.conn.prepare_cached(sql)?.execute(values)?;
    if stored == 1 { row.read() } else { Err(taken(&token.name)) }
}

pub(super) fn all(conn: &Connection) -> Result<Vec<Token>> {
    let sql = "SELECT name, hash, scopes, topics, subscriptions, created_at, expires_at, used_at, sealed \
               FROM tramline_token ORDER BY name";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(TokenRow {
            name: row.get(0)?,
            hash: row.get(1)?,
            scopes: row.get(2)?,
            topics: row.get(3)?,
            subscriptions: row.get(4)?,
            created_at: row.get(5)?,
            expires_at: row.get(6)?,
            used_at: row.get(7)?,
            sealed: row.get(8)?,
        })
    })?;
    rows.map(|row| row?.read()).collect()
}

pub(super) fn delete(conn: &Connection, name: &str) -> Result<()> {
    let deleted = conn.execute("DELETE FROM tramline_token WHERE name = ?", [name])?;
    if deleted == 1 { Ok(()) } else { Err(unknown(name)) }
}

pub(super) fn seal(conn: &Connection, seal: &SealToken) -> Result<bool> {
    let sql = "UPDATE tramline_token SET sealed = ? WHERE name = ? AND sealed = ?";
    Ok(conn.execute(sql, params![seal.to, seal.name, seal.from])? == 1)
}

pub(super) fn touch(conn: &Connection, uses: &[(String, Time)]) -> Result<()> {
    let sql = "UPDATE tramline_token SET used_at = max(coalesce(used_at, 0), ?) WHERE name = ?";
    let mut statement = conn.prepare_cached(sql)?;
    for (name, at) in uses {
        statement.execute(params![at.0, name])?;
    }
    Ok(())
}
